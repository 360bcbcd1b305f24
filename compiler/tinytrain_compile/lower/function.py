"""Ingredients of the C function of a kernel: lowered TIR, and the printer for it.

TVM's passes are listed one by one. Left out on purpose: StorageRewrite (the planner owns buffers, and it merges
register tiles), CommonSubexprElim (the C compiler is better at it), MakePackedAPI and LowerTVMBuiltin (they bring in
the TVM runtime). See docs/adr/0002.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import tvm
from tvm import s_tir, te
from tvm.ir import Var
from tvm.s_tir import transform as structured
from tvm.tirx import PrimFunc
from tvm.tirx import transform as flat

from tinytrain_compile.lower.kernels import KernelContext, KernelSpec
from tinytrain_compile.lower.names import LoopNames, loop_names
from tinytrain_compile.lower.printing.float_pairs import Fpv5Printer, PairPrinter
from tinytrain_compile.lower.printing.float_vectors import FloatVectorPrinter, sums_on_lanes
from tinytrain_compile.lower.printing.int_vectors import IntVectorPrinter
from tinytrain_compile.lower.printing.printer import Printer


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
    """Return the lowered PrimFunc (flat buffers, explicit loops) of a schedule's function "main"."""
    with tvm.transform.PassContext():
        return _pipeline()(schedule.mod)["main"]


def lower_spec(
    spec: KernelSpec, context: KernelContext, numbers: Sequence[Var] = ()
) -> tuple[PrimFunc, list[int], LoopNames]:
    """Return (lowered TIR function, the node's outputs that it computes, names of loops).

    The function's last parameters are these outputs, and numbers, variables that the kernel reads.
    """
    outputs = {i: tensor for i, tensor in enumerate(spec.outputs) if tensor is not None}
    function = te.create_prim_func([*spec.inputs, *outputs.values(), *numbers])
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    spec.schedule(schedule)
    lowered = lower_schedule(schedule)
    lowered = sums_on_lanes(lowered) if context.uses_float_vectors else lowered
    return lowered, list(outputs), loop_names(schedule.mod["main"])


def printer_of(context: KernelContext) -> type[Printer]:
    """Return the class that prints kernels for such a target."""
    if context.uses_float_vectors:
        return FloatVectorPrinter
    if context.uses_float_pairs:
        return Fpv5Printer if context.isa.fpv5 else PairPrinter
    return IntVectorPrinter if context.uses_vectors else Printer
