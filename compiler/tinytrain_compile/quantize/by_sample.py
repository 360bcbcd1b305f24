"""Float gradients in an int8 graph: added up sample by sample, so that sums are the same bits for every micro-batch.

Float sums depend on their order. The one node that sums a parameter's gradient over the samples is repeated for each,
on its part of the operands, and each result is added to the running sum as it is with one sample at a time. But a
gradient with samples in a subspace (of a low-rank copy) has no part that is of one sample.
"""

from __future__ import annotations

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.names import operand, operands, result
from tinytrain_compile.ops.shape import ReshapeAttrs, SliceAttrs
from tinytrain_compile.ops.subspace import ModeAttrs
from tinytrain_compile.quantize.state import Rewriter


def sum_by_sample(rewriter: Rewriter, node: Node) -> bool:
    """Emit an Accumulate of a float gradient as one for every sample, where a step has several."""
    count, source = rewriter.train.micro_batch, rewriter.producers.get(operand(node, "g").name)
    while source is not None and source.op == "Reshape":
        source = rewriter.producers.get(operand(source, "x").name)
    if count == 1 or source is None or not op_def(source.op).samples.sums(source.attrs):
        return False
    if any(_in_subspace(rewriter, value) for value in operands(source).several("dy?")):
        return False
    total = operand(node, "acc")
    whole = [rewriter.as_float(value, node) for value in source.inputs]
    for index in range(count):
        parts = [_part(rewriter, value, index, count, node) for value in whole]
        (gradient,) = rewriter.emit(source.op, parts, source.attrs, node)
        if gradient.shape != total.shape:
            (gradient,) = rewriter.emit("Reshape", (gradient,), ReshapeAttrs(total.shape), node)
        (total,) = rewriter.emit(node.op, (total, gradient), node.attrs, node)
    rewriter.forms[result(node, "acc").name] = total
    return True


def _part(rewriter: Rewriter, value: Value, index: int, count: int, like: Node) -> Value:
    """One sample's part of a tensor."""
    rows, rank = value.shape[0] // count, len(value.shape)
    starts, sizes = (index * rows, *(0,) * (rank - 1)), (rows, *value.shape[1:])
    (part,) = rewriter.emit("Slice", (value,), SliceAttrs(starts, (1,) * rank, sizes), like)
    return part


def _in_subspace(rewriter: Rewriter, value: Value) -> bool:
    """Whether the samples of a value are in a subspace."""
    source = rewriter.producers.get(value.name)
    while source is not None and isinstance(source.attrs, ModeAttrs):
        if source.attrs.axis == 0 and not source.attrs.expand:
            return True
        source = rewriter.producers.get(operand(source, "x").name)
    return False
