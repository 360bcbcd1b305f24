"""Depthwise convolutions of maps of any size and dilation, for cores with products in pairs (tt_depthwise.h)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.ir import Expr
from tvm.tirx import Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, called, i32, struct
from tinytrain_compile.lower.kernels.int8.odd import called_in_turns
from tinytrain_compile.lower.kernels.int8.operands import dense_ends
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.map_form import TAPS, PairedMaps, SpreadMaps, line_map, paired_maps, spread_maps
from tinytrain_compile.ops.names import attrs_of, operand


def paired_depthwise(node: Node) -> KernelSpec | None:
    """Compute 3x3 windows in steps of one, dilated or not, two rows and two columns of an output at a time; None for
    others."""
    attrs, form = attrs_of(node, QConvAttrs), paired_maps(node, op_def(node.op).scratch(node))
    if form is None:
        return None
    cut = (1 if form.turned else TAPS, form.strip, form.elements if form.own else 0)
    numbers = [i32(number) for number in (operand(node, "x").shape[3], *cut, attrs.x_zero, attrs.y_zero)]

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        return called("tt_depthwise_pairs", *places, *operands, turn, *_axes_of(form), *numbers)

    return _in_channels(node, form.scratch_elements, body)


def spread_depthwise(node: Node) -> KernelSpec | None:
    """Compute windows whose dilation does not divide the map, one interleaved map after the other; None for others."""
    attrs, form = attrs_of(node, QConvAttrs), spread_maps(node, op_def(node.op).scratch(node))
    if form is None:
        return None
    structs = (struct("tt_window_of", form.window), struct("tt_spread_tile_of", form.tile))
    cut = (operand(node, "x").shape[3], form.elements if form.own else 0, attrs.x_zero)
    numbers = [*structs, *map(i32, cut)]

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        w, *tables = operands
        return called("tt_depthwise_spread", *places, w, turn, *_axes_of(form), *numbers, dense_ends(attrs, tables))

    return _in_channels(node, form.scratch_elements, body)


def line_depthwise(node: Node) -> KernelSpec | None:
    """Compute a dilated layer of one row or one column, four neighbours of the output at a time; None for others."""
    attrs, along = attrs_of(node, QConvAttrs), line_map(node, op_def(node.op).scratch(node))
    if along is None:
        return None
    numbers = [struct("tt_axis_of", along.axis.numbers), *map(i32, (along.taps, operand(node, "x").shape[3], attrs.x_zero))]

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        w, *tables = operands
        return called("tt_depthwise_line", *places, w, turn, *numbers, dense_ends(attrs, tables))

    return _in_channels(node, along.elements, body)


def _axes_of(form: PairedMaps | SpreadMaps) -> list[Expr]:
    return [struct("tt_axis_of", axis.numbers) for axis in (form.down, form.across)]


def _in_channels(node: Node, elements: int, body: Callable[[Sequence[Expr], Sequence[Expr], Expr], Stmt]) -> KernelSpec:
    """Return the kernel that is one call per channel of each image; body: as called_in_turns has it."""
    count, _, _, channels = operand(node, "x").shape
    return called_in_turns(node, ("int16", elements), count * channels, body)
