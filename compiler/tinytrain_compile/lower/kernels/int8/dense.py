"""Dense layers and convolutions: sums of weight and data gradients, and layers of one pixel in one helper call."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Finish,
    KernelSpec,
    Load,
    Schedule,
    address,
    call_int,
    called,
    first,
    flat_tensor,
    guarded,
    i16,
    i32,
    plain,
    tensor,
    tensors,
    written,
)
from tinytrain_compile.lower.kernels.context import LOW_REGISTERS, CodeStyle, KernelContext
from tinytrain_compile.lower.kernels.float32.conv import TapWindow, weight_sums
from tinytrain_compile.lower.kernels.int8.dsp.correlation import correlation
from tinytrain_compile.lower.kernels.int8.dsp.product import PackedOperand, packed_product
from tinytrain_compile.lower.kernels.int8.dsp.windows import (
    RowBlock,
    has_windows,
    inside_image,
    output_shape,
    row_conv,
    within,
)
from tinytrain_compile.lower.kernels.int8.lane_sums import lane_sums
from tinytrain_compile.lower.kernels.int8.large_tiles import convolve, correlate, map_strip, product
from tinytrain_compile.lower.kernels.int8.operands import Centred, dense_ends
from tinytrain_compile.lower.kernels.int8.tap_sums import reads_apart, tap_sums
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import (
    CorrelationTiles,
    backward_dense,
    error_patch,
    geometry,
    is_product,
    is_rank_one,
    single_tiles,
    weight_tiles,
)
from tinytrain_compile.ops.int8.tiles import DenseTiles, packed_tiles
from tinytrain_compile.ops.int8.update import SCALE, QSumAttrs, QUpdateAttrs, whole_words
from tinytrain_compile.ops.names import attrs_of, is_prepared, operand, operands, result

ONE_PIXEL_TILE = 4
"""Outputs of one pixel whose sums are in registers together, and inputs that are widened together (tt_dense.h)."""
LONG_PIXEL = 128
"""Inputs from which four outputs together are worth their code on cores with products in pairs: 200 inputs to 30
outputs take 9,280 instead of 10,897 instructions on a Cortex-M4 (hey_jarvis, `benchmarks listening`)."""
DEPTHWISE_TILE = 4
"""Channels of a depthwise weight that are summed together."""
LIFT_BITS = 7
"""TT_LIFT of tt_dense_update.h."""
LEAST_LIMIT = 64
"""Smallest limit of weights: twice the excess of a 16-bit number over a smaller limit overflows 16 bits
(tt_limited_x8)."""
Gradient = tuple[te.Tensor, te.Tensor, te.Tensor, Schedule]
"""(x, g, out, schedule)"""


# ---- layers of one pixel --------------------------------------------------------------------------------------------


def dense_forward(node: Node, context: KernelContext) -> KernelSpec | None:
    """Compute a QConv of one pixel with a rest of outputs (tt_dense.h); None for other nodes, or code shared by layers.

    None also on cores with products in pairs but no vectors: separate sums are nearly as fast there, and less code.
    """
    attrs, (*image, inputs) = attrs_of(node, QConvAttrs), operand(node, "x").shape
    outputs, scratch_bytes = result(node, "y").shape[3], 2 * inputs
    whole = outputs % ONE_PIXEL_TILE == 0 or inputs % ONE_PIXEL_TILE > 0
    if whole or math.prod(image) > 1 or not is_product(attrs.conv) or attrs.conv.split is not None or is_prepared(node):
        return None
    one_by_one = context.style.small or (context.isa.dsp and not context.uses_vectors and inputs < LONG_PIXEL)
    if one_by_one or op_def(node.op).scratch(node) < scratch_bytes:
        return None
    scratch = tirx.decl_buffer((inputs,), "int16", "wide")

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        x, w, *ends = map(first, given)
        by = dense_ends(attrs, ends)
        sizes = (i32(outputs), i32(inputs), i32(attrs.x_zero))
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), called("tt_dense8", first(y), first(scratch), x, w, *sizes, by))

    operands = tensors(node, "x", "w", "bias", "multiplier", "shift")
    return KernelSpec(operands, [written(operands, result(node, "y").shape, "int8", body)], plain)


def dense_update(node: Node) -> KernelSpec | None:
    """Return the update of a dense layer's weight by one sample, whose inputs are widened once; None for other
    nodes."""
    attrs = attrs_of(node, QUpdateAttrs)
    if not is_rank_one(node) or attrs.limit < LEAST_LIMIT:
        return None
    if attrs.momentum:
        return _with_velocity(node, attrs)
    w, x, g = flat_tensor(node, "w"), flat_tensor(node, "x"), flat_tensor(node, "g")
    scale = tensors(node, *SCALE)
    multiplier, shift, rate, p = scale
    inputs, outputs = operand(node, "x").elements, operand(node, "g").elements
    wide = te.compute((inputs,), lambda i: _lifted(x[i], attrs), "wide")
    steps = (address(g), address(multiplier), address(shift), address(rate), p[0])
    rows = tensors(node, "rows?")
    count = i32(outputs)
    if rows:
        count = call_int("tt_dense_squares", address(rows[0]), address(wide), address(g), count, i32(inputs))
    numbers, summed = (count, i32(inputs), i32(attrs.limit)), [None for _ in rows]
    if "fraction" in operands(node):
        fraction = flat_tensor(node, "fraction")

        def fine(_i: Expr) -> Expr:
            return call_int(
                "tt_dense_update_fine", address(w), address(fraction), address(wide), *steps, *numbers, dtype="int8"
            )

        return KernelSpec([w, x, g, *scale, fraction, *rows], [te.compute((1,), fine, "out"), None, *summed], plain)
    noise, salt = tensors(node, "noise", "salt")

    def moved(_i: Expr) -> Expr:
        seed = call_int("tt_noise_seed", noise[0], salt[0])
        return call_int("tt_dense_update", address(w), address(wide), *steps, seed, *numbers, dtype="int8")

    return KernelSpec([w, x, g, *scale, noise, salt, *rows], [te.compute((1,), moved, "out"), *summed], plain)


def _lifted(x: Expr, attrs: QUpdateAttrs) -> Expr:
    """Return an input as the update of a dense layer keeps it in scratch."""
    return ((i32(x) - i32(attrs.x_zero)) * i32(1 << LIFT_BITS)).astype("int16")


def _with_velocity(node: Node, attrs: QUpdateAttrs) -> KernelSpec:
    """Return the same of an update with momentum; what a row's weights move by is in scratch behind the inputs."""
    given = {name: flat_tensor(node, name) for name in operands(node)}
    inputs, outputs = operand(node, "x").elements, operand(node, "g").elements
    count, x = i32(outputs), given["x"]

    def wide(i: Expr) -> Expr:
        return te.if_then_else(i < inputs, _lifted(x[tirx.min(i, inputs - 1)], attrs), tirx.const(0, "int16"))

    two = te.compute((2 * whole_words(inputs),), wide, "wide")
    if attrs.squares:
        sums = (address(given["rows"]), address(two), address(given["g"]))
        count = call_int("tt_dense_squares", *sums, count, i32(inputs))
    stored, helper = ("w", "tt_dense_momentum") if not attrs.fine else ("w fraction", "tt_dense_momentum_fine")

    def moved(_i: Expr) -> Expr:
        kept = (*(address(given[name]) for name in (*stored.split(), "velocity", "peak")), address(two))
        numbers = (address(given[name]) for name in ("g", "multiplier", "shift", "rate", "exponent"))
        seed = call_int("tt_noise_seed", given["noise"][0], given["salt"][0])
        sizes = (count, i32(inputs), i32(attrs.limit), tirx.const(attrs.momentum == "sign", "bool"))
        return call_int(helper, *kept, *numbers, given["p"][0], seed, *sizes, dtype="int8")

    _, *written = node.outputs
    return KernelSpec([*given.values()], [te.compute((1,), moved, "out"), *(None for _ in written)], plain)


