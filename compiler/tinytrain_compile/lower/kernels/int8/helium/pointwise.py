"""Elementwise integer kernels, four elements at a time on vectors: equal to int8/pointwise.py and int8/update.py.

They are for operands of whole vectors; others keep the kernels of those files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import s_tir, te
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Finish,
    Index,
    KernelSpec,
    Schedule,
    call_int,
    called,
    channel_rows,
    first,
    flat_tensor,
    i32,
    left_over,
    pixel_rows,
    placeholder,
    plain,
    reduce_axes,
    tensor,
    tensors,
    total,
    vector_kernel,
    written,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.helium.conv import ErrorEnd, mask_lanes
from tinytrain_compile.lower.kernels.int8.helium.gradients import any_update
from tinytrain_compile.lower.kernels.int8.operands import Centred
from tinytrain_compile.lower.kernels.int8.pointwise import AddForm, centred_sides, form_of, summed_errors
from tinytrain_compile.lower.kernels.int8.steps import kept_steps
from tinytrain_compile.lower.schedules import keep_tables
from tinytrain_compile.ops.int8.conv_form import is_rank_one
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.pointwise import LIFT, SUM_BITS, ErrorAttrs, QRescaleAttrs
from tinytrain_compile.ops.int8.update import SCALE, QBiasUpdateAttrs, QSumAttrs, QUpdateAttrs
from tinytrain_compile.ops.names import attrs_of, operand, result

MOST_VECTORS = 4
"""Most vectors of channels whose sums are in registers together."""


def is_ragged(elements: Index, lanes: int = LANES) -> bool:
    """Tell whether elements do not fill whole vectors; a number not known yet is a number of rows of whole vectors."""
    return left_over(elements, lanes) > 0


def _each_four(sch: s_tir.Schedule, name: str = "out") -> None:
    """Make the last loop of a stage a loop over vectors."""
    _, lane = sch.split(sch.get_loops(sch.get_sblock(name))[-1], [None, LANES])
    sch.vectorize(lane)


def _rescaled(value: Expr, factor: tuple[int, int]) -> Expr:
    return call_int("tt_rescale_x4", value, i32(factor[0]), i32(factor[1]))


def _saturated(value: Expr, attrs: AddForm | QRescaleAttrs) -> Expr:
    return call_int("tt_saturate8_x4", value, i32(attrs.y_zero), i32(attrs.low), i32(attrs.high), dtype="int8")


# ---- activations ----------------------------------------------------------------------------------------------------


@vector_kernel("QAdd")
def vector_add(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compute both operands at 8 bits of fraction on the output's scale."""
    if is_ragged(result(node, "y").elements):
        return None
    form = form_of(node, dsp=False)
    operands, sides = centred_sides(node, form)

    def element(i: Expr) -> Expr:
        left, right = (call_int("tt_rescale_x4", centred(i), *factor) for centred, factor in sides)
        halve = "tt_halve_above_x4" if form.above else "tt_halve_x4"
        halved = call_int(halve, call_int("tt_add_x4", left, right), i32(SUM_BITS))
        return _saturated(halved, form)

    return KernelSpec(operands, [te.compute(operands[0].shape, element, "out")], _each_four)


