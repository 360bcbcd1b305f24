"""A loop over tiles of which one helper call computes the sums and another one their ends is one call of both.

That call keeps in registers what would be loaded anew for every tile (tt_dsp_tiles.h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, sym, tirx
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.lower.printing.c_expr import Expr
from tinytrain_compile.lower.printing.c_tree import If, Line, Statement
from tinytrain_compile.lower.printing.conditions import tests_of
from tinytrain_compile.lower.tir_walk import addressed, helper_name, is_call, is_helper, variables
from tinytrain_compile.ops.int8.line_tiles import MOST_BLOCKS

_WIDENED = 4
"""Elements that tt_widen_column moves at a time."""
_SUMS, _TERMS, _TILE, _WORDS = 4, 8, 2, 6
"""Sums of a tile; elements of a block; columns of a tile, and words that their ends read."""


Element = Callable[[Buffer, ir.Expr], str]
"""(buffer, index) -> C of the element"""


def in_one_call(loop: tirx.For, element: Element, expr: Callable[[ir.Expr], Expr]) -> Statement | None:
    """The call of a helper that does what a loop does, if there is one."""
    if (moved := widened_column(loop, element)) is not None:
        return If(tests_of(moved[0], expr), [Line(moved[1])], [Line(moved[2])])
    call = row_of_tiles(loop, element) or kept_ends(loop, element)
    return Line(call) if call else None


def kept_ends(loop: tirx.For, element: Element) -> str | None:
    """The call that puts into scratch what the ends of sums read of each channel: bias, tt_factor, minus the shift."""
    parts = loop.body.seq if isinstance(loop.body, tirx.SeqStmt) else ()
    stores = [part for part in parts if isinstance(part, tirx.BufferStore)]
    if not len(stores) == len(parts) == _WORDS // 2 or not _is(loop.min, 0):
        return None
    bias, factor, down = (store.value for store in stores)
    if not (isinstance(bias, ir.TensorLoad) and is_helper(factor) and isinstance(down, tirx.Sub) and _is(down.a, 0)):
        return None
    if helper_name(factor) != "tt_factor" or not isinstance(down.b, tirx.Cast):
        return None
    loads = [load for load in (bias, factor.args[1], down.b.value) if isinstance(load, ir.TensorLoad)]
    if len(loads) != _WORDS // 2:
        return None
    places = [(stores[0].buffer, stores[0].indices[0], _WORDS // 2), *((v.source, v.indices[0], 1) for v in loads)]
    texts: list[str] = []
    for buffer, index, step in places:
        parts = sym.detect_linear_equation(index, [loop.loop_var])
        if len(parts) == 0 or not _is(parts[0], step):
            return None
        texts.append(f"&{element(buffer, parts[1])}")
    return f"tt_keep_ends({', '.join(texts)}, {loop.extent});"


def widened_column(loop: tirx.For, element: Element) -> tuple[ir.Expr, str, str] | None:
    """(condition, call if it holds, call if not) of a loop that widens int8 and stores them apart, or stores zeros.

    None if the loop is another one.
    """
    store, var = loop.body, loop.loop_var
    if not isinstance(store, tirx.BufferStore) or not is_call(store.value, "if_then_else") or not _is(loop.min, 0):
        return None
    condition, value, other = store.value.args
    if not _is(other, 0) or not isinstance(value, tirx.Sub) or not isinstance(value.a, tirx.Cast):
        return None
    load, zero = value.a.value, value.b
    if not isinstance(load, ir.TensorLoad) or str(load.source.dtype) != "int8" or not isinstance(zero, tirx.IntImm):
        return None
    to, source = (sym.detect_linear_equation(index, [var]) for index in (store.indices[0], load.indices[0]))
    steps = [int(parts[0]) if parts and isinstance(parts[0], tirx.IntImm) else 0 for parts in (to, source)]
    if steps[0] < 2 or steps[1] < 1 or var in variables(condition) or not isinstance(loop.extent, tirx.IntImm):
        return None
    if int(loop.extent) % _WIDENED:
        return None
    place, rest = f"&{element(store.buffer, to[1])}", f"{steps[0]}, {loop.extent}"
    widened = f"tt_widen_column({place}, &{element(load.source, source[1])}, {-int(zero)}, {steps[1]}, {rest});"
    return condition, widened, f"tt_clear_column({place}, {rest});"


def row_of_tiles(loop: tirx.For, element: Element) -> str | None:
    """The call that computes what the loop does; None if the loop is another one. element: C of a buffer's element."""
    calls = _calls(loop.body)
    if calls is None or not _is(loop.min, 0) or not isinstance(loop.extent, tirx.IntImm):
        return None
    names = tuple(helper_name(call) for call in calls)
    dot, end = (list[Any](call.args[1:]) for call in calls)
    first, second, *numbers = dot[_SUMS:]
    if names == ("tt_dot_2x2", "tt_ends_2x2") and int(numbers[0]) <= MOST_BLOCKS:
        row, kept, last = "tt_product_tiles", list[Any](), end[2 + _SUMS :]
        moved = ((end[0], _TILE), (end[1], _WORDS), (first, 0), (second, _TERMS * int(numbers[0])))
    elif names == ("tt_depthwise_2x2", "tt_depthwise_ends"):
        row, kept, last = "tt_depthwise_tiles", end[1:4], end[4 + _SUMS :]
        moved = ((end[0], _TILE * int(last[0])), (first, _TILE * int(numbers[0])), (second, 0))
    else:
        return None
    places = [_place(operand, loop.loop_var, step, element) for operand, step in moved]
    words = [element(value.source, value.indices[0]) for value in kept]
    if None in places:
        return None
    return f"{row}({', '.join(map(str, [*places, *words, loop.extent, *numbers, *last]))});"


def _place(operand: ir.Call, var: ir.Var, step: int, element: Element) -> str | None:
    """Where an operand begins for the first tile, if it lies `step` elements further on for each of the next ones."""
    load = addressed(operand)
    parts = sym.detect_linear_equation(load.indices[0], [var])
    if len(parts) == 0 or not _is(parts[0], step):
        return None
    return f"&{element(load.source, parts[1])}"


def _calls(body: Stmt) -> list[ir.Call] | None:
    """The two calls of helpers that are all of a loop's body, behind sums that begin with 0."""
    if not isinstance(body, tirx.SeqStmt):
        return None
    parts = [part for part in body.seq if not isinstance(part, tirx.AllocBuffer)]
    starts, rest = parts[:_SUMS], parts[_SUMS:]
    zero = all(isinstance(start, tirx.BufferStore) and _is(start.value, 0) for start in starts)
    calls = [part.value for part in rest if isinstance(part, tirx.Evaluate) and is_helper(part.value)]
    return calls if zero and len(rest) == len(calls) == 2 else None


def _is(value: ir.Expr, number: int) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == number
