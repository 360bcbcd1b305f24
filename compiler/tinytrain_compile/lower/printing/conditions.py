"""Conditions of TIR as C tests, each with what it says of a loop's variable: where the loop may begin or has to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvm import ir, sym, tirx

from tinytrain_compile.lower.printing.c_expr import BINARY, Expr, dtype_of
from tinytrain_compile.lower.printing.c_tree import Limit, Test
from tinytrain_compile.lower.tir_walk import variables

Print = Callable[[ir.Expr], Expr]
_AND = BINARY["And"][1]


def tests_of(condition: ir.Expr, expr: Print) -> tuple[Test, ...]:
    """The parts of a condition that all have to hold."""
    if isinstance(condition, tirx.And):
        return tests_of(condition.a, expr) + tests_of(condition.b, expr)
    found = expr(condition)
    limits = {} if found.loads else dict(_limits(condition, expr))
    return (Test(found.text, found.at(_AND), found.variables, not found.loads, limits),)


def _limits(condition: ir.Expr, expr: Print) -> Iterator[tuple[str, Limit]]:
    difference = _not_negative(condition)
    if difference is None:
        return
    for var in variables(difference):
        found = sym.detect_linear_equation(difference, [var])
        if found and isinstance(found[0], tirx.IntImm) and int(found[0]):
            factor, rest = int(found[0]), found[1]
            # C rounds to 0: of a negative place that is not above 0, where no loop begins or goes on.
            place = factor - 1 - rest if factor > 0 else rest - factor
            place = tirx.Div(place, tirx.const(abs(factor), "int32")) if abs(factor) > 1 else place
            text = expr(sym.Analyzer().simplify(place))
            yield expr(var).text, Limit(factor > 0, text.at(_AND))


def _not_negative(condition: ir.Expr) -> ir.Expr | None:
    """An integer that is not negative where the comparison holds; None: no comparison of integers."""
    if not isinstance(condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE) or "int" not in dtype_of(condition.a):
        return None
    below = isinstance(condition, tirx.LT | tirx.LE)
    low, high = (condition.a, condition.b) if below else (condition.b, condition.a)
    return high - low - (1 if isinstance(condition, tirx.LT | tirx.GT) else 0)
