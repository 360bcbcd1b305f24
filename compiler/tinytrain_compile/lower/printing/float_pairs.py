"""Printing of a register tile's multiply-adds on pairs of floats: neighbours in memory are one load (tt_float_pairs.h).

A tile's sums follow one another in unrolled code. Two neighbours that they read, along the tile or along the sum, are
loaded as a pair, and each multiply-add names its half. Values and their order stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tvm import ir, sym, tirx
from tvm.tirx import Stmt

from tinytrain_compile.lower.left_out import kept_sums
from tinytrain_compile.lower.printing.c_text import ATOM, Expr, If, Line, Loop, Statement, dtype_of, join
from tinytrain_compile.lower.printing.patterns import clamped_run, moved_run
from tinytrain_compile.lower.printing.printer import Printer
from tinytrain_compile.lower.tir_walk import buffers_of, has_calls, helper_name, is_call, is_helper

PAIR_TYPE, PRODUCT = "tt_float_pair", "tt_rounded_product"
_ENOUGH = 32
"""Turns of a loop, and of those around it, for which unrolling pays."""


@dataclass
class _Half:
    """An element of a pair: the first (0) or the second (1)."""

    pair: _Pair
    half: int


@dataclass
class _Pair:
    """Two neighbours in memory: the place of the first, and the name of the variable once it is loaded."""

    place: ir.TensorLoad
    name: str = ""


_Sides = tuple[ir.Expr, ir.Expr]


class _Both(NamedTuple):
    """Two values that are stored as neighbours: a pair, or one value that both have."""

    expr: Expr
    paired: bool


class PairPrinter(Printer):
    """A printer that also prints runs of multiply-adds on pairs, and loops of an optimizer as calls."""

    _ending = ""
    """Ending of the names of helpers that depend on the FPU's instructions."""
    _halves: Mapping[str, _Half] = MappingProxyType({})
    """Text of an element -> its half of a pair, in the run being printed."""
    _turns: int = 1
    """Turns of the loops around what is being printed."""

    def _body(self, node: Stmt) -> list[Statement]:
        if isinstance(node, tirx.For):
            call = moved_run(node, self._element, self._expr)
            call = call or clamped_run(node, self._element, self._expr, self._ending)
            return [Line(call)] if call else super()._body(node)
        if not isinstance(node, tirx.SeqStmt):
            return super()._body(node)
        found: list[Statement] = []
        run: list[
            tuple[tirx.BufferStore, tirx.Mul]
        ] = []  # statements that add a product under one condition (or none), and the products
        under = ""
        for item in self._in_pairs(kept_sums(node.seq)):
            if isinstance(item, Line):
                found += [*self._paired(run), item]
                run = []
                continue
            parts = self._parts(item)
            if run and (parts is None or parts[2] != under):
                found += self._paired(run)
                run = []
            if parts is None:
                found += self._body(item)
            else:
                run, under = [*run, parts[:2]], parts[2]
        return found + self._paired(run)

    def _loop(self, node: tirx.For) -> Loop:
        before = self._turns
        self._turns *= int(node.extent) if isinstance(node.extent, tirx.IntImm) else _ENOUGH
        loop = super()._loop(node)
        self._turns = before
        return loop

    def _moves(self, body: Stmt) -> bool:
        return super()._moves(body) or (self._unroll_moves and self._turns >= _ENOUGH and self._is_light(body))

    def _is_light(self, body: Stmt) -> bool:
        """Tell whether a loop sums up, or reads several operands, without calls.

        Its turns then take about as few instructions as its end. A loop over one operand is not worth more code.
        """
        if isinstance(body, tirx.SeqStmt) and isinstance(body.seq[0], tirx.Bind):  # sums that one pass makes
            return not has_calls(body) and all(isinstance(part, tirx.Bind) or self._is_light(part) for part in body.seq)
        if not isinstance(body, tirx.BufferStore) or str(body.buffer.dtype) != "float32" or has_calls(body):
            return False
        roots = {hash(root) for root in map(self._root, buffers_of(body.value)) if root not in self._scalars}
        return self._root(body.buffer) in self._scalars or len(roots) > 1

    # ---- results that are neighbours ----------------------------------------------------------------------------

    def _in_pairs(self, parts: Sequence[Stmt]) -> Iterator[Stmt | Line]:
        """Yield statements; two that compute neighbours in memory by the same operations are one line."""
        place = 0
        while place < len(parts):
            line = self._stored_pair(*parts[place : place + 2]) if place + 1 < len(parts) else None
            yield line or parts[place]
            place += 2 if line else 1

    def _stored_pair(self, one: Stmt, other: Stmt) -> Line | None:
        if not isinstance(one, tirx.BufferStore) or not isinstance(other, tirx.BufferStore):
            return None
        root = self._root(one.buffer)
        if self._root(other.buffer) != root or root in self._scalars or str(root.dtype) != "float32":
            return None
        if _apart(other.indices[0], one.indices[0]) != 1 or isinstance(one.value, ir.TensorLoad):
            return None
        found = self._both(one.value, other.value, one)
        text = self._element(one.buffer, one.indices[0])
        return Line(f"tt_store_pair(&{text}, {found.expr.text});") if found and found.paired else None

    def _both(self, one: ir.Expr, other: ir.Expr, to: tirx.BufferStore) -> _Both | None:
        """Return two values that the same operations make, `other` of the neighbours of what `one` is made of."""
        if isinstance(one, ir.TensorLoad) and isinstance(other, ir.TensorLoad):
            return self._both_loads(one, other, to)
        if (
            isinstance(one, tirx.FloatImm)
            and isinstance(other, tirx.FloatImm)
            and float(one.value) == float(other.value)
        ):
            return _Both(self._expr(one), False)
        if _factors(one) and _factors(other):
            return _call("tt_mul_both", self._both_factors(one, other, to))
        for kind in (tirx.Add, tirx.Sub):
            if isinstance(one, kind) and isinstance(other, kind):
                return self._both_sums((one.a, other.a), (one.b, other.b), to, isinstance(one, tirx.Sub))
        return None

    def _both_factors(self, one: ir.Expr, other: ir.Expr, to: tirx.BufferStore) -> list[_Both | None]:
        return [self._both(*sides, to) for sides in zip(_factors(one), _factors(other), strict=True)]

    def _both_sums(self, left: _Sides, right: _Sides, to: tirx.BufferStore, minus: bool) -> _Both | None:
        """Return two sums (or differences), as `_fused` reads them."""
        if not minus and isinstance(left[0], tirx.Mul) and not isinstance(right[0], tirx.Mul):
            left, right = right, left
        if all(isinstance(side, tirx.Mul) for side in right):
            return _call("tt_fma_both", self._both_factors(*right, to), self._both(*left, to), minus=minus)
        found = [self._both(*left, to), self._both(*right, to)]
        return None if minus else _call("tt_add_pairs", found)

    def _both_loads(self, one: ir.TensorLoad, other: ir.TensorLoad, to: tirx.BufferStore) -> _Both | None:
        """Return two loads, which may be made before the first of the two stores."""
        roots = [self._root(load.source) for load in (one, other)]
        apart = _apart(other.indices[0], one.indices[0])
        if roots[0] != roots[1] or apart not in (0, 1) or (apart and roots[0] in self._scalars):
            return None
        own = roots[0] == self._root(to.buffer) and apart == 1 and _apart(one.indices[0], to.indices[0]) == 0
        if not own and self._may_overlap(one.source, to.buffer):
            return None
        expr = self._expr(one)
        return _Both(join(f"tt_load_pair(&{expr.text})", ATOM, (expr,)), True) if apart else _Both(expr, False)

    # ---- sums ---------------------------------------------------------------------------------------------------

    def _parts(self, item: Stmt) -> tuple[tirx.BufferStore, tirx.Mul, str] | None:
        """Return (statement, product, text of its condition) of a statement that adds to a register's sum."""
        if not isinstance(item, tirx.BufferStore) or self._root(item.buffer) not in self._scalars:
            return None
        value = item.value
        if not isinstance(value, tirx.Add) or dtype_of(value) != "float32" or not isinstance(value.a, ir.TensorLoad):
            return None
        term, condition = value.b, ""
        if is_call(term, "if_then_else"):
            test, other = self._expr(term.args[0]), term.args[2]
            if test.loads or not isinstance(other, tirx.FloatImm) or float(other.value) != 0.0:
                return None  # these are not joined to one `if`, in which a pair could be loaded for all
            condition, term = test.text, term.args[1]
        if not isinstance(term, tirx.Mul) or self._text(value.a) != self._element(item.buffer, item.indices[0]):
            return None
        return item, term, condition

    def _paired(self, run: Sequence[tuple[tirx.BufferStore, tirx.Mul]]) -> list[Statement]:
        factors = [side for _, product in run for side in (product.a, product.b) if isinstance(side, ir.TensorLoad)]
        self._halves = self._pairs({self._text(factor): factor for factor in factors})
        statements: list[Statement] = []
        for item, product in run:
            loads = [Line(text) for side in (product.a, product.b) for text in self._loaded(side)]
            statement = self._store(item)
            if isinstance(statement, If):
                statement.body[:0] = loads
                statements.append(statement)
            else:
                statements += [*loads, statement]
        self._halves = {}
        return statements

    def _pairs(self, loads: Mapping[str, ir.TensorLoad]) -> dict[str, _Half]:
        """Return the elements (by their text) that are read as halves of pairs; every element is in at most one
        pair."""
        groups: list[
            tuple[ir.TensorLoad, dict[int, str]]
        ] = []  # elements of a buffer at known distances from the first
        for text, load in loads.items():
            if self._root(load.source) in self._scalars:
                continue
            for first, group in groups:
                distance = (
                    _apart(load.indices[0], first.indices[0])
                    if self._root(load.source) == self._root(first.source)
                    else None
                )
                if distance is not None:
                    group.setdefault(distance, text)
                    break
            else:
                groups.append((load, {0: text}))
        halves: dict[str, _Half] = {}
        for _, group in groups:
            for at in sorted(group):
                if at + 1 in group and group[at] not in halves:
                    pair = _Pair(loads[group[at]])
                    halves[group[at]], halves[group[at + 1]] = _Half(pair, 0), _Half(pair, 1)
        return halves

    def _text(self, load: ir.TensorLoad) -> str:
        return self._element(load.source, load.indices[0])

    def _loaded(self, factor: ir.Expr) -> list[str]:
        """Return the statement that loads the pair of a factor, if this is its first use."""
        half = self._half(factor)
        if half is None or half.pair.name:
            return []
        place = half.pair.place
        half.pair.name = self._fresh(f"{self._name(self._root(place.source))}_pair")
        return [f"const {PAIR_TYPE} {half.pair.name} = tt_load_pair(&{self._text(place)});"]

    def _half(self, factor: ir.Expr) -> _Half | None:
        if type(factor) is not ir.TensorLoad or self._root(factor.source) in self._scalars:
            return None
        return self._halves.get(self._text(factor))

    def _sum(self, addend: ir.Expr, term: ir.Expr, whole: ir.Expr, sign: str = "") -> Expr:
        halves = [self._half(side) for side in (term.a, term.b)] if isinstance(term, tirx.Mul) else []
        if not isinstance(term, tirx.Mul) or not any(halves) or sign:
            return super()._sum(addend, term, whole, sign)
        left, right = (term.a, term.b) if halves[0] else (term.b, term.a)
        a, b, c = self._expr(left), self._expr(right), self._expr(addend)
        first, second = halves if halves[0] else halves[::-1]
        assert first is not None
        if second is None:
            return join(f"tt_fma_{first.half}({first.pair.name}, {b.text}, {c.text})", ATOM, (a, b, c))
        names = f"{first.pair.name}, {second.pair.name}"
        return join(f"tt_fma_{first.half}{second.half}({names}, {c.text})", ATOM, (a, b, c))


