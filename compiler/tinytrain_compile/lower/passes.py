"""The explicit list of TVM passes between a scheduled kernel and the TIR that the printer understands.

Left out on purpose: StorageRewrite (the planner owns buffers, and it merges register tiles), CommonSubexprElim (the C
compiler is better at it), MakePackedAPI and LowerTVMBuiltin (they bring in the TVM runtime). See docs/adr/0002.
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm import s_tir
from tvm.s_tir import transform as structured
from tvm.tirx import PrimFunc
from tvm.tirx import transform as flat


@cache
def _pipeline() -> tvm.ir.transform.Sequential:
    target = tvm.target.Target({"kind": "c"}, host={"kind": "c"})
    return tvm.ir.transform.Sequential(
        [
            flat.BindTarget(target),
            structured.CanonicalizeLoop(),
            structured.LowerInitBlock(),
            structured.PlanAndUpdateBufferAllocationLocation(),
            structured.ConvertBlocksToOpaque(),
            structured.CompactBufferAllocation(),
            structured.LowerMatchBuffer(),
            structured.StmtSimplify(),
            structured.LowerOpaqueBlock(),
            flat.FlattenBuffer(),
            flat.NarrowDataType(32),
            structured.LoopPartition(),
            flat.UnrollLoop(),
            structured.RenormalizeSplitPattern(),
            flat.StmtSimplify(),
            flat.RemoveNoOp(),
            flat.LowerIntrin(),
        ]
    )


def lower_schedule(schedule: s_tir.Schedule) -> PrimFunc:
    """The lowered PrimFunc (flat buffers, explicit loops) of a schedule's function "main"."""
    with tvm.transform.PassContext():
        return _pipeline()(schedule.mod)["main"]
