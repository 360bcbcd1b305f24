"""Integer kernels that work element by element: sums and rescaling of activations and errors, borders of float
regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Attrs, Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    address,
    call,
    call_int,
    f32,
    flat_tensor,
    i32,
    kernel,
    numbers,
    pixel_rows,
    plain,
    reduce_axes,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import LOW_REGISTERS, KernelContext
from tinytrain_compile.lower.kernels.float32.elementwise import packed
from tinytrain_compile.lower.kernels.int8.operands import (
    Centred,
    Keep,
    kept_factors,
    kept_here,
    mask_operand,
    passes,
    saturated,
)
from tinytrain_compile.lower.schedules import best_tile, keep_tables, tile_reduction
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.pointwise import (
    ADD_BITS,
    LIFT,
    SUM_BITS,
    ErrorAttrs,
    ErrorUnitAttrs,
    QAddAttrs,
    QRescaleAttrs,
    QuantAttrs,
)
from tinytrain_compile.ops.names import attrs_of, operand, result

Side = tuple[Callable[[Expr], Expr], tuple[Expr, Expr]]
"""Elements of an operand of a sum, and the factor of each: multiplier and shift."""
CHANNEL_TILE = 4
"""Channels that are summed together by a mean."""


def _inverse(value: float) -> Expr:
    return f32(float(np.float32(1.0 / value)))


def _map(node: Node, name: str, function: Callable[[Expr], Expr]) -> KernelSpec:
    """Return a kernel from one operand to an output with as many elements."""
    x = flat_tensor(node, name)
    return KernelSpec([x], [te.compute(x.shape, lambda i: function(x[i]), "out")], plain)


UPPER = 32 - 31 + ADD_BITS
"""Bits by which a centred operand is lifted for the upper half of its product with a multiplier, minus its shift."""


def upper_half(zero: int, factor: tuple[int, int]) -> int | None:
    """Return the left shift with which one rounding equals the two of a QAdd operand's factor, for every int8.

    One rounding: the upper half of the product with the multiplier. None: there is no such shift.
    """
    (multiplier, shift), centred = factor, np.arange(-128, 128, dtype=np.int64) - zero
    if not 0 <= UPPER + shift <= LIFT + 6 or multiplier == 0:
        return None
    once = ((centred << (UPPER + shift)) * multiplier + (1 << 31)) >> 32
    twice = fx.requantise(centred << ADD_BITS, multiplier, shift)
    return UPPER + shift if np.array_equal(once, twice) else None


@dataclass(frozen=True)
class AddForm(Attrs):
    """A QAdd as its kernel computes it: x scale + offset of each operand, times its factor.

    upper: the factor is the upper half of one product. below_one: no factor shifts to the left.
    """

    upper: bool
    below_one: bool
    above: bool
    a_scale: int
    a_offset: int
    a_multiplier: int
    a_shift: int
    b_scale: int
    b_offset: int
    b_multiplier: int
    b_shift: int
    y_zero: int
    low: int
    high: int


def add_form(attrs: QAddAttrs, dsp: bool) -> AddForm:
    """Return the form of a QAdd on such a core."""
    below_one = attrs.a_factor[1] <= 0 and attrs.b_factor[1] <= 0
    sides = ((attrs.a_zero, attrs.a_factor), (attrs.b_zero, attrs.b_factor))
    lifts = [upper_half(zero, factor) for zero, factor in sides] if dsp and below_one and not attrs.above else []
    upper = bool(lifts) and None not in lifts
    scales = [1 << ((lifts[place] or 0) if upper else ADD_BITS) for place in range(2)]
    offsets = [-zero * scale for (zero, _), scale in zip(sides, scales, strict=True)]
    a, b = ((factor[0], 0 if upper else factor[1]) for _, factor in sides)
    own, other = (scales[0], offsets[0], *a), (scales[1], offsets[1], *b)
    return AddForm(upper, below_one, attrs.above, *own, *other, attrs.y_zero, attrs.low, attrs.high)


@numbers("QAdd")
def add_numbers(node: Node, context: KernelContext) -> tuple[Node, tuple[str, ...]]:
    """Return zero points and multipliers, which are in registers. A shift that is a variable costs instructions.

    On vectors, and with few registers, every number does (4x4x96 2 a vector on Helium, 4 an element on Armv6-M).
    """
    if context.uses_vectors or context.isa.gpr <= LOW_REGISTERS:
        return node, ()
    own = replace(node, attrs=add_form(attrs_of(node, QAddAttrs), context.isa.dsp))
    return own, ("a_offset", "a_multiplier", "b_offset", "b_multiplier", "y_zero")


def form_of(node: Node, dsp: bool) -> AddForm:
    """Return the form of a QAdd, which may be in it already."""
    return node.attrs if isinstance(node.attrs, AddForm) else add_form(attrs_of(node, QAddAttrs), dsp)


def centred_sides(node: Node, form: AddForm) -> tuple[list[te.Tensor], list[Side]]:
    """Return the operands, and for each its (centred elements, factor)."""
    a, b = flat_tensor(node, "a"), flat_tensor(node, "b")

    def lifted(x: te.Tensor, scale: int, offset: int) -> Callable[[Expr], Expr]:
        return lambda i: i32(x[i]) * i32(scale) + i32(offset)

    return [a, b], [
        (lifted(a, form.a_scale, form.a_offset), (i32(form.a_multiplier), i32(form.a_shift))),
        (lifted(b, form.b_scale, form.b_offset), (i32(form.b_multiplier), i32(form.b_shift))),
    ]


@kernel("QAdd")
def qadd(node: Node, context: KernelContext) -> KernelSpec:
    """Compute both operands at 8 bits of fraction on the output's scale; a saturated sum is far outside int8 anyway."""
    form = form_of(node, context.isa.dsp)
    operands, sides = centred_sides(node, form)
    limits = (i32(form.y_zero), i32(form.low), i32(form.high))

    def sum_at(i: Expr) -> Expr:
        """Sum both operands with one multiply-add each, which rounds the same."""
        acc = i32(0)
        for centred, (multiplier, _) in sides:
            acc = call_int("tt_upper", acc, centred(i), multiplier)
        return acc

    def element(i: Expr) -> Expr:
        if form.upper:
            return call_int("tt_halve8", sum_at(i), i32(SUM_BITS), *limits, dtype="int8")
        left, right = (
            call_int("tt_rescale" if isinstance(factor[0], tirx.IntImm) else "tt_rescale_by", centred(i), *factor)
            for centred, factor in sides
        )  # the compiler must know that a multiplier from a table is not 0
        if form.below_one and not form.above:  # operands are below 2^28, so the sum is below 2^29
            return call_int("tt_halve8", left + right, i32(SUM_BITS), *limits, dtype="int8")
        halve = "tt_halve_above" if form.above else "tt_halve"
        total_ = call_int(halve, call_int("tt_quick_add", left, right), i32(SUM_BITS))
        return call_int("tt_saturate8", total_, *limits, dtype="int8")

    return KernelSpec(operands, [te.compute(operands[0].shape, element, "out")], plain)


