"""Depthwise convolutions of maps of any size and dilation, for cores with products in pairs (tt_depthwise.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, struct, tensors, written
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import forward_depthwise, is_spread, short_ends
from tinytrain_compile.ops.names import attrs_of, operand, result

TAPS, TILE, REACH = 3, 2, 4095
"""Taps along each axis; outputs of a tile; the largest offset of an instruction, in bytes."""
_WIDE, _LARGEST_STEP = 2, 510
"""Bytes of an element in scratch; most elements from column to column."""
_TILE, _HALF, _ROW, _LINE, _CELL, _CLEAR = 66, 37, 30, 20, 4.5, 20
"""Instructions of a tile, of one of one row, of a row of tiles, and to widen a row and an element of the image; of a
column, to clear its border."""


@dataclass(frozen=True)
class Axis:
    """tt_axis of tt_depthwise.h."""

    image: int
    out: int
    image_step: int
    out_step: int
    pad: int
    maps: int

    @property
    def parts(self) -> list[int]:
        """Output elements of each interleaved map."""
        return [-(-(self.out - part) // self.maps) for part in range(self.maps)]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the struct."""
        return (self.image, self.out, self.image_step, self.out_step, self.pad, self.maps)


@dataclass(frozen=True)
class PairedMaps:
    """How tt_depthwise_pairs cuts a layer. turned: its columns are taken for rows. strip: rows of tiles' inputs in scratch
    together. own: whether every interleaved map has its own place there, so that its border is cleared once."""

    down: Axis
    across: Axis
    turned: bool
    strip: int
    own: bool

    @property
    def elements(self) -> int:
        """Elements of the image of a map."""
        rows, columns = (self.strip + TAPS) // 2 * 2, max(self.across.parts) + TAPS - 1
        return rows * columns

    @property
    def scratch_elements(self) -> int:
        """Elements of all images in scratch."""
        return self.elements * (self.down.maps * self.across.maps if self.own else 1)

    @property
    def fits(self) -> bool:
        """Whether all numbers fit into instructions, and each row has a tile."""
        step = self.across.maps * self.across.out_step
        return min(self.across.parts) >= TILE and 2 * step <= REACH and self.strip + TAPS <= _LARGEST_STEP

    @property
    def cost(self) -> float:
        """Estimated instructions of a channel."""
        total = 0.0
        for tall in self.down.parts:
            strips = [min(self.strip, tall - begin) for begin in range(0, tall, self.strip)]
            for wide in self.across.parts:
                tiles = -(-wide // TILE)
                for high in strips:
                    total += high // TILE * (tiles * _TILE + _ROW) + high % TILE * (tiles * _HALF + _ROW)
                    total += (high + TAPS - 1) * (_LINE + _CELL * wide) + (0 if self.own else _CLEAR * wide)
        return total


def paired_maps(node: Node) -> KernelSpec | None:
    """Compute 3x3 windows in steps of one, dilated or not, two rows and two columns of an output at a time; None for
    others."""
    attrs, form = attrs_of(node, QConvAttrs), _form(node)
    if form is None:
        return None
    scratch = tirx.decl_buffer((form.scratch_elements,), "int16", "cells")
    turn, operands = tirx.Var("channel", "int32"), tensors(node, "x", "w", "bias", "multiplier", "shift")
    count, channels = operand(node, "x").shape[0], operand(node, "x").shape[3]
    axes = [struct("tt_axis_of", axis.numbers) for axis in (form.down, form.across)]
    zeros = (attrs.x_zero, attrs.y_zero)
    numbers: list[Expr] = [i32(n) for n in (channels, 1 if form.turned else TAPS, form.strip, form.elements * form.own, *zeros)]

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        call = called("tt_depthwise_pairs", *map(first, (y, scratch, *given)), turn, *axes, *numbers)
        loop = tirx.For(turn, i32(0), i32(count * channels), tirx.ForKind.SERIAL, call)
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), loop)

    return KernelSpec(operands, [written(operands, result(node, "y").shape, "int8", make)], plain)


def _form(node: Node) -> PairedMaps | None:
    """Return the cheapest way, None if none fits.

    A map that its output may overwrite is copied as the plan has it, or more of it at a time.
    """
    attrs, (_, height, width, channels), (_, high, wide, _) = (
        attrs_of(node, QConvAttrs),
        operand(node, "x").shape,
        result(node, "y").shape,
    )
    conv = attrs.conv
    if conv.kernel != (TAPS, TAPS) or conv.strides != (1, 1) or conv.split is not None or not short_ends(node):
        return None
    rows = Axis(height, high, width * channels, wide * channels, conv.pads[0], conv.dilations[0])
    columns = Axis(width, wide, channels, channels, conv.pads[1], conv.dilations[1])
    scratch, own, ways = op_def(node.op).scratch(node), forward_depthwise(node).strip, list[PairedMaps]()
    for turned, (down, across) in enumerate(((rows, columns), (columns, rows))):
        whole = max(down.parts)
        strips = {whole, *range(TILE, whole, TILE)}
        if not is_spread(node):
            strips = {whole} if turned else {strip for strip in strips if strip % own == 0}
        owns = {strip: down.maps * across.maps > 1 and strip == whole for strip in strips}
        found = [PairedMaps(down, across, turned == 1, strip, own) for strip in strips for own in {False, owns[strip]}]
        ways += [way for way in found if way.fits and _WIDE * way.scratch_elements <= scratch]
    return min(ways, key=lambda way: (way.cost, way.turned, way.strip), default=None)
