"""Gradients of convolutions over all channels on vectors: one call each (tt_mve_gradients.h, tt_mve_lines.h,
tt_mve_weights.h, tt_mve_steps.h)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES, LARGEST_PITCH
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    called,
    channel_rows,
    first,
    i32,
    placeholder,
    plain,
    tensors,
    written,
)
from tinytrain_compile.lower.kernels.int8.helium.lines import line_gradient
from tinytrain_compile.lower.kernels.int8.strided import error_call, layer_shape
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.clip import square_limit
from tinytrain_compile.ops.int8.conv_form import (
    SMALL_MAP,
    BorderedMaps,
    bordered_maps,
    channel_maps,
    geometry,
    is_product,
    keeps_sums,
    map_sizes,
    row_maps,
    turned_bytes,
    weight_bytes,
)
from tinytrain_compile.ops.int8.update import SCALE, QSumAttrs, QUpdateAttrs
from tinytrain_compile.ops.names import is_prepared, operand, operands, result

PAIR, BYTES = 8, 16
"""Weights whose steps are computed together: two vectors; products of an instruction."""
_BORDERED = -1
"""TT_BORDERED of tt_mve_weights.h."""
_BOTH, _HELD, _FOUR, _FAR, _FAR_FOUR = 6, 8, 6, 9, 12
"""Approximate instructions of four sums with a channel's error, per vector, and of the rest: if two channels' errors
are in registers (each has half), if one is, and if none is."""
_EIGHT, _MOMENTUM, _RUN, _COLUMN, _FOUR_ENDS, _CHANNEL = 30, 40, 34, 8, 50, 85
"""Approximate instructions of eight steps, of their velocities, to begin steps, to begin sums of a column that go with
those of others, of four steps that are computed at once, and of an output channel."""
_PLAIN_EIGHT, _PLAIN_MAP, _BORDERED_EIGHT, _BORDERED_MAP = 4, 45, 7, 20
"""Approximate instructions to copy eight elements, and to begin a map: in rows without and with a border."""
_WORTH = 0.94
"""By this factor estimates are to differ: if so, 5x5x32 to 32, 3x3, takes 79,850 instead of 92,954 instructions on a
Cortex-M55, and of 90 layers on small maps none takes over 1 % more."""


def any_gradient(node: Node) -> KernelSpec | None:
    """Compute the error of an image over lines, or with four channels or more where it lies.

    None if the plan's scratch does not hold what that needs, and for other nodes: of groups, or a weight in two parts.
    """
    conv, channels = geometry(node), result(node, "error").shape[3]
    weights = math.prod(conv.kernel) * channels
    if conv.groups > 1 or conv.split is not None or is_prepared(node) or weights >= LARGEST_PITCH:
        return None
    if (lines := line_gradient(node)) is not None:
        return lines
    if channels < LANES:
        return None
    turned = turned_bytes(node)
    return error_call(node, "tt_conv8_error", turned) if turned <= op_def(node.op).scratch(node) else None


def any_update(node: Node, attrs: QUpdateAttrs | QSumAttrs) -> KernelSpec | None:
    """Compute the step of a weight by its gradient, or add this to a running sum.

    None for other nodes, and if the plan's scratch holds neither four maps of the image and one of the error, nor those
    of a channel of a depthwise layer.
    """
    image, error, conv = operand(node, "x").shape, operand(node, "g").shape, geometry(node)
    pixels, pitch = math.prod(error[:3]), max(error[3], conv.strides[1] * image[3])
    apart = channel_maps(node)
    maps = apart or (_dense_maps(node) if conv.groups == 1 else None)
    if pixels == 1 or pitch >= LARGEST_PITCH or maps is None or maps[1] > op_def(node.op).scratch(node):
        return None
    together = (maps[0], 0) if apart else (0, maps[0])
    bordered = None if apart else _bordered(node, maps[0])
    if bordered is not None:
        together, maps = (_BORDERED, bordered[0]), bordered
    scratch = tirx.decl_buffer((maps[1],), "int8", "maps")
    shape = layer_shape(node, image, error, together, attrs.x_zero, is_product(conv))
    inputs = tensors(node, *operands(node))
    inputs[0] = placeholder(node.inputs[0], "w", node.outputs[0].shape)

    def body(w: Buffer, given: Sequence[Buffer]) -> Stmt:
        named = dict(zip(operands(node), given, strict=True))
        at, places = {name: first(named[name]) for name in named}, (first(w), first(scratch))
        if isinstance(attrs, QSumAttrs):
            call = called("tt_conv8_sums", *places, at["x"], at["g"], shape)
        else:
            spare = 31 - op_def(node.op).accumulator(node.inputs, attrs).bit_length()
            read = [at[name] for name in ("x", "g", *SCALE)]
            numbers = (shape, i32(attrs.limit), i32(spare))
            if attrs.momentum or attrs.squares:
                call = _moves(node, attrs, named, places, (read, numbers))
            elif attrs.fine:
                call = called("tt_conv8_update_fine", places[0], at["fraction"], places[1], *read, *numbers)
            else:
                noise = (named["noise"][(0,)], named["salt"][(0,)])
                call = called("tt_conv8_update", *places, *read, *noise, *numbers)
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), call)

    made, *others = node.outputs
    return KernelSpec(inputs, [written(inputs, made.shape, made.dtype, body), *(None for _ in others)], plain)


def _dense_maps(node: Node) -> tuple[int, int] | None:
    """Return (maps of the image that the plan's scratch holds, bytes with sums and the error); None: under four maps.

    All turns but the last have as many, in whole pairs of vectors if they are enough. If all maps are whole pairs,
    steps of eight weights are worth another turn: 5x5 5x5x16 to 16 with momentum takes 134,907 instead of 162,526
    instructions on a Cortex-M55.
    """
    maps, held = geometry(node).kernel[1] * operand(node, "x").shape[3], op_def(node.op).scratch(node)
    fitting = next((n for n in range(maps, 0, -1) if weight_bytes(node, n) <= held), 0)
    if maps < LANES or fitting < LANES:
        return None
    if fitting >= PAIR and maps % PAIR == 0 and keeps_sums(node, fitting):
        fitting -= fitting % PAIR
    across = _whole(maps, fitting)
    return across, weight_bytes(node, across)


def _bordered(node: Node, maps: int) -> tuple[int, int] | None:
    """Return (maps whose sums are together, bytes) if the image with its border takes fewer instructions, else None.

    It never does if the error's map then has more vectors. Maps are channels; their sums are together with those of
    all columns of taps if scratch holds these. maps: those together without borders.
    """
    form, channels, held = bordered_maps(node), operand(node, "x").shape[3], op_def(node.op).scratch(node)
    if form is None or channels < LANES or -(-form.error // BYTES) > -(-map_sizes(node)[0] // BYTES):
        return None
    fitting = next((n for n in range(channels, 0, -1) if weight_bytes(node, n, form) <= held), 0)
    ways = [_whole(channels, fitting)] if fitting >= LANES else []
    if (row := row_maps(node)) and weight_bytes(node, row, form) <= held:
        ways.append(row)
    across = min(ways, key=lambda n: _cost(node, n, form), default=0)
    if not across or _cost(node, across, form) > _WORTH * _cost(node, maps, None):
        return None
    return across, weight_bytes(node, across, form)


def _whole(total: int, most: int) -> int:
    """Return how many maps are taken in a turn: all of them, or whole pairs of vectors, or whole vectors.

    Turns are as few as with `most`, if that is possible.
    """
    turns = -(-total // most)
    even = (-(-total // (turns * lanes)) * lanes for lanes in (PAIR, LANES))
    return next((n for n in (total, *even) if n <= most), most // LANES * LANES)


def _cost(node: Node, across: int, form: BorderedMaps | None) -> float:
    """Estimate the instructions of a weight gradient with the sums of `across` maps together; form: with a border."""
    (rows, columns), channels, outputs = geometry(node).kernel, operand(node, "x").shape[3], operand(node, "g").shape[3]
    error, image = (form.error, form.image) if form else map_sizes(node)
    taps, maps = (rows * columns, channels) if form else (rows, columns * channels)
    parts = [min(across, maps - first) for first in range(0, maps, across)]
    fours, vectors = taps * sum(-(-part // LANES) for part in parts), -(-error // BYTES)
    if error % BYTES or error > SMALL_MAP:
        four = _FAR * vectors + _FAR_FOUR
    else:
        four = (_BOTH if error < SMALL_MAP else _HELD) * vectors + _FOUR
    if keeps_sums(node, across):
        runs = [across] * rows if across > maps else parts * taps
        eight = _EIGHT + (_MOMENTUM if getattr(node.attrs, "momentum", "") else 0)
        ends = sum(eight * -(-run // PAIR) + _RUN for run in runs) + (_COLUMN * taps if across > maps else 0)
    else:
        ends = fours * _FOUR_ENDS
    laid, once = (_BORDERED_EIGHT, _BORDERED_MAP) if form else (_PLAIN_EIGHT, _PLAIN_MAP)
    channel = len(parts) * (_CHANNEL + laid * error / PAIR)
    return outputs * (fours * four + ends + channel) + maps * (laid * image / PAIR + once)


def _moves(
    node: Node,
    attrs: QUpdateAttrs,
    named: Mapping[str, Buffer],
    places: tuple[Expr, Expr],
    rest: tuple[Sequence[Expr], tuple[Expr, Expr, Expr]],
) -> Stmt:
    """Return the call of an update with momentum or squares.

    places: of the weight, also instead of operands that are missing, and of scratch; rest: places of x, g and scales,
    and what every update is told.
    """
    (w, scratch), (read, (shape, limit, spare)) = places, rest

    def place(name: str) -> Expr:
        return first(named[name]) if name in named else w

    def number(name: str) -> Expr:
        return named[name][(0,)] if name in named else i32(0)

    writes = [w, *map(place, ("velocity", "peak", "fraction", "rows")), scratch]
    noise = [number("noise"), number("salt"), number("salt_of_w" if attrs.momentum else "salt")]
    momentum = {"": 0, "sign": 2}.get(attrs.momentum, 1)
    largest = square_limit(channel_rows(operand(node, "w"))[1]) if attrs.squares else 0
    kinds = (i32(momentum), tirx.const(attrs.fine, "bool"), i32(largest))
    return called("tt_conv8_moves", *writes, *read, place("exponent"), *noise, shape, limit, spare, *kinds)