@vector_kernel("QRescale")
def vector_rescale(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Rescale element by element, or the sums of each channel."""
    attrs, shape = attrs_of(node, QRescaleAttrs), operand(node, "x").shape
    if attrs.above or is_ragged(result(node, "y").elements):
        return None
    if attrs.axes:
        return _mean(node, attrs) if math.prod(shape[:-1]) == math.prod(shape[a] for a in attrs.axes) else None
    x = flat_tensor(node, "x")

    def element(i: Expr) -> Expr:
        return _saturated(_rescaled(Centred(x, attrs.x_zero)[i] * i32(1 << attrs.lift), attrs.factor), attrs)

    return KernelSpec([x], [te.compute(x.shape, element, "out")], _each_four)


def _mean(node: Node, attrs: QRescaleAttrs) -> KernelSpec | None:
    """Compute sums over all pixels; the zero point is subtracted from a whole sum."""
    pixels, channels = pixel_rows(operand(node, "x"))
    if len(operand(node, "x").shape) - 1 in attrs.axes or channels % LANES:
        return None
    x = tensor(node, "x", (pixels, channels))

    def finish(acc: Expr, _channel: Expr) -> Expr:
        return _saturated(_rescaled((acc - i32(pixels * attrs.x_zero)) * i32(1 << attrs.lift), attrs.factor), attrs)

    out, schedule = _channel_sums(x, finish)
    return KernelSpec([x], [out], schedule)


@vector_kernel("QClipMask")
def vector_clip_mask(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compare sixteen elements together."""
    attrs, count = attrs_of(node, MaskAttrs), operand(node, "y").elements
    if is_ragged(count, 8):
        return None
    y = flat_tensor(node, "y")

    def bits(mask: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called("tt_passed_bits8", first(mask), first(given[0]), i32(attrs.low), i32(attrs.high), i32(count))

    return KernelSpec([y], [written([y], (result(node, "mask").size_bytes,), "uint8", bits)], plain)


# ---- errors ---------------------------------------------------------------------------------------------------------


@vector_kernel("ErrorScale")
def vector_error_scale(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compute an error in another unit for each of four channels, and another exponent."""
    attrs, shape = attrs_of(node, ErrorAttrs), pixel_rows(operand(node, "e"))
    if shape[1] % LANES:
        return None
    masks, keep = mask_lanes(node, attrs.mask, shape)
    error, e = ErrorEnd(node, keep, "tt_clamp_x4", LIFT), tensor(node, "e", shape)

    def schedule(sch: s_tir.Schedule) -> None:
        row, channel = sch.get_loops(sch.get_sblock("out"))
        channel, lane = sch.split(channel, [None, LANES])
        sch.reorder(channel, row, lane)
        for table in error.kept:
            block = sch.get_sblock(str(table.op.name))
            sch.set_scope(block, 0, "local")
            sch.compute_at(block, channel, preserve_unit_loops=True)
            sch.vectorize(sch.get_loops(block)[-1])
        sch.vectorize(lane)

    out = te.compute(shape, lambda *i: error.finish(i32(e[i]) * i32(1 << LIFT), *i), "out")
    return KernelSpec([*error.exponents, e, *error.factor, *masks], [out, None], schedule)


@vector_kernel("ErrorAdd")
def vector_error_add(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compute the sum of two errors with exponents of their own."""
    shape = (operand(node, "a").elements,)
    if is_ragged(shape[0]):
        return None

    def schedule(sch: s_tir.Schedule, lifts: Sequence[te.Tensor]) -> None:
        keep_tables(sch, lifts)
        _each_four(sch)

    return summed_errors(node, mask_lanes(node, attrs_of(node, ErrorAttrs).mask, shape), "_x4", schedule)


# ---- updates --------------------------------------------------------------------------------------------------------


@vector_kernel("QBiasUpdate")
def vector_bias_update(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compute the step of a bias by an error."""
    return None if node.attrs == QBiasUpdateAttrs(summed=True) else _vector_bias(node)


@vector_kernel("QSum")
def vector_sum(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compute a running sum of gradients of products or errors."""
    attrs = attrs_of(node, QSumAttrs)
    if attrs.of == "product":
        return any_update(node, attrs)
    return _vector_bias(node) if attrs == QSumAttrs("errors") else None


@vector_kernel("QUpdate")
def vector_weight_update(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compute the step of a weight by the gradient of a product, or by a sum if noise rounds it, without momentum."""
    attrs = attrs_of(node, QUpdateAttrs)
    if attrs.gradient == "product":
        return None if is_rank_one(node) else any_update(node, attrs)
    plain = not (attrs.momentum or attrs.squares or attrs.fine or attrs.gradient == "float")
    return _vector_apply(node, attrs) if plain else None


def _vector_bias(node: Node) -> KernelSpec | None:
    """Compute the sums of g over all pixels, a few vectors of channels at a time; then the step, or a running sum."""
    pixels, channels = pixel_rows(operand(node, "g"))
    if channels % LANES:
        return None
    steps = node.op == "QBiasUpdate"
    old, g = placeholder(node.inputs[0], "bias"), tensor(node, "g", (pixels, channels))
    operands: Sequence[te.Tensor] = tensors(node, *SCALE) if steps else ()

    def finish(acc: Expr, c: Expr) -> Expr:
        if not operands:
            return call_int("tt_add_x4", old[c], acc)
        multiplier, shift, rate, p = operands
        factor = call_int("tt_high_multiply_x4", multiplier[c], rate[0])
        return call_int("tt_moved_bias_x4", old[c], acc, factor, i32(shift[c]) + (rate[1] + p[0] - i32(31)))

    out, schedule = _channel_sums(g, finish)
    return KernelSpec([old, g, *operands], [out], schedule)


def _channel_sums(g: te.Tensor, finish: Finish) -> tuple[te.Tensor, Schedule]:
    """Return out[c] = finish(sum over rows of g[row, c], c)."""
    rows, channels = (int(extent) for extent in g.shape)
    (k,) = reduce_axes(rows)
    acc = te.compute((channels,), lambda c: total(i32(g[k, c]), [k]), "acc")
    vectors = max(count for count in range(1, MOST_VECTORS + 1) if channels % (count * LANES) == 0)

    def schedule(sch: s_tir.Schedule) -> None:
        part, vector, lane = sch.split(sch.get_loops(sch.get_sblock("out"))[0], [None, vectors, LANES])
        block = sch.get_sblock("acc")
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, part, preserve_unit_loops=True)
        own, row = sch.get_loops(block)[1:]
        own, own_lane = sch.split(own, [None, LANES])
        sch.reorder(row, own, own_lane)
        sch.vectorize(own_lane)  # while its block is still known to be a sum
        start = sch.get_loops(sch.decompose_reduction(block, row))
        for loop in (start[1], own, vector):
            sch.unroll(loop)
        for loop in (start[2], lane):
            sch.vectorize(loop)

    return te.compute((channels,), lambda c: finish(acc[c], c), "out"), schedule


def _vector_apply(node: Node, attrs: QUpdateAttrs) -> KernelSpec | None:
    """Compute the step of a running sum of weight gradients, four weights of a channel at a time."""
    channels, row = channel_rows(operand(node, "w"))
    if attrs.by_rows or row % LANES:
        return None
    w, summed = (tensor(node, name, (channels, row)) for name in ("w", "sum"))
    scale, (noise, salt) = tensors(node, *SCALE), tensors(node, "noise", "salt")
    size, kept = kept_steps(scale)

    def element(o: Expr, i: Expr) -> Expr:
        random = call_int("tt_noise_x4", noise[0], salt[0], o * row + i)
        moved = (i32(w[o, i]), summed[o, i], *size(o), random, i32(attrs.limit), i32(0))
        return call_int("tt_quick_move_x4", *moved, dtype="int8")

    def schedule(sch: s_tir.Schedule) -> None:
        keep_tables(sch, kept, sch.get_loops(sch.get_sblock("out"))[0], 1)
        _each_four(sch)

    return KernelSpec([w, summed, *scale, noise, salt], [te.compute(w.shape, element, "out")], schedule)
