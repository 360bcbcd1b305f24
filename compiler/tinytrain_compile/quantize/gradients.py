"""Summing and clipping of parameters' gradients before their update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import NO_ATTRS, Node, Phase, Value
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.clip import WORDS
from tinytrain_compile.ops.names import operand, operands, result
from tinytrain_compile.ops.shape import ExpandAttrs, ReshapeAttrs, SliceAttrs
from tinytrain_compile.ops.subspace import ModeAttrs
from tinytrain_compile.quantize.forms import Gradient
from tinytrain_compile.quantize.state import Rewriter


def stored_gradient(rewriter: Rewriter, node: Node, parameter: Value, use: Gradient) -> Value:
    """Return one use's term of the gradient of a parameter, as an int32 tensor of its own."""
    if use.sum.of != "product":
        return rewriter.emit("QSum", use.operands, replace(use.sum, running=False), node)
    zero = rewriter.table("zero", np.zeros((1,) * len(parameter.shape), np.int32))
    return added_gradient(rewriter, node, use, rewriter.emit("Expand", (zero,), ExpandAttrs(parameter.shape), node))


def added_gradient(rewriter: Rewriter, node: Node, use: Gradient, total: Value) -> Value:
    """Return a running sum with one use's term added to it."""
    return rewriter.emit("QSum", (total, *use.operands), use.sum, node)


# ---- float32 gradients, sample by sample ----------------------------------------------------------------------------


def sum_by_sample(rewriter: Rewriter, node: Node) -> Value | None:
    """Emit an Accumulate of a float gradient as one for every sample, if a step has several; else return None.

    Float sums depend on their order, and have to be the same bits for every micro-batch. So the one node that sums a
    parameter's gradient over the samples is repeated for each, on its part of the operands. Each result is added to the
    running sum, as with one sample at a time. But a gradient with samples in a subspace (of a low-rank copy) cannot be
    split by sample.
    """
    count, source = rewriter.train.micro_batch, rewriter.producers.get(operand(node, "g").name)
    while source is not None and isinstance(source.attrs, ReshapeAttrs):
        source = rewriter.producers.get(operand(source, "x").name)
    if count == 1 or source is None or not op_def(source.op).samples.sums(source.attrs):
        return None
    if any(_in_subspace(rewriter, value) for value in operands(source).several("dy?")):
        return None
    total = operand(node, "acc")
    whole = [rewriter.as_float(value, node) for value in source.inputs]
    for index in range(count):
        parts = [_part(rewriter, value, index, count, node) for value in whole]
        gradient = rewriter.emit(source.op, parts, source.attrs, node)
        if gradient.shape != total.shape:
            gradient = rewriter.emit("Reshape", (gradient,), ReshapeAttrs(total.shape), node)
        total = rewriter.emit(node.op, (total, gradient), node.attrs, node)
    return total


def _part(rewriter: Rewriter, value: Value, index: int, count: int, like: Node) -> Value:
    """Return one sample's part of a tensor."""
    rows, rank = value.shape[0] // count, len(value.shape)
    starts, sizes = (index * rows, *(0,) * (rank - 1)), (rows, *value.shape[1:])
    return rewriter.emit("Slice", (value,), SliceAttrs(starts, (1,) * rank, sizes), like)


def _in_subspace(rewriter: Rewriter, value: Value) -> bool:
    """Tell whether the samples of a value are in a subspace."""
    source = rewriter.producers.get(value.name)
    while source is not None and isinstance(source.attrs, ModeAttrs):
        if source.attrs.axis == 0 and not source.attrs.expand:
            return True
        source = rewriter.producers.get(operand(source, "x").name)
    return False


# ---- clipping -------------------------------------------------------------------------------------------------------


class IntegerClipping:
    """Squares of integer gradients, kept until their total is needed. phase: of updates."""

    def __init__(self, train: TrainGraph, rewriter: Rewriter, phase: Phase) -> None:
        self._factors: Mapping[str, Value] = train.clip
        self._r = rewriter
        self._phase: Phase = phase
        self._rates: dict[str, Value] = {}
        self._rows: dict[str, tuple[Value, ...]] = {}
        """Sums of squares by channel, and their factors to real units: (rows, multiplier, shift, p)."""

    @property
    def clips(self) -> bool:
        """True if gradients are clipped."""
        return bool(self._factors)

    def rate(self, node: Node, rate: Value) -> Value:
        """Return the learning rate of an update node, scaled if its gradient is clipped."""
        factor = self._factors.get(operand(node, "w").name)
        if factor is None:
            return rate
        if factor.name not in self._rates:
            known = self._r.as_float(factor, node)
            self._rates[factor.name] = self._r.emit("QClipRate", (rate, known), NO_ATTRS, node, self._phase)
        return self._rates[factor.name]

    def empty_rows(self, node: Node, parameter: Value) -> Value:
        """Return zeros to which an update of the parameter adds its squares."""
        zero = self._r.table("no_squares", np.zeros((1, 1), np.int32))
        attrs = ExpandAttrs((parameter.shape[0], WORDS))
        return self._r.emit("Expand", (zero,), attrs, node, self._phase)

    def keep(self, node: Node, rows: Value, scale: tuple[Value, ...]) -> None:
        """Keep rows that stand for the float ones of a RowSquares node; scale: of the update, see Updates."""
        multiplier, shift, _, p = scale
        self._rows[result(node, "rows").name] = rows, multiplier, shift, p

    def total(self, node: Node) -> Value | None:
        """Emit the integer form of a SquareTotal node, if its rows are integers."""
        known = self._rows.get(operand(node, "rows").name)
        if known is None:
            return None
        total = self._r.as_float(operand(node, "total"), node)
        return self._r.emit("QSquareTotal", (total, *known), node.attrs, node, self._phase)