# ---- data -----------------------------------------------------------------------------------------------------------


def gradient_rows(node: Node, context: KernelContext) -> DenseTiles | None:
    """Return tiles of a k x k data gradient that runs over widened rows of the error, else None."""
    tiles = backward_dense(node)
    if tiles is None:
        return None
    reaches = (error_patch(node).rows, error_patch(node).columns)
    zeros = any(reach.window * reach.phases > reach.kernel for reach in reaches)
    return tiles if context.widens(has_windows(tiles, operand(node, "g").shape[3], context.style), zeros) else None


def row_gradient(
    node: Node,
    g: te.Tensor,
    weight: Load,
    finish: Finish,
    tiles: DenseTiles,
    style: CodeStyle,
    stages: Sequence[te.Tensor],
    block: RowBlock | None = None,
    strip: int = 0,
) -> tuple[te.Tensor, Schedule]:
    """Compute like a convolution of the error g (n, rows, columns x channels) with the turned weight, phase by phase.

    block: some rows of each phase; g is its image. strip: see row_strip.
    """
    patch = error_patch(node)
    reaches, channels = (patch.rows, patch.columns), patch.channels
    div, mod = tirx.indexdiv, tirx.indexmod

    def element(b: Expr, y: Expr, position: Expr) -> Expr:
        row, place = y + patch.rows.ends[0], position + patch.columns.ends[0] * channels
        across, apart = patch.columns.extent * channels, patch.columns.holes
        if block is not None:
            inside = tirx.And(block.inside(y), within(place, across * apart))
            if apart > 1:
                inside = tirx.And(inside, tirx.EQ(mod(div(place, channels), apart), 0))
                place = div(place, channels * apart) * channels + mod(place, channels)
            return guarded(inside, g[block.row_at[y] + place].astype("int16"))
        return guarded(inside_image(row, place, (patch.rows.extent, across)), g[b, row, place].astype("int16"))

    def factor(o: Expr, p: Expr, q: Expr, r: Expr, f: Expr) -> Expr:
        tests: list[Expr] = []
        taps: list[Expr] = []
        for reach, phase, place in zip(reaches, (p, q), (r, div(f, channels)), strict=True):
            turn = reach.turn(phase, place)
            taps.append(reach.tap(phase, turn))
            tests += [turn >= 0, turn < reach.taps, taps[-1] < reach.kernel] if reach.phases > 1 else []
        value = weight(mod(f, channels), *taps, o).astype("int16")
        return guarded(functools.reduce(tirx.And, tests), value) if tests else value

    run, shape = patch.columns.window * channels, output_shape(node)
    if strip:
        low, terms = -patch.rows.ends[0], (patch.columns.window, channels)

        def tap(o: Expr, r: Expr, t: Expr, c: Expr) -> Expr:
            return weight(c, *(reach.tap(0, reach.turn(0, at)) for reach, at in zip(reaches, (r, t), strict=True)), o)

        taps, inside = (shape, (1, channels), element, tap, terms), (low, low + patch.rows.extent)
        return convolve(*taps, inside, finish, tiles, strip, stages, turned=True)
    if block is not None:
        tiles, shape = block.rows(tiles, 1, shape[3]), output_shape(node, block.count * patch.rows.phases)
    return row_conv(shape, (1, channels), element, factor, run, finish, tiles, style, stages, channels)


