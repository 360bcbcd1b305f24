"""Integer updates of what is not a convolution weight: biases, sums, exponents, noise."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.intrinsics.columns import sum_columns
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    Schedule,
    address,
    call_int,
    channel_rows,
    flat_tensor,
    i32,
    kernel,
    plain,
    reduce_axes,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.conv import FRACTION_BITS, SCALE, moved_weight, step
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.int8.conv import QWeightApplyAttrs
from tinytrain_compile.ops.int8.rows import RowSumAttrs
from tinytrain_compile.ops.int8.update import ExponentAttrs
from tinytrain_compile.ops.names import operand

CHANNEL_TILE = 4
"""Channels of an error that are summed together."""


def error_sums(g: te.Tensor, finish: Callable[[Expr, Expr], Expr]) -> tuple[te.Tensor, Schedule]:
    """(out, schedule) of out[c] = finish(sum of g over all pixels, c); g is (pixels, channels)."""
    pixels, channels = (int(d) for d in g.shape)
    (k,) = reduce_axes(pixels)
    acc = te.compute((channels,), lambda c: total(i32(g[k, c]), [k]), "acc")
    out = te.compute((channels,), lambda c: finish(acc[c], c), "out")
    if channels % CHANNEL_TILE == 0 and pixels > 1:
        return out, lambda sch: _column_sums(sch, pixels, channels)
    tiles = {0: best_tile(channels, CHANNEL_TILE)}
    return out, lambda sch: tile_reduction(sch, tiles)


def _column_sums(sch: s_tir.Schedule, pixels: int, channels: int) -> None:
    """The sums of four channels over all pixels are one helper call."""
    acc, (channel,) = sch.get_sblock("acc"), sch.get_loops(sch.get_sblock("out"))
    four, one = sch.split(channel, [None, CHANNEL_TILE])
    sch.unroll(one)
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, four, preserve_unit_loops=True)
    _, own, pixel = sch.get_loops(acc)
    sch.reorder(pixel, own)
    sch.unroll(sch.get_loops(sch.decompose_reduction(acc, pixel))[-1])
    sch.tensorize(pixel, sum_columns(pixels, channels))


def _pixels(node: Node) -> te.Tensor:
    *pixels, channels = operand(node, "g").shape
    return tensor(node, "g", (math.prod(pixels), channels))


def _moved_bias(bias: Expr, summed: Expr, scale: list[te.Tensor], channel: Expr) -> Expr:
    return call_int("tt_moved_bias", bias, summed, *step(scale, channel, 0))


@kernel("QBiasUpdate")
def qbias_update(node: Node, _context: KernelContext) -> KernelSpec:
    """The sums of g over all pixels, then the step."""
    bias, g, scale = tensor(node, "bias"), _pixels(node), tensors(node, *SCALE)
    multiplier, shift, rate, p = scale

    def moved(acc: Expr, c: Expr) -> Expr:
        own = (bias[c], acc, multiplier[c], i32(shift[c]))
        return call_int("tt_stepped_bias", *own, address(rate), address(p))

    out, schedule = error_sums(g, moved)
    return KernelSpec([bias, g, *scale], [out], schedule)


@kernel("QBiasSum")
def qbias_sum(node: Node, _context: KernelContext) -> KernelSpec:
    """The sums of g over all pixels, added to the running sum."""
    summed, g = tensor(node, "sum"), _pixels(node)
    out, schedule = error_sums(g, lambda acc, c: call_int("tt_add", summed[c], acc))
    return KernelSpec([summed, g], [out], schedule)


@kernel("QBiasApply")
def qbias_apply(node: Node, _context: KernelContext) -> KernelSpec:
    """The step of a running sum."""
    bias, summed, *scale = tensors(node, "bias", "sum", *SCALE)
    out = te.compute(bias.shape, lambda c: _moved_bias(bias[c], summed[c], scale, c), "out")
    return KernelSpec([bias, summed, *scale], [out], plain)


@kernel("QSumAdd")
def qsum_add(node: Node, _context: KernelContext) -> KernelSpec:
    """One sample's sum over rows, added to the running sum."""
    attrs, running = node.attrs, operand(node, "sum")
    assert isinstance(attrs, RowSumAttrs)
    if not attrs.by_rows:
        known, more = flat_tensor(node, "sum"), flat_tensor(node, "rows")
        out = te.compute(known.shape, lambda i: call_int("tt_add", known[i], more[i]), "out")
        return KernelSpec([known, more], [out], plain)
    known = tensor(node, "sum", channel_rows(running))
    rows, gradient = _as_weight(node, "rows", running, attrs.by_rows)
    out = te.compute(known.shape, lambda o, i: call_int("tt_add", known[o, i], gradient(o, i)), "out")
    return KernelSpec([known, rows], [out], plain)


def summed_weight(node: Node) -> tuple[te.Tensor, Callable[[Expr, Expr], Expr]]:
    """The sum of a weight's gradients, and what belongs to an element: by output channel and place behind that."""
    attrs = node.attrs
    assert isinstance(attrs, QWeightApplyAttrs)
    return _as_weight(node, "sum", operand(node, "w"), attrs.by_rows)


def _as_weight(node: Node, name: str, weight: Value, by_rows: bool) -> tuple[te.Tensor, Callable[[Expr, Expr], Expr]]:
    (outputs, rows, *_), (_, row) = weight.shape, channel_rows(weight)
    if not by_rows:
        summed = tensor(node, name, (outputs, row))
        return summed, lambda o, i: summed[o, i]
    run = row // rows
    turned = tensor(node, name, (rows, outputs, run))
    return turned, lambda o, i: turned[tirx.indexdiv(i, run), o, tirx.indexmod(i, run)]


@kernel("QWeightApply")
def qweight_apply(node: Node, _context: KernelContext) -> KernelSpec:
    """The step of a running sum of weight gradients."""
    attrs = node.attrs
    assert isinstance(attrs, QWeightApplyAttrs)
    channels, row = channel_rows(operand(node, "w"))
    w, (summed, gradient) = tensor(node, "w", (channels, row)), summed_weight(node)
    scale, (noise, salt) = tensors(node, *SCALE), tensors(node, "noise", "salt")

    def element(o: Expr, i: Expr) -> Expr:
        index = o * row + i
        return moved_weight(w[o, i], gradient(o, i), step(scale, o, FRACTION_BITS), noise, salt, index, attrs.limit)

    return KernelSpec([w, summed, *scale, noise, salt], [te.compute(w.shape, element, "out")], plain)


@kernel("ExponentUpdate")
def exponent_update(node: Node, _context: KernelContext) -> KernelSpec:
    """The helper writes the state and returns the cleared peak."""
    attrs = node.attrs
    assert isinstance(attrs, ExponentAttrs)
    state, peak = tensors(node, "state", "peak")
    if operand(node, "state").shape == (3,):
        kept = te.compute((1,), lambda i: call_int("tt_update_stored_exponent", address(state), peak[i]), "out")
        return KernelSpec([state, peak], [None, kept], plain)
    is_float = tirx.const(attrs.float_peak, "bool")
    cleared = te.compute((1,), lambda i: call_int("tt_update_exponent", address(state), peak[i], is_float), "out")
    return KernelSpec([state, peak], [None, cleared], plain)


@kernel("NoiseTick")
def noise_tick(node: Node, _context: KernelContext) -> KernelSpec:
    """One step of the generator."""
    (state,) = tensors(node, "state")
    return KernelSpec([state], [te.compute((1,), lambda i: call_int("tt_next_noise", state[i]), "out")], plain)
