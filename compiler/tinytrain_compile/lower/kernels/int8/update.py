"""Kernels of integer updates: the step of a weight or a bias, sums of gradients, momentum, exponents and noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Attrs, Node, Value
from tinytrain_compile.lower.intrinsics.tensor import sum_columns
from tinytrain_compile.lower.kernels.base import (
    Finish,
    KernelSpec,
    Load,
    Schedule,
    address,
    call_int,
    channel_rows,
    flat_tensor,
    i32,
    kernel,
    numbers,
    placeholder,
    plain,
    reduce_axes,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.update import UPDATES, Results, as_it_is
from tinytrain_compile.lower.kernels.int8.dense import copies_maps, dense_update, keeps_tables, weight_gradient
from tinytrain_compile.lower.kernels.int8.steps import (
    FRACTION_BITS,
    flat_index,
    kept_steps,
    moved_fine,
    moved_weight,
    step,
    with_momentum,
    with_squares,
)
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv_form import lying
from tinytrain_compile.ops.int8.exponents import ExponentAttrs
from tinytrain_compile.ops.int8.update import (
    SCALE,
    GradientAddAttrs,
    QBiasUpdateAttrs,
    QMomentumAttrs,
    QSumAttrs,
    QUpdateAttrs,
)
from tinytrain_compile.ops.names import Named, attrs_of, operand, operands, result

CHANNEL_TILE = 4
"""Channels of an error that are summed together: one call of tt_sum_columns."""


# ---- weights --------------------------------------------------------------------------------------------------------


@numbers("QUpdate", "QSum")
def update_numbers(node: Node, context: KernelContext) -> tuple[Node, tuple[str, ...]]:
    """Return the zero point of an image whose maps are copied to scratch."""
    node = lying(node)
    attrs = node.attrs
    kind = attrs.gradient if isinstance(attrs, QUpdateAttrs) else attrs_of(node, QSumAttrs).of
    return node, ("x_zero",) if kind == "product" and not context.uses_vectors and copies_maps(node, context) else ()


@kernel("QUpdate")
def update(node: Node, context: KernelContext) -> KernelSpec:
    """Compute the step of a weight, according to the kind of its gradient."""
    node = lying(node)
    attrs = attrs_of(node, QUpdateAttrs)
    if attrs.gradient == "product":
        return _of_product(node, attrs, context)
    return _of_sum(node, attrs) if attrs.gradient == "sum" else _of_stored_floats(node)


def _of_product(node: Node, attrs: QUpdateAttrs, context: KernelContext) -> KernelSpec:
    """Compute the gradient of a few weights at a time in registers, then their step: the gradient is never stored."""
    if (rank_one := dense_update(node)) is not None:
        return rank_one
    shape, named = operand(node, "w").shape, {"velocity": "v"} | ({} if attrs.momentum else {"fraction": "f"})
    given = {
        name: placeholder(value, named.get(name, name))
        for name, value in operands(node).items()
        if name not in ("x", "g", "rows")
    }
    if attrs.momentum or attrs.fine:
        stages, finish = [], _stepped(given, attrs, shape)
    else:
        finish, stages = _rounded_by_noise(node, attrs, given, context)
    end, rows = with_squares(node, finish)
    x, g, out, schedule = weight_gradient(node, attrs, shape, end, context, stages)
    given |= {"x": x, "g": g} | dict(zip(("rows",), rows, strict=False))
    _, *written = node.outputs
    return KernelSpec([given[name] for name in operands(node)], [out, *(None for _ in written)], schedule)


def _stepped(given: dict[str, te.Tensor], attrs: QUpdateAttrs, shape: tuple[int, ...]) -> Finish:
    """Return the end of the sums of a weight with momentum or fractions."""
    scale, signed = [given[name] for name in SCALE], attrs.momentum == "sign"

    def finish(acc: Expr, *index: Expr) -> Expr:
        w, place = given["w"][index], flat_index(shape, index)
        if attrs.momentum:
            acc = with_momentum(acc, address(given["velocity"], *index), given, (index[0], place), signed)
        size = step(scale, index[0], FRACTION_BITS, signed)
        if attrs.fine:
            return moved_fine(w, address(given["fraction"], *index), acc, size, attrs.limit)
        return moved_weight(w, acc, size, given["noise"], given["salt_of_w"], place, attrs.limit)

    return finish


def _rounded_by_noise(
    node: Node, attrs: QUpdateAttrs, given: dict[str, te.Tensor], context: KernelContext
) -> tuple[Finish, list[te.Tensor]]:
    """Return (the end of the sums of a weight that noise rounds, the stages with numbers per channel)."""
    scale, noise, salt = [given[name] for name in SCALE], given["noise"], given["salt"]
    shape, spare = operand(node, "w").shape, 31 - op_def(node.op).accumulator(node.inputs, attrs).bit_length()
    kept, stages, random, move = None, list[te.Tensor](), (noise, salt), "tt_quick_move"
    if keeps_tables(node, context):
        seed = te.compute((1,), lambda _i: call_int("tt_noise_seed", noise[0], salt[0]), "seed")
        kept, stages = kept_steps(scale, lambda e: call_int("tt_step_down", e, i32(spare)))
        stages, random, move = [*stages, seed], (seed, None), "tt_kept_move"

    def finish(acc: Expr, *index: Expr) -> Expr:
        size = kept(index[0]) if kept else step(scale, index[0], FRACTION_BITS)
        return moved_weight(given["w"][index], acc, size, *random, flat_index(shape, index), attrs.limit, spare, move)

    return finish, stages


def _of_sum(node: Node, attrs: QUpdateAttrs) -> KernelSpec:
    """Compute the step of a running sum of weight gradients."""
    shape = channel_rows(operand(node, "w"))
    w, (summed, gradient) = tensor(node, "w", shape), _as_weight(node, "sum", operand(node, "w"), attrs.by_rows)
    scale = tensors(node, *SCALE)
    if attrs.fine:
        fraction = placeholder(operand(node, "fraction"), "f", shape)

        def fine(o: Expr, i: Expr) -> Expr:
            size = step(scale, o, FRACTION_BITS)
            return moved_fine(w[o, i], address(fraction, o, i), gradient(o, i), size, attrs.limit)

        return KernelSpec([w, summed, *scale, fraction], [te.compute(shape, fine, "out"), None], plain)
    noise, salt = tensors(node, "noise", "salt")

    def element(o: Expr, i: Expr) -> Expr:
        size, index = step(scale, o, FRACTION_BITS), o * shape[1] + i
        return moved_weight(w[o, i], gradient(o, i), size, noise, salt, index, attrs.limit)

    return KernelSpec([w, summed, *scale, noise, salt], [te.compute(shape, element, "out")], plain)


def _as_weight(node: Node, name: str, weight: Value, by_rows: bool) -> tuple[te.Tensor, Callable[[Expr, Expr], Expr]]:
    """Return (the sum of a weight's gradients, a function from output channel and place in it to the element)."""
    (outputs, rows, *_), (_, row) = weight.shape, channel_rows(weight)
    if not by_rows:
        summed = tensor(node, name, (outputs, row))
        return summed, lambda o, i: summed[o, i]
    run = row // rows
    turned = tensor(node, name, (rows, outputs, run))
    return turned, lambda o, i: turned[tirx.indexdiv(i, run), o, tirx.indexmod(i, run)]


# ---- float32 gradients ----------------------------------------------------------------------------------------------


def _rounded(g: Expr) -> Expr:
    return call_int("tt_rounded", g)


def _summed(_op: str, _attrs: Attrs, inputs: Named[te.Tensor], g: Load, _end: Finish) -> Results:
    """Return the running sum plus the gradient."""
    running = inputs["sum"]
    return [te.compute(running.shape, lambda *i: call_int("tt_add", running[i], _rounded(g(*i))), "out")]


def _channel(inputs: Named[te.Tensor], index: tuple[Expr, ...]) -> Expr:
    """Return the output channel of a weight; its first index may count several rows for each channel."""
    rows, channels = int(inputs["w"].shape[0]), int(inputs["multiplier"].shape[0])
    return index[0] if rows == channels else tirx.indexdiv(index[0], rows // channels)


def _updated(_op: str, attrs: Any, inputs: Named[te.Tensor], g: Load, _end: Finish) -> Results:
    """Return the step of a weight, with noise or with fractions, which the helper writes."""
    w, scale = inputs["w"], [inputs[name] for name in SCALE]

    def weight(*i: Expr) -> Expr:
        size, gradient = step(scale, _channel(inputs, i), FRACTION_BITS), _rounded(g(*i))
        if attrs.fine:
            return moved_fine(w[i], address(inputs["fraction"], *i), gradient, size, attrs.limit)
        place = flat_index(tuple(int(extent) for extent in w.shape), i)
        return moved_weight(w[i], gradient, size, inputs["noise"], inputs["salt"], place, attrs.limit)

    return [te.compute(w.shape, weight, "out"), *([None] if attrs.fine else [])]


UPDATES.update(QSum=_summed, QUpdate=_updated)


def _of_stored_floats(node: Node) -> KernelSpec:
    """Compute an update or a sum from a stored float32 gradient, output channel by output channel."""
    rows, whole = channel_rows(node.outputs[0]), {"g", *op_def(node.op).overwritten}

    def given(name: str) -> te.Tensor:
        return tensor(node, name, rows) if name in whole else flat_tensor(node, name)

    inputs = Named(node.op, [*operands(node)], [given(name) for name in operands(node)])
    g = inputs["g"]
    results = UPDATES[node.op](node.op, node.attrs, inputs, lambda *i: g[i], as_it_is)
    return KernelSpec([*inputs.values()], results, plain)


# ---- sums of gradients ----------------------------------------------------------------------------------------------


@kernel("QSum")
def gradient_sum(node: Node, context: KernelContext) -> KernelSpec:
    """Compute the gradient as int32, or added to the running sum."""
    node = lying(node)
    attrs = attrs_of(node, QSumAttrs)
    if attrs.of == "product":
        running = tensor(node, "sum")

        def finish(acc: Expr, *index: Expr) -> Expr:
            return call_int("tt_add", running[index], acc)

        x, g, out, schedule = weight_gradient(node, attrs, operand(node, "sum").shape, finish, context)
        return KernelSpec([running, x, g], [out], schedule)
    if attrs.of == "errors":
        summed, g = tensors(node, "sum?"), _pixels(node)
        out, schedule = error_sums(g, lambda acc, c: call_int("tt_add", summed[0][c], acc) if summed else acc)
        return KernelSpec([*summed, g], [out], schedule)
    if attrs.of == "rows":
        return _sum_of_rows(node, attrs)
    if attrs.running:
        return _of_stored_floats(node)
    g = flat_tensor(node, "g")
    return KernelSpec([g], [te.compute(g.shape, lambda i: _rounded(g[i]), "out")], plain)


def _sum_of_rows(node: Node, attrs: QSumAttrs) -> KernelSpec:
    """Compute one sample's sum over rows, added to the running sum."""
    running = operand(node, "sum")
    if not attrs.by_rows:
        known, more = flat_tensor(node, "sum"), flat_tensor(node, "rows")
        out = te.compute(known.shape, lambda i: call_int("tt_add", known[i], more[i]), "out")
        return KernelSpec([known, more], [out], plain)
    known = tensor(node, "sum", channel_rows(running))
    rows, gradient = _as_weight(node, "rows", running, attrs.by_rows)
    out = te.compute(known.shape, lambda o, i: call_int("tt_add", known[o, i], gradient(o, i)), "out")
    return KernelSpec([known, rows], [out], plain)


def error_sums(g: te.Tensor, finish: Callable[[Expr, Expr], Expr]) -> tuple[te.Tensor, Schedule]:
    """Return (out, schedule) of out[c] = finish(sum of g over all pixels, c); g is (pixels, channels)."""
    pixels, channels = (int(d) for d in g.shape)
    (k,) = reduce_axes(pixels)
    acc = te.compute((channels,), lambda c: total(i32(g[k, c]), [k]), "acc")
    out = te.compute((channels,), lambda c: finish(acc[c], c), "out")
    if channels % CHANNEL_TILE == 0 and pixels > 1:
        return out, lambda sch: _column_sums(sch, pixels, channels)
    tiles = {0: best_tile(channels, CHANNEL_TILE)}
    return out, lambda sch: tile_reduction(sch, tiles)


def _column_sums(sch: s_tir.Schedule, pixels: int, channels: int) -> None:
    """Compute the sums of four channels over all pixels in one helper call."""
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


# ---- biases ---------------------------------------------------------------------------------------------------------


@kernel("QBiasUpdate")
def bias_update(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute the sums of g over all pixels, or a running sum, then the step."""
    attrs = attrs_of(node, QBiasUpdateAttrs)
    bias, scale = tensor(node, "bias"), tensors(node, *SCALE)
    multiplier, shift, rate, p = scale
    if attrs.summed:
        summed = tensor(node, "sum")

        def applied(c: Expr) -> Expr:
            return call_int("tt_moved_bias", bias[c], summed[c], *step(scale, c, 0))

        return KernelSpec([bias, summed, *scale], [te.compute(bias.shape, applied, "out")], plain)

    def moved(acc: Expr, c: Expr) -> Expr:
        own = (bias[c], acc, multiplier[c], i32(shift[c]))
        return call_int("tt_stepped_bias", *own, address(rate), address(p))

    g = _pixels(node)
    out, schedule = error_sums(g, moved)
    return KernelSpec([bias, g, *scale], [out], schedule)


# ---- momentum -------------------------------------------------------------------------------------------------------


@kernel("QMomentum")
def momentum(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one element at a time: the helper writes velocity and peak, and returns the number for the step."""
    attrs = attrs_of(node, QMomentumAttrs)
    channels, row = channel_rows(operand(node, "sum"))
    summed = tensor(node, "sum", (channels, row))
    velocity = placeholder(operand(node, "velocity"), "v", (channels, row))
    rest = {name: tensor(node, name) for name in operands(node) if name not in ("sum", "velocity")}

    def element(o: Expr, i: Expr) -> Expr:
        return with_momentum(summed[o, i], address(velocity, o, i), rest, (o, o * row + i), attrs.signed)

    out = te.compute((channels, row), element, "out")
    return KernelSpec([summed, velocity, *rest.values()], [out, None, None], plain)


# ---- parameters that several layers share ---------------------------------------------------------------------------


@kernel("QSharedBias")
def qshared_bias(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one number per channel."""
    bias, multiplier, shift = tensors(node, "bias", "multiplier", "shift")
    out = te.compute(
        bias.shape, lambda c: call_int("tt_requantise", bias[c], multiplier[c], shift[c].astype("int32")), "out"
    )
    return KernelSpec([bias, multiplier, shift], [out], plain)


@kernel("QGradientAdd")
def qgradient_add(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute both terms at the common exponent, which is the second result."""
    attrs = attrs_of(node, GradientAddAttrs)
    channels, row = channel_rows(result(node, "total"))
    a, b = (tensor(node, name, (channels, row)) for name in ("a", "b"))
    p_a, p_b = tensors(node, "p_a", "p_b")
    factors = tensors(node, "multiplier_a", "shift_a", "multiplier_b", "shift_b")

    def exponent() -> Expr:
        return tirx.max(p_a[0] + i32(attrs.lifted), p_b[0]) - i32(attrs.lift)

    def term(sums: Expr, multiplier: Expr, shift: Expr, p: Expr) -> Expr:
        return call_int("tt_scaled", sums, multiplier, shift.astype("int32") + p - exponent() - i32(31))

    def element(o: Expr, i: Expr) -> Expr:
        first = term(a[o, i], factors[0][o], factors[1][o], p_a[0])
        return call_int("tt_add", first, term(b[o, i], factors[2][o], factors[3][o], p_b[0]))

    total = te.compute((channels, row), element, "total")
    common = te.compute((1,), lambda _i: exponent(), "exponent")
    return KernelSpec([a, b, p_a, p_b, *factors], [total, common], plain)


# ---- once per update ------------------------------------------------------------------------------------------------


@kernel("ExponentUpdate")
def exponent_update(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute the cleared peak; the helper writes the state."""
    attrs = attrs_of(node, ExponentAttrs)
    state, peak = tensors(node, "state", "peak")
    if operand(node, "state").shape == (3,):
        kept = te.compute((1,), lambda i: call_int("tt_update_stored_exponent", address(state), peak[i]), "out")
        return KernelSpec([state, peak], [None, kept], plain)
    is_float = tirx.const(attrs.float_peak, "bool")
    cleared = te.compute((1,), lambda i: call_int("tt_update_exponent", address(state), peak[i], is_float), "out")
    return KernelSpec([state, peak], [None, cleared], plain)


@kernel("NoiseTick")
def noise_tick(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one step of the generator."""
    (state,) = tensors(node, "state")
    return KernelSpec([state], [te.compute((1,), lambda i: call_int("tt_next_noise", state[i]), "out")], plain)