# ---- weights --------------------------------------------------------------------------------------------------------


def _maps(node: Node, context: KernelContext) -> CorrelationTiles | None:
    """Return tiles of a weight gradient that runs over widened maps, else None."""
    isa = context.isa
    tiles = weight_tiles(node) if isa.dsp else single_tiles(node, isa.gpr <= LOW_REGISTERS)
    if tiles is None or (context.uses_vectors and lane_sums(node.outputs[0].shape, geometry(node).groups)):
        return None
    return tiles if context.widens(tiles.tile == (2, 2), False) else None


def keeps_tables(node: Node, context: KernelContext) -> bool:
    """Tell whether the operands of the end of a channel's sums can stay in registers: see `stages` of
    weight_gradient."""
    return is_product(geometry(node)) or copies_maps(node, context) or reads_apart(node, context)


def copies_maps(node: Node, context: KernelContext) -> bool:
    """Tell whether weight_gradient runs over maps that it copies to scratch."""
    return not is_product(geometry(node)) and _maps(node, context) is not None


def weight_gradient(
    node: Node,
    attrs: QUpdateAttrs | QSumAttrs,
    shape: tuple[int, ...],
    finish: Finish,
    context: KernelContext,
    stages: Sequence[te.Tensor] = (),
) -> Gradient:
    """Return (x, g, out, schedule) of out = finish(sum of g (x - zero), indices of the weight).

    stages: tables that finish reads per output channel, if keeps_tables.
    """
    conv = replace(geometry(node), bias=False)
    if is_product(conv):
        return _flat_weight_gradient(node, attrs.x_zero, finish, context, stages)
    tiles = _maps(node, context)
    if tiles is not None:
        return _correlated(node, attrs, finish, tiles, context, stages)
    x, g = tensors(node, "x", "g")
    _, height, width, _ = operand(node, "x").shape
    if reads_apart(node, context):
        return x, g, *tap_sums(node, (x, g), attrs.x_zero, finish, stages)
    window = TapWindow(conv, (height, width))
    tile = (DEPTHWISE_TILE, 1) if shape[3] == 1 else context.integer_tile
    lanes = lane_sums(shape, conv.groups) if context.uses_vectors else None
    out, schedule = weight_sums(shape, conv, Centred(x, attrs.x_zero), Centred(g), window, finish, tile, schedule=lanes)
    return x, g, out, schedule