@kernel("QRescale")
def qrescale(node: Node, _context: KernelContext) -> KernelSpec:
    """Rescale element by element, or sums over axes."""
    attrs = attrs_of(node, QRescaleAttrs)

    def finish(acc: Expr) -> Expr:
        rescale = "tt_rescale_above" if attrs.above else "tt_rescale"
        scaled = call_int(rescale, acc * i32(1 << attrs.lift), i32(attrs.factor[0]), i32(attrs.factor[1]))
        return saturated(scaled, attrs.y_zero, attrs.low, attrs.high)

    if not attrs.axes:
        x = flat_tensor(node, "x")
        data = Centred(x, attrs.x_zero)
        return KernelSpec([x], [te.compute(x.shape, lambda i: finish(data[i]), "out")], plain)
    x, image, shape = tensor(node, "x"), operand(node, "x").shape, result(node, "y").shape
    data, summed = Centred(x, attrs.x_zero), sorted(attrs.axes)
    reductions = reduce_axes(*(image[axis] for axis in summed))

    def term(*index: Expr) -> Expr:
        place = list(index)
        for axis, reduction in zip(summed, reductions, strict=True):
            place[axis] = reduction
        return total(data[tuple(place)], reductions)

    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda *i: finish(acc(*i)), "out")
    tiles = {len(shape) - 1: best_tile(shape[-1], CHANNEL_TILE)}
    return KernelSpec([x], [out], lambda sch: tile_reduction(sch, tiles))


# ---- errors ---------------------------------------------------------------------------------------------------------