class Fpv5Printer(PairPrinter):
    """A printer for an FPU with the instructions of FPv5."""

    _ending = "_fpv5"


def _factors(product: ir.Expr) -> Sequence[ir.Expr]:
    """Return both factors of a product; none of other expressions."""
    if isinstance(product, tirx.Mul):
        return product.a, product.b
    return product.args[1:] if is_helper(product) and helper_name(product) == PRODUCT else ()


def _call(name: str, operands: Sequence[_Both | None], *addend: _Both | None, minus: bool = False) -> _Both | None:
    """Return a call of a pair and another operand: that is a pair as well in a sum, a value for both in a product.

    A sum of a product takes another pair. minus: the product is subtracted.
    """
    one, other = operands
    if one is None or other is None or not all(added and added.paired for added in addend):
        return None
    pair, both = (one, other) if one.paired else (other, one)
    if not pair.paired or both.paired != (name == "tt_add_pairs"):
        return None
    texts = [pair.expr.text, f"-{both.expr.at(ATOM)}" if minus else both.expr.text]
    added = [each.expr for each in addend if each]
    texts += [expr.text for expr in added]
    return _Both(join(f"{name}({', '.join(texts)})", ATOM, (pair.expr, both.expr, *added)), True)


def _apart(index: ir.Expr, first: ir.Expr) -> int | None:
    """Return the number of elements from one index to another, if it is the same in every turn of every loop."""
    found = sym.Analyzer().simplify(index - first)
    return int(found) if isinstance(found, tirx.IntImm) else None