def _correlated(
    node: Node,
    attrs: QUpdateAttrs | QSumAttrs,
    finish: Finish,
    tiles: CorrelationTiles,
    context: KernelContext,
    stages: Sequence[te.Tensor],
) -> Gradient:
    """Return weight_gradient of a dense k x k or strided convolution: tap columns and image channels are one axis."""
    conv, (_, rows, columns, outputs) = geometry(node), operand(node, "g").shape
    batch, height, width, channels = operand(node, "x").shape
    x = tensor(node, "x")
    div, mod = tirx.indexdiv, tirx.indexmod

    def place(j: Expr) -> tuple[Expr, Expr]:
        return div(j, channels), mod(j, channels)

    def image(b: Expr, tap: Expr, channel: Expr, phase: Expr, line: Expr, position: Expr) -> Expr:
        row = line * conv.strides[0] + phase - conv.pads[0]
        column = position * conv.strides[1] + tap * conv.dilations[1] - conv.pads[1]
        value = x[b, row, column, channel].astype("int16") - i16(attrs.x_zero)
        return guarded(inside_image(row, column, (height, width)), value)

    form = (outputs, conv.kernel[0], conv.kernel[1] * channels)
    if context.has_large_tiles and (strip := map_strip(node, tiles, form[2])):
        g, border = tensor(node, "g"), (conv.pads[0], conv.pads[0] + height)

        def of_column(b: Expr, j: Expr, *at: Expr) -> Expr:
            return image(b, *place(j), *at)

        def end(acc: Expr, o: Expr, r: Expr, j: Expr) -> Expr:
            return finish(acc, o, r, *place(j))

        out, schedule = correlate(form, g, of_column, end, tiles, strip, border, stages)
        return x, g, out, schedule

    def of_run(b: Expr, run: Expr, c: Expr, *at: Expr) -> Expr:
        return image(b, *((run, c) if tiles.runs > 1 else place(c)), *at)

    def weight(acc: Expr, o: Expr, r: Expr, run: Expr, c: Expr) -> Expr:
        return finish(acc, o, r, *((run, c) if tiles.runs > 1 else place(c)))

    g, runs = tensor(node, "g", (batch, rows * columns, outputs)), (tiles.runs, form[2] // tiles.runs)
    out, schedule = correlation((*form[:2], *runs), columns, g, of_run, weight, tiles, context.style, stages)
    return x, g, out, schedule


def _flat_weight_gradient(
    node: Node, x_zero: int, finish: Finish, context: KernelContext, stages: Sequence[te.Tensor]
) -> Gradient:
    """Return weight_gradient of a 1x1 convolution: a product over pixels."""
    *image, inputs = operand(node, "x").shape
    pixels, outputs = math.prod(image), operand(node, "g").shape[3]
    x, g = tensor(node, "x", (pixels, inputs)), tensor(node, "g", (pixels, outputs))
    extents = (outputs, inputs, pixels)
    left = PackedOperand(lambda o, k: g[k, o], 0, outputs, columns=True)
    right = PackedOperand(lambda i, k: x[k, i], -x_zero, inputs, columns=True)

    def weight(acc: Expr, o: Expr, i: Expr) -> Expr:
        return finish(acc, o, 0, 0, i)

    tiles = packed_tiles(*extents, ragged=True)
    made = product(node, extents, left, right, weight, stages, 0) if context.has_large_tiles else None
    out, schedule = made or packed_product(extents, left, right, weight, tiles, context.style, stages, channel_axis=0)
    return x, g, out, schedule
