"""Conditions that become bounds of loops: each loop runs exactly where its tests hold."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tvm import tirx

from tinytrain_compile.lower.printing.c_text import Expr, If, Line, Loop, Statement, render, tidy
from tinytrain_compile.lower.printing.patterns import tests_of as parts_of
from tinytrain_compile.lower.tir_walk import kind_of

V, OUTER = tirx.Var("v", "int32"), tirx.Var("u", "int32")
EXTENT = 5


def _expr(node: Any) -> Expr:
    """C text with every operation in parentheses."""
    kind = kind_of(node)
    if kind == "IntImm":
        return Expr(str(int(node.value)))
    if kind == "Var":
        return Expr(str(node.name), variables=frozenset([str(node.name)]))
    sign = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "RShift": ">>"}.get(kind)
    sign = sign or {"LT": "<", "LE": "<=", "GT": ">", "GE": ">="}[kind]
    left, right = _expr(node.a), _expr(node.b)
    return Expr(f"({left.text} {sign} {right.text})", variables=left.variables | right.variables)


class _C(int):
    """An integer that divides as in C: towards zero."""

    def __truediv__(self, other: int) -> _C:
        return _C(abs(int(self)) // abs(other) * (1 if (int(self) < 0) == (other < 0) else -1))

    def __add__(self, other: int) -> _C:
        return _C(int(self) + other)

    def __sub__(self, other: int) -> _C:
        return _C(int(self) - other)

    def __mul__(self, other: int) -> _C:
        return _C(int(self) * other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: int) -> _C:
        return _C(other - int(self))


def _value(text: str, outer: int) -> int:
    """A bound as C computes it."""
    text = text.strip()
    if text.startswith("(") and " ? " in text:  # (a > b ? a : b), b without another choice
        test, _, choice = text[1:-1].partition(" ? ")
        yes, _, no = choice.partition(" : ")
        return _value(yes if eval(test, {"u": _C(outer)}) else no, outer)
    return eval(text, {"u": _C(outer)})


def _bounded(condition: Any) -> Loop:
    body: list[Statement] = [If(parts_of(condition, _expr), [Line("work();")], [])]
    (loop,) = tidy([Loop("v", "0", str(EXTENT), body)])
    assert isinstance(loop, Loop)
    return loop


@pytest.mark.parametrize("factor", [1, 2, 3, -1, -2, -3])
@pytest.mark.parametrize("start", range(-7, 8))
def test_a_bound_stands_for_its_comparison(factor: int, start: int) -> None:
    sides = (V * factor + OUTER + start, tirx.const(0, "int32"))
    for compare, flip in itertools.product((tirx.GE, tirx.GT, tirx.LE, tirx.LT), (False, True)):
        condition = compare(*(sides[::-1] if flip else sides))
        loop = _bounded(condition)
        assert loop.body == [Line("work();")], "no test is left"
        for outer in range(-4, 5):
            ran = list(range(_value(loop.low, outer), _value(loop.high, outer)))
            holds = _expr(condition).text
            assert ran == [v for v in range(EXTENT) if eval(holds, {"u": outer, "v": v})], (holds, outer, loop)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("start", range(-4, 5))
def test_a_bound_stands_for_a_comparison_that_is_divided(start: int, turned: bool) -> None:
    """TVM divides by what all terms share; a dividend may be negative but for C's own division."""
    two, three = tirx.const(2, "int32"), tirx.const(3, "int32")
    for quotient in (tirx.FloorDiv(V - 2, three), tirx.RShift(V - 3, two), tirx.Div(V, three)):
        difference = OUTER * 2 + start - quotient if turned else quotient + OUTER * 2 + start
        for compare in (tirx.GE, tirx.GT):
            condition = compare(difference, tirx.const(0, "int32"))
            loop = _bounded(condition)
            assert loop.body == [Line("work();")], "no test is left"
            for outer in range(-3, 4):
                ran = list(range(_value(loop.low, outer), _value(loop.high, outer)))
                holds = _expr(condition).text
                assert ran == [v for v in range(EXTENT) if eval(holds, {"u": outer, "v": _C(v)})], (holds, outer, loop)


def test_what_does_not_depend_on_a_loop_is_tested_before_it() -> None:
    condition = tirx.And(OUTER < 3, V + OUTER < 4)
    (outer,) = tidy([Loop("v", "0", "5", [If(parts_of(condition, _expr), [Line("work();")], [])])])
    assert isinstance(outer, If) and outer.condition == "(u < 3)"
    assert isinstance(outer.body[0], Loop) and outer.body[0].low == "0" and "(4 - u)" in outer.body[0].high


def test_a_test_of_something_else_stays() -> None:
    odd = tirx.EQ(tirx.indexmod(V, 2), 0)
    text = Expr("v % 2 == 0", 8, frozenset("v"))
    body: list[Statement] = [If(parts_of(odd, lambda _: text), [Line("work();")], [])]
    assert "\n".join(render(tidy([Loop("v", "0", "5", body)]))).count("if (v % 2 == 0)") == 1


def test_both_ways_of_a_choice_are_taken() -> None:
    body: list[Statement] = [If(parts_of(V < 3, _expr), [Line("yes();")], [Line("no();")])]
    (loop,) = tidy([Loop("v", "0", "5", body)])
    assert isinstance(loop, Loop) and loop.high == "5" and isinstance(loop.body[0], If)
