"""Integer depthwise convolution: a channel's image is in scratch as int16 with its border, so no tap is tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics import tensor as instructions
from tinytrain_compile.lower.kernels.base import (
    Finish,
    Index,
    Load,
    MapShape,
    Schedule,
    guarded,
    i32,
    reduce_axes,
    tensor,
    total,
)
from tinytrain_compile.lower.kernels.context import SPEED, CodeStyle
from tinytrain_compile.lower.left_out import skip_border
from tinytrain_compile.lower.schedules import HINT, keep_results, keep_tables
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import forward_dense
from tinytrain_compile.ops.int8.tiles import WINDOW, DenseTiles, DepthwiseTiles
from tinytrain_compile.ops.names import attrs_of, operand

Read = Callable[[Expr, Expr, Expr], tuple[Expr, Expr]]
"""(n, row with the border, position in it) -> (whether it is inside of the image, int8 expression)"""
Pixel = Callable[[Expr, Expr, Expr, Expr], Expr]
"""(n, padded row, padded column, channel) -> int16 expression, 0 outside of the image"""


def within(place: Expr, extent: int) -> Expr:
    """Tell whether a place along an axis of an image is inside of it."""
    return tirx.And(place >= 0, place < extent)


def inside_image(row: Expr, column: Expr, image_hw: tuple[int, int]) -> Expr:
    """Tell whether a pixel is in the image; the test of columns comes last, because it may be split off."""
    return tirx.And(within(row, image_hw[0]), within(column, image_hw[1]))


@dataclass(frozen=True)
class RowBlock:
    """A few rows of a map: `count` of them (of each phase), a variable.

    image: the flat operand. row_at: for every row of the channel image, its first index in `image`, or a negative
    number for a row of the border.
    """

    count: Expr
    image: te.Tensor
    row_at: te.Tensor

    def inside(self, y: Expr) -> Expr:
        """Tell whether row y of the channel image is one of the image."""
        return self.row_at[y] >= 0

    def depthwise(self, tiles: DepthwiseTiles, stride: int) -> DepthwiseTiles:
        """Return strips of one row."""
        rows = tiles.strip_rows - (tiles.strip - 1) * stride
        whole = (rows + (self.count - 1) * stride, tiles.padded[1])
        return replace(tiles, strip=1, strip_rows=rows, padded=whole)

    def rows(self, tiles: DenseTiles, stride: int, channels: int) -> DenseTiles:
        """Return strips of one row, with the weights of all channels widened beforehand."""
        rows = tiles.taps + (self.count - 1) * stride
        return replace(tiles, strip=1, channels=channels, rows=rows, strip_rows=tiles.taps, weights_first=True)


@dataclass(frozen=True)
class Taps:
    """Taps by which each phase of the output is multiplied.

    load(channel, phase row, phase column, row, column): int16, 0 if there is no tap. ahead(phase row, phase column):
    rows and columns of the channel image by which a phase is ahead of the first.
    """

    load: Load
    ahead: Callable[[Expr, Expr], tuple[Index, Index]] = lambda _row, _column: (0, 0)


def depthwise_sums(
    shape: MapShape,
    strides: tuple[int, int],
    pixel: Pixel,
    taps: Taps,
    finish: Finish,
    tiles: DepthwiseTiles,
    style: CodeStyle,
    tables: Sequence[te.Tensor] = (),
    lanes: int = 0,
    inside: tuple[int, int] | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Return out[n,y,x,c] = finish(sum over taps of padded[c, y stride + r, x stride + s] tap(c, r, s)), phase by
    phase.

    tables: operands that finish reads per channel. lanes: columns of taps, if four pixels are computed at a time on
    vectors. inside: rows of the channel image that are not its border, if that is known; only these are summed. If taps
    are dilated, a row of the channel image has one after the other the columns that windows read together.
    """
    n, height, width, channels = shape
    (rows, columns), (apart, spread) = tiles.phases, tiles.dilations
    pitch = tiles.padded[1] // spread

    def image(b: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
        return pixel(b, y, x if spread == 1 else tirx.indexmod(x, pitch) * spread + tirx.indexdiv(x, pitch), c)

    padded = te.compute((n, channels, *tiles.padded), image, "padded")
    factors = te.compute((channels, rows, columns, *tiles.taps), taps.load, "taps")
    r, s = reduce_axes(tiles.taps[0], lanes or tiles.taps[1])

    def term(b: Expr, y: Expr, p: Expr, tile: Expr, q: Expr, c: Expr, i: Expr) -> Expr:
        down, right = taps.ahead(p, q)
        place = (tile * tiles.width + i) * strides[1] + right + s
        if spread > 1:
            place, q = q * pitch + place, i32(0)
        value = padded[b, c, y * strides[0] + down + r * apart, place]
        return total(i32(value) * i32(factors[c, p, q, r, s]), [r, s])

    columns *= spread
    cut = (n, height // rows, rows, width // columns, columns, channels)  # the same elements in the same order
    acc = te.compute((*cut[:3], -(-cut[3] // tiles.width), *cut[4:], tiles.width), term, "acc")

    def element(b: Expr, y: Expr, p: Expr, x: Expr, q: Expr, c: Expr) -> Expr:
        value = acc[b, y, p, tirx.indexdiv(x, tiles.width), q, c, tirx.indexmod(x, tiles.width)]
        return finish(value, b, y * rows + p, x * columns + q, c)

    step, ragged = strides[1] if lanes else 0, cut[3] % tiles.width > 0
    return te.compute(cut, element, "out"), lambda sch: _schedule(sch, tiles, style, tables, step, inside, ragged)


def _schedule(
    sch: s_tir.Schedule,
    tiles: DepthwiseTiles,
    style: CodeStyle,
    tables: Sequence[te.Tensor],
    step: int,
    inside: tuple[int, int] | None,
    ragged: bool,
) -> None:
    out, acc, spread = sch.get_sblock("out"), sch.get_sblock("acc"), tiles.dilations[1]
    batch, height, phase_row, width, phase_column, channel = sch.get_loops(out)
    strip, row = sch.split(height, [None, tiles.strip])
    column, pixel = sch.split(width, [None, tiles.width])
    sch.reorder(batch, channel, strip, phase_row, phase_column, row, column, pixel)
    if ragged:
        sch.annotate(column, HINT, 1)
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, column, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("padded"), strip, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("taps"), channel, preserve_unit_loops=True)
    if step:
        sch.vectorize(pixel)
    else:
        _packed_sums(sch, tiles, style, inside)
        sch.unroll(pixel)
        keep_results(sch, column, 7)
    keep_tables(sch, tables, channel, 2)
    if step:
        _pixel_sums(sch, tiles, style, step)
    else:
        sch.tensorize(sch.get_loops(sch.get_sblock("acc_update"))[-1], instructions.dot(2))
    if spread > 1:
        sch.split(sch.get_loops(sch.get_sblock("padded"))[-1], [spread, None])
    for name in ("padded", "taps"):
        sch.annotate(sch.get_loops(sch.get_sblock(name))[-1], HINT, 1)


def _packed_sums(sch: s_tir.Schedule, tiles: DepthwiseTiles, style: CodeStyle, inside: tuple[int, int] | None) -> None:
    acc = sch.get_sblock("acc")
    own = sch.get_loops(acc)[7:]
    spatial, (r, s) = own[:7], own[7:]
    many, lanes = sch.split(s, [None, 2])
    sch.reorder(r, many, *spatial, lanes)
    for loop in (many, *spatial):
        sch.unroll(loop)
    if tiles.taps[0] <= style.unrolled_rows:
        sch.unroll(r)
    start = sch.decompose_reduction(acc, r)
    for loop in sch.get_loops(start)[7:]:
        sch.unroll(loop)
    if inside is not None and tiles.taps[0] > style.unrolled_rows and tiles.strip_rows == tiles.padded[0]:
        skip_border(sch, sch.get_loops(sch.get_sblock("acc_update"))[7], inside, tiles.padded[1])


def _pixel_sums(sch: s_tir.Schedule, tiles: DepthwiseTiles, style: CodeStyle, step: int) -> None:
    """Compute the sums of four pixels of a row over a row of taps in one helper call."""
    acc = sch.get_sblock("acc")
    own = sch.get_loops(acc)[7:]
    (*spatial, pixels), (r, s) = own[:7], own[7:]
    sch.reorder(r, *spatial, pixels, s)
    if tiles.taps[0] <= style.unrolled_rows:
        sch.unroll(r)
    count = int(sch.get(s).extent)
    start = sch.decompose_reduction(acc, r)
    for loop in sch.get_loops(start)[7:]:
        sch.unroll(loop)
    sch.tensorize(pixels, instructions.taps_x4(count, step))


# ---- dense ----------------------------------------------------------------------------------------------------------


def output_shape(node: Node, rows: Index | None = None) -> MapShape:
    """Return the shape of the output, or of `rows` rows of one image."""
    count, height, width, channels = node.outputs[0].shape
    return (count, height, width, channels) if rows is None else (1, rows, width, channels)


def dense_rows(node: Node, block: RowBlock | None) -> tuple[te.Tensor, MapShape, DenseTiles, Read]:
    """Return (image, shape of the output, tiles, reader of a place) of a dense convolution: a row's pixels are one
    run."""
    attrs, (n, height, width, channels) = attrs_of(node, QConvAttrs), operand(node, "x").shape
    conv, shape, tiles = attrs.conv, output_shape(node), forward_dense(node)
    x = tensor(node, "x", (n, height, width * channels)) if block is None else block.image
    if block is not None:
        shape, tiles = output_shape(node, block.count), block.rows(tiles, conv.strides[0], shape[3])

    def read(b: Expr, y: Expr, position: Expr) -> tuple[Expr, Expr]:
        row, place = y - conv.pads[0], position - conv.pads[1] * channels
        if block is not None:
            inside, value = block.inside(y), x[block.row_at[y] + place]
        else:
            inside, value = within(row, height), x[b, row, place]
        return tirx.And(inside, within(place, width * channels)), value

    return x, shape, tiles, read


def row_conv(
    shape: MapShape,
    pitches: tuple[int, int],
    element: Load,
    weight: Load,
    run: int,
    finish: Finish,
    tiles: DenseTiles,
    style: CodeStyle,
    tables: Sequence[te.Tensor] = (),
    tap: int = 0,
    ready: te.Tensor | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Return out[n,y,x,o] = finish(sum over r, f of rows[n, y pitch + r, x pitch + f] weights[o, r, f]), for every
    phase.

    element(n, row, position in the row): int16, 0 outside of the image; pitches: rows and elements between output
    pixels of a phase; run: elements under a row of taps (the rest of tiles.run is zero weights). weight(o, phase row,
    phase column, r, f), or ready, as its stage has it.
    """
    (n, height, width, channels), (down, right) = shape, tiles.phases
    rows = te.compute((n, tiles.rows, tiles.pitch), element, "rows")
    across, deep = tiles.tile

    weights = _stage_of_weights(weight, run, tiles, channels // deep) if ready is None else ready
    r, f = reduce_axes(tiles.taps, tiles.run)

    def term(b: Expr, y: Expr, p: Expr, x: Expr, q: Expr, o: Expr, i: Expr, j: Expr) -> Expr:
        position, window = (x * across + i) * pitches[1] + f, (r, j) if tiles.in_turn else (j, r)
        return total(i32(rows[b, y * pitches[0] + r, position]) * i32(weights[(p, q, o, *window, f)]), [r, f])

    high = height // down if down > 1 else height  # may be a variable
    cut = (n, high, down, width // right, right, channels)  # the same elements in the same order
    acc = te.compute((*cut[:3], cut[3] // across, right, channels // deep, across, deep), term, "acc")
    div, mod = tirx.indexdiv, tirx.indexmod

    def result(b: Expr, y: Expr, p: Expr, x: Expr, q: Expr, o: Expr) -> Expr:
        value = acc[b, y, p, div(x, across), q, div(o, deep), mod(x, across), mod(o, deep)]
        return finish(value, b, y * down + p, x * right + q, o)

    out = te.compute(cut, result, "out")
    apart = pitches[1] if has_windows(tiles, pitches[1], style) else 0
    return out, lambda sch: _schedule_rows(sch, tiles, run == tiles.run, style, tables, apart, tap)


def _stage_of_weights(weight: Load, run: int, tiles: DenseTiles, count: int) -> te.Tensor:
    """Return widened weights of `count` tiles of channels, see row_conv: their windows, one after the other or in
    turn."""
    deep = tiles.tile[1]

    def filled(p: Expr, q: Expr, o: Expr, first: Expr, second: Expr, f: Expr) -> Expr:
        window, row = (second, first) if tiles.in_turn else (first, second)
        value = weight(o * deep + window, p, q, row, f).astype("int16")
        return value if run == tiles.run else guarded(f < run, value)

    window = (tiles.taps, deep) if tiles.in_turn else (deep, tiles.taps)
    return te.compute((*tiles.phases, count, *window, tiles.run), filled, "weights")


def has_windows(tiles: DenseTiles, apart: int, style: CodeStyle) -> bool:
    """Tell whether one helper call computes all sums of a tile: its numbers must fit into instructions."""
    fits = max(apart, tiles.run) <= WINDOW
    return fits and tiles.taps > 1 and tiles.tile == (2, 2) and style.row_calls == SPEED.row_calls


def _schedule_rows(
    sch: s_tir.Schedule,
    tiles: DenseTiles,
    whole: bool,
    style: CodeStyle,
    tables: Sequence[te.Tensor],
    apart: int,
    tap: int,
) -> None:
    """Schedule rows. apart: elements between the windows of a tile's two pixels, if one call sums over them; or 0."""
    out, acc = sch.get_sblock("out"), sch.get_sblock("acc")
    batch, height, phase_row, width, phase_column, channel = sch.get_loops(out)
    strip, row = sch.split(height, [None, tiles.strip])
    column, pixel = sch.split(width, [None, tiles.tile[0]])
    part, pair, one = sch.split(channel, [None, tiles.channels // tiles.tile[1], tiles.tile[1]])
    outer = [part, strip] if tiles.weights_first else [strip, part]
    sch.reorder(batch, *outer, pair, row, column, phase_row, phase_column, one, pixel)
    sch.unroll(one)
    sch.unroll(pixel)
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, phase_column, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("rows"), strip, preserve_unit_loops=True)
    if not tiles.ready:
        sch.compute_at(sch.get_sblock("weights"), part, preserve_unit_loops=True)
    own = sch.get_loops(acc)[8:]
    if apart:
        sch.storage_align(sch.get_sblock("rows"), 0, 1, 2, 0)  # a pitch of whole words, whatever part is read
        start = sch.decompose_reduction(acc, own[6])
        sums = instructions.dot_windows(tiles.taps, tiles.run, tiles.pitch, apart, tiles.in_turn)
    else:
        own = _row_turns(sch, own, tiles, style)
        start = sch.decompose_reduction(acc, own[0])
        sums = instructions.dot(tiles.terms)
    for loop in sch.get_loops(start)[8:]:
        sch.unroll(loop)
    keep_results(sch, phase_column, 8)
    keep_tables(sch, tables, pair, 4)
    sch.tensorize(own[6] if apart else own[-1], sums)
    sch.annotate(sch.get_loops(sch.get_sblock("rows"))[-1], HINT, 1)
    if not tiles.ready:
        _widen_weights(sch, tiles, whole, tap)


def _widen_weights(sch: s_tir.Schedule, tiles: DenseTiles, whole: bool, tap: int) -> None:
    """Make the loops that put weights into scratch. tap: as for row_conv."""
    channel, first, second, _ = sch.get_loops(sch.get_sblock("weights"))[-4:]
    if tiles.in_turn:
        sch.reorder(second, first)
    else:
        sch.fuse(channel, first)
    if not whole:
        sch.annotate(sch.get_loops(sch.get_sblock("weights"))[-1], HINT, 1)
    elif tap:
        sch.split(sch.get_loops(sch.get_sblock("weights"))[-1], [None, tap])


def _row_turns(sch: s_tir.Schedule, own: Sequence[LoopRV], tiles: DenseTiles, style: CodeStyle) -> list[LoopRV]:
    """Return the sums' loops (outer ones first) if a call adds a few products to one sum."""
    *spatial, r, f = own
    steps = tiles.run // tiles.terms
    turn = max(u for u in range(1, style.row_calls + 1) if steps % u == 0)
    many, few, lanes = sch.split(f, [None, turn, tiles.terms])
    sch.reorder(r, many, few, *spatial, lanes)
    for loop in (few, *spatial):
        sch.unroll(loop)
    return [r, many, few, *spatial, lanes]
