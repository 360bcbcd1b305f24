"""Patterns of TIR that are printed as a whole: tests of conditions, runs and rows of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm import ir, sym, tirx
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.lower.printing.c_text import BINARY, Expr, If, Limit, Line, Statement, Test, dtype_of
from tinytrain_compile.lower.tir_walk import addressed, helper_name, is_call, is_helper, variables
from tinytrain_compile.ops.int8.tiles import MOST_BLOCKS

# ---- tests of conditions ---------------------------------------------------------------------------------------------
# Conditions of TIR as C tests, each with the bound of a loop's variable at which the loop may begin or must end.

Print = Callable[[ir.Expr], Expr]
_AND = BINARY["And"][1]


def tests_of(condition: ir.Expr, expr: Print) -> tuple[Test, ...]:
    """Return the parts of a condition that all have to hold."""
    if isinstance(condition, tirx.And):
        return tests_of(condition.a, expr) + tests_of(condition.b, expr)
    found = expr(condition)
    limits = {} if found.loads else dict(_limits(condition, expr))
    return (Test(found.text, found.at(_AND), found.variables, not found.loads, limits),)


def _limits(condition: ir.Expr, expr: Print) -> Iterator[tuple[str, Limit]]:
    difference = _not_negative(condition)
    if difference is None:
        return
    difference = _undivided(difference)
    for var in variables(difference):
        found = sym.detect_linear_equation(difference, [var])
        if found and isinstance(found[0], tirx.IntImm) and int(found[0]):
            factor, rest = int(found[0]), found[1]
            # C rounds towards 0: a negative place gives at most 0, at which no loop begins or continues.
            place = factor - 1 - rest if factor > 0 else rest - factor
            place = tirx.Div(place, tirx.const(abs(factor), "int32")) if abs(factor) > 1 else place
            text = expr(sym.Analyzer().simplify(place))
            yield expr(var).text, Limit(factor > 0, text.at(_AND))


def _not_negative(condition: ir.Expr) -> ir.Expr | None:
    """Return an integer that is not negative if and only if the comparison holds; None unless it compares integers."""
    if not isinstance(condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE) or "int" not in dtype_of(condition.a):
        return None
    below = isinstance(condition, tirx.LT | tirx.LE)
    low, high = (condition.a, condition.b) if below else (condition.b, condition.a)
    return high - low - (1 if isinstance(condition, tirx.LT | tirx.GT) else 0)


def _undivided(difference: ir.Expr) -> ir.Expr:
    """Return a number that has the sign of this one, without its only quotient.

    TVM divides both sides of a comparison by what all terms share: of row + 4 tap >= 4 it makes row / 4 + tap >= 1.
    """
    terms = list(_terms(difference, 1))
    quotients = [(*parts, factor) for term, factor in terms if (parts := _quotient(term)) is not None]
    if len(quotients) != 1:
        return difference
    value, divisor, sign = quotients[0]
    rest: Any = sum((term * factor for term, factor in terms if _quotient(term) is None), tirx.const(0, "int32"))
    return value + rest * divisor if sign > 0 else rest * divisor + (divisor - 1) - value


def _terms(value: ir.Expr, sign: int) -> Iterator[tuple[ir.Expr, int]]:
    if isinstance(value, tirx.Add | tirx.Sub):
        yield from _terms(value.a, sign)
        yield from _terms(value.b, sign if isinstance(value, tirx.Add) else -sign)
    else:
        yield value, sign


def _quotient(value: ir.Expr) -> tuple[ir.Expr, int] | None:
    """Return (dividend, divisor) of a division by a number that rounds down, as that of a loop's variable does."""
    if not isinstance(value, tirx.FloorDiv | tirx.Div | tirx.RShift) or not isinstance(value.b, tirx.IntImm):
        return None
    if isinstance(value, tirx.Div) and not isinstance(value.a, ir.Var):
        return None
    return value.a, 1 << int(value.b) if isinstance(value, tirx.RShift) else int(value.b)


# ---- runs of weights -------------------------------------------------------------------------------------------------
# A loop that moves neighbouring weights by their gradients is one call of a helper, which loads eight at a time. The
# helpers (tt_sgd and its relatives in tt_float_pairs.h) do the same to every element, in the same order.

LEAST = 16
"""Fewest elements of a loop for which a call pays off."""
Element = Callable[[Buffer, ir.Expr], str]
MayOverlap = Callable[[Buffer, Buffer], bool]
"""Tells whether two buffers may share bytes, as far as `restrict` says."""
"""(buffer, index) -> C of the element"""


