"""A loop over tiles of which one helper call computes the sums and another one their ends is one call of both.

That call keeps in registers what would be loaded anew for every tile (tt_dsp_tiles.h).
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.lower.tir_walk import addressed, is_helper
from tinytrain_compile.ops.int8.line_tiles import MOST_BLOCKS

_SUMS, _TERMS, _TILE, _WORDS = 4, 8, 2, 6
"""Sums of a tile; elements of a block; columns of a tile, and words that their ends read."""


def row_of_tiles(loop: tirx.For, element: Callable[[Buffer, ir.Expr], str]) -> str | None:
    """The call that computes what the loop does; None if the loop is another one. element: C of a buffer's element."""
    calls = _calls(loop.body)
    if calls is None or not _is(loop.min, 0):
        return None
    (sums, *dot), (ends, *end) = (call.args for call in calls)
    first, second, *numbers = dot[_SUMS:]
    if (sums.value, ends.value) == ("tt_dot_2x2", "tt_ends_2x2") and int(numbers[0]) <= MOST_BLOCKS:
        row, kept, last = "tt_product_tiles", [], end[2 + _SUMS :]
        moved = ((end[0], _TILE), (end[1], _WORDS), (first, 0), (second, _TERMS * int(numbers[0])))
    elif (sums.value, ends.value) == ("tt_depthwise_2x2", "tt_depthwise_ends"):
        row, kept, last = "tt_depthwise_tiles", end[1:4], end[4 + _SUMS :]
        moved = ((end[0], _TILE * int(last[0])), (first, _TILE * int(numbers[0])), (second, 0))
    else:
        return None
    places = [_place(operand, loop.loop_var, step, element) for operand, step in moved]
    words = [element(value.source, value.indices[0]) for value in kept]
    if None in places:
        return None
    return f"{row}({', '.join(map(str, [*places, *words, loop.extent, *numbers, *last]))});"


def _place(operand: ir.Expr, var: ir.Var, step: int, element: Callable[[Buffer, ir.Expr], str]) -> str | None:
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
