"""Formulas of kernel files: integer arithmetic, comparisons and and/or/not over named numbers, and nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

LONGEST = 400
"""Characters of a formula."""
LIMIT = 1 << 53
"""Of every intermediate result's magnitude."""


_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"min": min, "max": max}


@dataclass(frozen=True)
class Formula:
    """A parsed formula: `text` for people, `tree` to evaluate."""

    text: str
    tree: ast.expr

    def value(self, numbers: Mapping[str, int]) -> int:
        """Compute its value; conditions are 0 or 1. ValueError on a division by 0 and on results beyond LIMIT."""
        return _value(self.tree, numbers)


def parse_formula(text: str, names: Collection[str]) -> Formula:
    """Parse a formula over these names. ValueError says what is wrong with the text."""
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    try:
        tree = _parsed(text)
        _check(tree, names)
    except (SyntaxError, RecursionError, MemoryError) as problem:
        raise ValueError("is no formula") from problem
    return Formula(text, tree)


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except ValueError as problem:  # Python before 3.11.4 says this of null bytes
        raise SyntaxError(str(problem)) from problem


def _check(tree: ast.expr, names: Collection[str]) -> None:
    """Raise ValueError unless every part of the tree is one that `_value` knows."""
    if isinstance(tree, ast.Name):
        if tree.id not in names:
            raise ValueError(f"knows no {tree.id!r} (it may use {', '.join(names)})")
    elif isinstance(tree, ast.Constant):
        if type(tree.value) is not int:
            raise ValueError("may hold integers only")
    else:
        for part in _operands(tree):
            _check(part, names)


def _operands(tree: ast.expr) -> list[ast.expr]:
    """Return the parts of an operation; ValueError for one that formulas do not have."""
    if isinstance(tree, ast.BinOp) and type(tree.op) in _BINARY:
        return [tree.left, tree.right]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.Not):
        return [tree.operand]
    if isinstance(tree, ast.BoolOp):
        return tree.values
    if isinstance(tree, ast.Compare) and all(type(op) in _COMPARE for op in tree.ops):
        return [tree.left, *tree.comparators]
    if isinstance(tree, ast.Call) and tree.args and not tree.keywords and _function(tree) in _FUNCTIONS:
        return tree.args  # a starred one is no part that `_check` knows
    raise ValueError("may use + - * // % == != < <= > >= and or not min() max() and integers only")


def _value(tree: ast.expr, numbers: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Name):
        return numbers[tree.id]
    if isinstance(tree, ast.Constant):
        assert isinstance(tree.value, int)
        return _limited(tree.value)
    if isinstance(tree, ast.BoolOp):  # the right side may divide by what the left side has tested
        wanted = isinstance(tree.op, ast.Or)
        return int(wanted if any(bool(_value(part, numbers)) == wanted for part in tree.values) else not wanted)
    values = [_value(part, numbers) for part in _operands(tree)]
    if isinstance(tree, ast.BinOp):
        try:
            return _limited(_BINARY[type(tree.op)](*values))
        except ZeroDivisionError as problem:
            raise ValueError("divides by 0") from problem
    if isinstance(tree, ast.UnaryOp):
        return -values[0] if isinstance(tree.op, ast.USub) else int(not values[0])
    if isinstance(tree, ast.Compare):
        pairs = zip(tree.ops, values, values[1:], strict=False)
        return int(all(_COMPARE[type(op)](left, right) for op, left, right in pairs))
    assert isinstance(tree, ast.Call)
    return _FUNCTIONS[_function(tree)](values)


def _function(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _limited(number: int) -> int:
    if abs(number) > LIMIT:
        raise ValueError(f"gives numbers beyond {LIMIT}")
    return number
