"""Ingredients of the C function of a kernel: lowered TIR, who prints it, names of its operands, its comment.

TVM's passes are listed one by one. Left out on purpose: StorageRewrite (the planner owns buffers, and it merges
register tiles), CommonSubexprElim (the C compiler is better at it), MakePackedAPI and LowerTVMBuiltin (they bring in
the TVM runtime). See docs/adr/0002.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import tvm
from tvm import s_tir, te
from tvm.s_tir import transform as structured
from tvm.tirx import PrimFunc
from tvm.tirx import transform as flat

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.kernels import KernelContext, KernelSpec
from tinytrain_compile.lower.names import LoopNames, loop_names
from tinytrain_compile.lower.printing.float_pairs import PairPrinter
from tinytrain_compile.lower.printing.float_vectors import FloatVectorPrinter
from tinytrain_compile.lower.printing.int_vectors import IntVectorPrinter
from tinytrain_compile.lower.printing.printer import Printer
from tinytrain_compile.ops.base import alias_of, form_doc, shown_name


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


def lower_spec(spec: KernelSpec) -> tuple[PrimFunc, list[int], LoopNames]:
    """Return (lowered TIR function, outputs of the node that it computes: its last parameters, what loops count)."""
    outputs = {i: tensor for i, tensor in enumerate(spec.outputs) if tensor is not None}
    function = te.create_prim_func([*spec.inputs, *outputs.values()])
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    spec.schedule(schedule)
    return lower_schedule(schedule), list(outputs), loop_names(schedule.mod["main"])


def printer_of(context: KernelContext) -> type[Printer]:
    """Return what prints kernels for such a target."""
    if context.uses_float_vectors:
        return FloatVectorPrinter
    if context.uses_float_pairs:
        return PairPrinter
    return IntVectorPrinter if context.uses_vectors else Printer


def parameter_names(node: Node, inputs: Iterable[te.Tensor]) -> list[str]:
    """Return C names of a node's inputs and outputs."""
    names = [str(tensor.op.name) for tensor in inputs]
    outs = ["y"] if len(node.outputs) == 1 else [f"y{i}" for i in range(len(node.outputs))]
    return names + [out if out not in names else f"{out}_out" for out in outs]


def describe(node: Node, names: Sequence[str]) -> str:
    """Return a C comment: operator, operands with their shapes, what it does. names: of inputs, then outputs.

    An output that overwrites an input has that input's name.
    """

    def operand(value: Value, name: str) -> str:
        return f"{name} {'x'.join(map(str, value.shape)) or 'scalar'}"

    count = len(node.inputs)
    ins = ", ".join(operand(value, name) for value, name in zip(node.inputs, names, strict=False))
    written = [operand(value, name) for value, name in zip(node.outputs, names[count:], strict=True)]
    for out, overwritten in alias_of(node):
        written[out] = f"{names[overwritten]} in place"
    name, doc = shown_name(node), form_doc(node.op, node.attrs)
    return f"/* {name}: {ins} -> {', '.join(written)}. {doc} */\n"
