"""Depthwise convolutions with dilated windows, and their data gradients, on all cores without vectors (tt_spread.h)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, struct, tensors, written
from tinytrain_compile.lower.kernels.int8.odd import called_in_turns
from tinytrain_compile.lower.kernels.int8.operands import dense_ends, kept_of
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.spread_form import LineMap, SpreadMaps, line_map, spread_maps
from tinytrain_compile.ops.names import attrs_of, operand, result


def spread_depthwise(node: Node, pairs: bool) -> KernelSpec | None:
    """Compute a dilated QConv, channel by channel; None for others, and if it has no room. pairs: see _form_of."""
    attrs, form = attrs_of(node, QConvAttrs), _form_of(node, pairs)
    if form is None:
        return None
    count, _, _, channels = operand(node, "x").shape
    helper, numbers = _call_of(form, channels)

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        w, *tables = operands
        return called(helper, *places, w, turn, *numbers, i32(attrs.x_zero), dense_ends(attrs, tables))

    return called_in_turns(node, ("int16", form.scratch_elements), count * channels, body)


def spread_gradient(node: Node, pairs: bool) -> KernelSpec | None:
    """Compute the data gradient of a dilated QConv, channel by channel; None for others, and if it has no room."""
    form, attrs = _form_of(node, pairs), attrs_of(node, QConvGradInputAttrs)
    if form is None:
        return None
    count, _, _, channels = operand(node, "g").shape
    helper, numbers = _call_of(form, channels)
    scratch, turn = tirx.decl_buffer((form.scratch_elements,), "int16", "windows"), tirx.Var("turn", "int32")
    inputs = tensors(node, "peak", "p_out", "p_in", "g", "multiplier", "shift", "w", *attrs.mask.operands)

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        peak, p_out, p_in, g, multiplier, shift, w, *others = given
        places = map(first, (y, scratch, peak, g, w, multiplier, shift, *(others or [g])))
        exponent = p_in[(0,)] - p_out[(0,)]
        call = called(f"{helper}_error", *places, exponent, turn, *numbers, kept_of(attrs.mask))
        loop = tirx.For(turn, i32(0), i32(count * channels), tirx.ForKind.SERIAL, call)
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), loop)

    return KernelSpec(inputs, [written(inputs, result(node, "error").shape, "int8", make), None], plain)


def _form_of(node: Node, pairs: bool) -> LineMap | SpreadMaps | None:
    """Return the cut of a layer. pairs: whether the core has products in pairs; without them, maps beat long lines."""
    room = op_def(node.op).scratch(node)
    line = line_map(node, room)
    return line if line and (pairs or line.is_short) else spread_maps(node, room)


def _call_of(form: LineMap | SpreadMaps, channels: int) -> tuple[str, list[Expr]]:
    """Return the helper of a form, and its operands from the axes on."""
    if isinstance(form, LineMap):
        return "tt_depthwise_line", [struct("tt_axis_of", form.axis.numbers), i32(form.taps), i32(channels)]
    structs = [struct("tt_axis_of", axis.numbers) for axis in (form.down, form.across)]
    structs += [struct("tt_window_of", form.window), struct("tt_spread_tile_of", form.tile)]
    return "tt_depthwise_spread", [*structs, i32(channels), i32(form.elements if form.own else 0)]
