"""Comparisons and what is chosen by them, as sums and products: mostly of losses that a file writes out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.context import ImportContext, Unsupported
from tinytrain_compile.frontend.entries import Entry
from tinytrain_compile.frontend.handler import Handler
from tinytrain_compile.frontend.import_slicing import reduce_over
from tinytrain_compile.frontend.model import OnnxNode
from tinytrain_compile.frontend.operands import broadcast, common_order
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.activation import ClipAttrs

_RAMP = ClipAttrs(0.0, math.inf)


def _together(ctx: ImportContext, node: OnnxNode, entries: tuple[Entry, ...]) -> tuple[Entry, list[Value]]:
    """An entry of the broadcast shape (its value is still missing), and the operands in its order."""
    shape = broadcast(*(entry.shape for entry in entries))
    order = common_order(entries, len(shape))
    return Entry(shape, None, order), [ctx.operand(node, entry, order, len(shape)) for entry in entries]


def _magnitude(ctx: ImportContext, node: OnnxNode, x: Value) -> Value:
    """max(x, 0) + max(-x, 0): exact, and its gradient at 0 is 0."""
    above = ctx.emit(node, "Clip", (x,), _RAMP, "above")
    below = ctx.emit(node, "Clip", (ctx.emit(node, "Neg", (x,), suffix="negative"),), _RAMP, "below")
    return ctx.emit(node, "Add", (above, below), suffix="magnitude")


def _abs(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    assert x.value is not None
    ctx.define(node.output(0), replace(x, value=_magnitude(ctx, node, x.value)))


def _softplus(ctx: ImportContext, node: OnnxNode) -> None:
    """max(x, 0) + log(1 + exp(-|x|)): never overflows."""
    x = ctx.entry(node.input(0))
    assert x.value is not None
    minus = ctx.emit(node, "Neg", (_magnitude(ctx, node, x.value),), suffix="minus")
    small = ctx.emit(node, "Exp", (minus,), suffix="exp")
    more = ctx.emit(node, "Add", (small, ctx.number(node, "one", 1.0)), suffix="more")
    tail = ctx.emit(node, "Log", (more,), suffix="log")
    ramp = ctx.emit(node, "Clip", (x.value,), _RAMP, "ramp")
    ctx.define(node.output(0), replace(x, value=ctx.emit(node, "Add", (ramp, tail))))


def _compare(ctx: ImportContext, node: OnnxNode) -> None:
    """1 where it holds, else 0."""
    entries = tuple(ctx.entry(name) for name in node.inputs)
    y, (a, b) = _together(ctx, node, entries)
    swapped, denied = node.op in ("Greater", "LessOrEqual"), node.op.endswith("OrEqual")
    less = ctx.emit(node, "Less", (b, a) if swapped else (a, b))
    ctx.define(node.output(0), replace(y, value=_denied(ctx, node, less) if denied else less))
    ctx.truths.add(node.output(0))


def _denied(ctx: ImportContext, node: OnnxNode, truth: Value) -> Value:
    return ctx.emit(node, "Sub", (ctx.number(node, "one", 1.0), truth), suffix="not")


def _not(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    assert x.value is not None
    ctx.define(node.output(0), replace(x, value=_denied(ctx, node, x.value)))
    ctx.truths.add(node.output(0))


def _where(ctx: ImportContext, node: OnnxNode) -> None:
    """c a + (1 - c) b, for c of a comparison."""
    entries = tuple(ctx.entry(name) for name in node.inputs)
    truth = entries[0]
    if truth.is_constant:
        entries = (replace(truth, array=truth.data.astype(np.float32), origin=None), *entries[1:])
    elif node.input(0) not in ctx.truths:
        raise Unsupported("condition", "it is no comparison", "Less, Greater, or a constant mask")
    y, (c, a, b) = _together(ctx, node, entries)
    first = ctx.emit(node, "Mul", (c, a), suffix="true")
    second = ctx.emit(node, "Mul", (_denied(ctx, node, c), b), suffix="false")
    ctx.define(node.output(0), replace(y, value=ctx.emit(node, "Add", (first, second))))


def _extreme(ctx: ImportContext, node: OnnxNode) -> None:
    """The larger, or the smaller, of two by a comparison: exactly one of them."""
    if len(node.inputs) != 2:
        raise Unsupported("inputs", f"there are {len(node.inputs)}", "several of two operands each")
    entries = tuple(ctx.entry(name) for name in node.inputs)
    y, (a, b) = _together(ctx, node, entries)
    first = ctx.emit(node, "Less", (b, a) if node.op == "Max" else (a, b), suffix="first")
    one = ctx.emit(node, "Mul", (first, a), suffix="a")
    other = ctx.emit(node, "Mul", (_denied(ctx, node, first), b), suffix="b")
    ctx.define(node.output(0), replace(y, value=ctx.emit(node, "Add", (one, other))))


def _sum(ctx: ImportContext, node: OnnxNode) -> None:
    entries = tuple(ctx.entry(name) for name in node.inputs)
    y, (total, *others) = _together(ctx, node, entries)
    for index, value in enumerate(others):
        total = ctx.emit(node, "Add", (total, value), suffix="" if index == 0 else str(index))
    if not others:
        raise Unsupported("inputs", "there is one", "Identity")
    ctx.define(node.output(0), replace(y, value=total))


def _norm(ctx: ImportContext, node: OnnxNode) -> None:
    """Sums of squares or of magnitudes, and the root of the first."""
    x = ctx.entry(node.input(0))
    assert x.value is not None
    if node.op == "ReduceL1":
        term = _magnitude(ctx, node, x.value)
    else:
        term = ctx.emit(node, "Mul", (x.value, x.value), suffix="square")
    y = reduce_over(ctx, node, replace(x, value=term), mean=False)
    if node.op == "ReduceL2":
        assert y.value is not None
        y = replace(y, value=ctx.emit(node, "Sqrt", (y.value,), suffix="root"))
    ctx.define(node.output(0), y)


HANDLERS: Mapping[str, Handler] = {
    "Abs": _abs,
    "Softplus": _softplus,
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _compare),
    "Not": _not,
    "Where": _where,
    "Max": _extreme,
    "Min": _extreme,
    "Sum": _sum,
    **dict.fromkeys(("ReduceSumSquare", "ReduceL1", "ReduceL2"), _norm),
}