@kernel("ErrorScale")
def error_scale(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute an error in another unit per channel, and another exponent."""
    attrs = attrs_of(node, ErrorAttrs)
    shape = pixel_rows(operand(node, "e"))
    peak, p_out, p_in, multiplier, shift = tensors(node, "peak", "p_out", "p_in", "multiplier", "shift")
    e = tensor(node, "e", shape)
    masks, keep = mask_operand(node, attrs.mask, shape)

    factor, stages = kept_factors(multiplier, lambda c: i32(shift[c]) + p_in[0] - p_out[0] - i32(LIFT))

    def element(i: Expr, c: Expr) -> Expr:
        operands = (kept_here(keep, (i, c)), i32(e[i, c]) * i32(1 << LIFT), *factor(c), address(peak))
        return call_int("tt_rescaled_error", *operands, dtype="int8")

    def schedule(sch: s_tir.Schedule) -> None:
        i, c = sch.get_loops(sch.get_sblock("out"))
        sch.reorder(c, i)
        keep_tables(sch, stages, c, 1)

    out = te.compute(shape, element, "out")
    return KernelSpec([peak, p_out, p_in, e, multiplier, shift, *masks], [out, None], schedule)


@kernel("ErrorAdd")
def error_add(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute the sum of two errors with exponents of their own."""
    mask = mask_operand(node, attrs_of(node, ErrorAttrs).mask, (operand(node, "a").elements,))
    return summed_errors(node, mask, "", keep_tables)


def summed_errors(
    node: Node,
    mask: tuple[list[te.Tensor], Keep | None],
    lanes: str,
    schedule: Callable[[s_tir.Schedule, Sequence[te.Tensor]], None],
) -> KernelSpec:
    """Compute an ErrorAdd with the helpers with this suffix ("_x4": for four elements); schedule: (.., tables to
    keep)."""
    peak, p_out, p_a, p_b = tensors(node, "peak", "p_out", "p_a", "p_b")
    (a, b), (masks, keep) = (flat_tensor(node, "a"), flat_tensor(node, "b")), mask

    def lift(p: te.Tensor, name: str) -> te.Tensor:
        return te.compute((1,), lambda _i: call_int("tt_lift", p[0] - p_out[0]), name)

    lifts = [lift(p_a, "lift_a"), lift(p_b, "lift_b")]

    def element(i: Expr) -> Expr:
        operands = zip((a, b), (p_a, p_b), lifts, strict=True)
        left, right = (call_int(f"tt_lifted{lanes}", i32(e[i]), p[0] - p_out[0], up[0]) for e, p, up in operands)
        summed = (kept_here(keep, (i,)), left + right, i32(SUM_BITS), address(peak))
        return call_int(f"tt_summed_error{lanes}", *summed, dtype="int8")

    out = te.compute(a.shape, element, "out")
    return KernelSpec([peak, p_out, p_a, p_b, a, b, *masks], [out, None], lambda sch: schedule(sch, lifts))


# ---- borders of float regions ---------------------------------------------------------------------------------------


@kernel("Quantize")
def quantise(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute round(x / scale) + zero, clamped."""
    attrs = attrs_of(node, QuantAttrs)
    rest = (_inverse(attrs.scale), i32(attrs.zero), i32(attrs.low), i32(attrs.high))
    return _map(node, "x", lambda x: call_int("tt_quantise", x, *rest, dtype="int8"))


@kernel("Dequantize")
def dequantise(node: Node, context: KernelContext) -> KernelSpec:
    """Compute (q - zero) scale; without an FPU the float32 is made of integers (the product rounds once either way)."""
    attrs = attrs_of(node, QuantAttrs)
    if not context.isa.fpu and 2.0**-126 <= attrs.scale <= 2.0**118:
        scale = [i32(part) for part in fx.split_factor(float(np.float32(attrs.scale)))]
        return _map(node, "q", lambda q: call("tt_scaled_float", i32(q) - i32(attrs.zero), *scale))
    return _map(node, "q", lambda q: (i32(q) - i32(attrs.zero)).astype("float32") * f32(attrs.scale))


@kernel("QuantizeError")
def quantise_error(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute round(g / (unit 2**p)); the peak gathers magnitudes as float bits."""
    attrs = attrs_of(node, ErrorUnitAttrs)
    peak, p_out = tensors(node, "peak", "p_out")
    g = flat_tensor(node, "g")

    def element(i: Expr) -> Expr:
        factor, edge = call("tt_exponent_factor", i32(0) - p_out[0]), call_int("tt_error_edge", p_out[0])
        return call_int("tt_quantise_error", g[i], _inverse(attrs.unit), factor, edge, address(peak), dtype="int8")

    return KernelSpec([peak, p_out, g], [te.compute(g.shape, element, "out"), None], plain)


@kernel("DequantizeError")
def dequantise_error(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute e 2**p unit."""
    attrs = attrs_of(node, ErrorUnitAttrs)
    (p,), e = tensors(node, "p"), flat_tensor(node, "e")

    def element(i: Expr) -> Expr:
        return e[i].astype("float32") * call("tt_exponent_factor", p[0]) * f32(attrs.unit)

    return KernelSpec([p, e], [te.compute(e.shape, element, "out")], plain)


@kernel("QClipMask")
def clip_mask(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute a bit for every element that the clamp to int8 did not change."""
    attrs = attrs_of(node, MaskAttrs)
    limits = (i32(attrs.low), i32(attrs.high))
    return packed(node, lambda y: passes(y, attrs), lambda y: call_int("tt_passed8", y, *limits, dtype="uint8"))