def clamped_run(loop: tirx.For, element: Element, expr: Callable[[ir.Expr], Expr], ending: str) -> str | None:
    """Return the call equivalent to a loop that keeps elements between bounds; ending: of the helper's name."""
    store = loop.body
    if not isinstance(store, tirx.BufferStore) or str(store.buffer.dtype) != "float32" or _is_short(loop):
        return None
    inner, high = _bounded(store.value, False, expr)
    x, low = _bounded(inner, True, expr)
    if (low is None and high is None) or not isinstance(x, ir.TensorLoad):
        return None
    places = [
        _begin(store.buffer, store.indices[0], loop, element),
        _begin(x.source, x.indices[0], loop, element),
    ]
    if None in places:
        return None
    bounds = [expr(bound).text for bound in (low, high) if bound is not None]
    sides = "both" if len(bounds) == 2 else "low" if high is None else "high"
    return f"tt_clip_{sides}{ending}({', '.join([*map(str, places), *bounds, expr(loop.extent).text])});"


def _bounded(value: ir.Expr, below: bool, expr: Callable[[ir.Expr], Expr]) -> tuple[ir.Expr, tirx.FloatImm | None]:
    """Return (x, bound) of a value that is x, or a bound if x is below it (or above it); (value, None) of others."""
    if not isinstance(value, tirx.Select) or not isinstance(value.condition, tirx.LT):
        return value, None
    x, bound = (value.condition.a, value.condition.b) if below else (value.condition.b, value.condition.a)
    sides = [expr(side).text for side in (bound, x)]
    if not isinstance(bound, tirx.FloatImm) or sides != [expr(value.true_value).text, expr(value.false_value).text]:
        return value, None
    return x, bound


def _is_short(loop: tirx.For) -> bool:
    """Tell whether a loop has too few turns for a call."""
    return isinstance(loop.extent, tirx.IntImm) and int(loop.extent) < LEAST


def moved_run(loop: tirx.For, element: Element, expr: Callable[[ir.Expr], Expr]) -> str | None:
    """Return the call equivalent to a loop; None for other loops."""
    store = loop.body
    if not isinstance(store, tirx.BufferStore) or str(store.buffer.dtype) != "float32":
        return None
    if _is_short(loop):
        return None
    weight = element(store.buffer, store.indices[0])
    found = _moved(store.value, weight, element)
    if found is None:
        return None
    name, gradient, numbers = found
    places = [
        _begin(store.buffer, store.indices[0], loop, element),
        _begin(gradient.source, gradient.indices[0], loop, element),
    ]
    fixed = [number for number in numbers if loop.loop_var not in variables(number)]
    if None in places or len(fixed) < len(numbers):
        return None
    return (
        f"{name}({', '.join([*map(str, places), *(expr(number).text for number in fixed), expr(loop.extent).text])});"
    )


def _moved(value: ir.Expr, weight: str, element: Element) -> tuple[str, ir.TensorLoad, list[ir.Expr]] | None:
    """Return (helper, the gradient's element, numbers that are the same for all) of a weight's new value."""
    if not isinstance(value, tirx.Add | tirx.Sub) or not _is_element(value.a, weight, element):
        return None
    if isinstance(value, tirx.Add):
        return ("tt_accumulate", value.b, []) if isinstance(value.b, ir.TensorLoad) else None
    if not isinstance(value.b, tirx.Mul):
        return None
    rate, step = value.b.a, value.b.b
    name, scale, decay = "tt_sgd", list[ir.Expr](), list[ir.Expr]()
    if isinstance(step, tirx.Add) and isinstance(step.b, tirx.Mul) and _is_element(step.b.b, weight, element):
        decay, step = [step.b.a], step.a
    if isinstance(step, tirx.Mul) and isinstance(step.a, ir.TensorLoad):
        scale, step = [step.b], step.a
    if not isinstance(step, ir.TensorLoad):
        return None
    name += ("_scaled" if scale else "") + ("_decayed" if decay else "")
    return name, step, [rate, *scale, *decay]


def _is_element(value: ir.Expr, text: str, element: Element) -> bool:
    return isinstance(value, ir.TensorLoad) and element(value.source, value.indices[0]) == text


def _begin(buffer: Buffer, index: ir.Expr, loop: tirx.For, element: Element) -> str | None:
    """Return the address of the first element, if elements are neighbours."""
    parts = sym.detect_linear_equation(index, [loop.loop_var])
    if len(parts) == 0 or not isinstance(parts[0], tirx.IntImm) or int(parts[0]) != 1:
        return None
    return f"&{element(buffer, sym.Analyzer().simplify(parts[1] + loop.min))}"


# ---- rows of tiles ---------------------------------------------------------------------------------------------------
# A loop over tiles in which one helper call computes the sums and another one their ends becomes one call. That call
# keeps in registers what would be loaded again for every tile (tt_dsp_tiles.h).

_WIDENED = 4
"""Elements that tt_widen_column moves at a time."""
_SUMS, _TERMS, _TILE, _WORDS = 4, 8, 2, 6
"""Sums of a tile; elements of a block; columns of a tile, and words that their ends read."""


def in_one_call(
    loop: tirx.For, element: Element, expr: Callable[[ir.Expr], Expr], may_overlap: MayOverlap
) -> Statement | None:
    """Return the helper call equivalent to a loop, if there is one."""
    if (moved := widened_column(loop, element)) is not None:
        return If(tests_of(moved[0], expr), [Line(moved[1])], [Line(moved[2])])
    call = row_of_tiles(loop, element) or kept_ends(loop, element) or moved_bytes(loop, element, may_overlap)
    return Line(call) if call else None


RUN = 32
"""Bytes that are worth a call of memmove; a choice, near which call and loop cost about the same."""


def moved_bytes(loop: tirx.For, element: Element, may_overlap: MayOverlap) -> str | None:
    """Return the call of memmove that does what a loop over a run of int8 does.

    Not of other types: some libraries' memmove takes one byte at a time. Nor if `restrict` says that the two are apart:
    compilers then call memcpy by themselves.
    """
    store, var = loop.body, loop.loop_var
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.TensorLoad) or not _is(loop.min, 0):
        return None
    places = ((store.buffer, store.indices), (store.value.source, store.value.indices))
    if not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) < RUN:
        return None
    if not may_overlap(store.buffer, store.value.source):
        return None
    texts = list[str]()
    for buffer, indices in places:
        parts = sym.detect_linear_equation(indices[0], [var]) if str(buffer.dtype) == "int8" else ()
        if len(parts) == 0 or not _is(parts[0], 1):
            return None
        texts.append(f"&{element(buffer, parts[1])}")
    return f"memmove({', '.join(texts)}, {loop.extent}u);"


def kept_ends(loop: tirx.For, element: Element) -> str | None:
    """Return the call that stores a channel's numbers for ends of sums in scratch: bias, tt_factor, minus the shift."""
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
    """Return (condition, call if it holds, call if not) of a loop that widens int8, or stores zeros.

    None for other loops.
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
    """Return the call equivalent to a loop over a row of tiles.

    None for other loops. element: C of a buffer's element.
    """
    calls = _calls(loop.body)
    if calls is None or not _is(loop.min, 0) or not isinstance(loop.extent, tirx.IntImm):
        return None
    names = tuple(helper_name(call) for call in calls)
    dot, end = (list[Any](call.args[1:]) for call in calls)
    first, second, *numbers = dot[_SUMS:]
    if names != ("tt_dot_2x2", "tt_ends_2x2") or int(numbers[0]) > MOST_BLOCKS:
        return None
    moved = ((end[0], _TILE), (end[1], _WORDS), (first, 0), (second, _TERMS * int(numbers[0])))
    places = [_place(operand, loop.loop_var, step, element) for operand, step in moved]
    if None in places:
        return None
    return f"tt_product_tiles({', '.join(map(str, [*places, loop.extent, *numbers, *end[2 + _SUMS :]]))});"


def _place(operand: ir.Call, var: ir.Var, step: int, element: Element) -> str | None:
    """Return an operand's address for the first tile, if it advances by `step` elements per tile."""
    load = addressed(operand)
    parts = sym.detect_linear_equation(load.indices[0], [var])
    if len(parts) == 0 or not _is(parts[0], step):
        return None
    return f"&{element(load.source, parts[1])}"


def _calls(body: Stmt) -> list[ir.Call] | None:
    """Return the two helper calls of a loop's body, if it has only these after sums that begin with 0."""
    if not isinstance(body, tirx.SeqStmt):
        return None
    parts = [part for part in body.seq if not isinstance(part, tirx.AllocBuffer)]
    starts, rest = parts[:_SUMS], parts[_SUMS:]
    zero = all(isinstance(start, tirx.BufferStore) and _is(start.value, 0) for start in starts)
    calls = [part.value for part in rest if isinstance(part, tirx.Evaluate) and is_helper(part.value)]
    return calls if zero and len(rest) == len(calls) == 2 else None


def _is(value: ir.Expr, number: int) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == number
