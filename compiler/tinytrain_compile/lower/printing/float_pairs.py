"""Printing of a register tile's multiply-adds on pairs of floats: neighbours in memory are one load (tt_float_pairs.h).

A tile's sums follow one another in unrolled code. Two neighbours that they read, along the tile or along the sum, are
loaded as a pair, and each multiply-add names its half. Values and their order stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tvm import ir, sym, tirx
from tvm.tirx import Stmt

from tinytrain_compile.lower.left_out import kept_sums
from tinytrain_compile.lower.printing.c_text import ATOM, Expr, If, Line, Loop, Statement, dtype_of, join
from tinytrain_compile.lower.printing.patterns import moved_run
from tinytrain_compile.lower.printing.printer import Printer
from tinytrain_compile.lower.tir_walk import Tir, buffers_of, children, is_call

PAIR_TYPE = "tt_float_pair"
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


class PairPrinter(Printer):
    """A printer that also prints runs of multiply-adds on pairs, and loops of an optimizer as calls."""

    _halves: Mapping[str, _Half] = MappingProxyType({})
    """Text of an element -> its half of a pair, in the run being printed."""
    _turns: int = 1
    """Turns of the loops around what is being printed."""

    def _body(self, node: Stmt) -> list[Statement]:
        if isinstance(node, tirx.For) and self._fuse:
            call = moved_run(node, self._element, self._expr)
            return [Line(call)] if call else super()._body(node)
        if not isinstance(node, tirx.SeqStmt) or not self._fuse:
            return super()._body(node)
        found: list[Statement] = []
        run: list[
            tuple[tirx.BufferStore, tirx.Mul]
        ] = []  # statements that add a product under one condition (or none), and the products
        under = ""
        for item in kept_sums(node.seq):
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
        if not isinstance(body, tirx.BufferStore) or str(body.buffer.dtype) != "float32" or _calls(body):
            return False
        roots = {hash(root) for root in map(self._root, buffers_of(body.value)) if root not in self._scalars}
        return self._root(body.buffer) in self._scalars or len(roots) > 1

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
                distance = _distance(load, first) if self._root(load.source) == self._root(first.source) else None
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

    def _sum(self, addend: ir.Expr, term: ir.Expr, whole: ir.Expr) -> Expr:
        halves = [self._half(side) for side in (term.a, term.b)] if isinstance(term, tirx.Mul) else []
        if not isinstance(term, tirx.Mul) or not any(halves):
            return super()._sum(addend, term, whole)
        left, right = (term.a, term.b) if halves[0] else (term.b, term.a)
        a, b, c = self._expr(left), self._expr(right), self._expr(addend)
        first, second = halves if halves[0] else halves[::-1]
        assert first is not None
        if second is None:
            return join(f"tt_fma_{first.half}({first.pair.name}, {b.text}, {c.text})", ATOM, (a, b, c))
        names = f"{first.pair.name}, {second.pair.name}"
        return join(f"tt_fma_{first.half}{second.half}({names}, {c.text})", ATOM, (a, b, c))


def _distance(load: ir.TensorLoad, first: ir.TensorLoad) -> int | None:
    """Return the number of elements from one load to another, if it is the same in every turn of every loop."""
    found = sym.Analyzer().simplify(load.indices[0] - first.indices[0])
    return int(found) if isinstance(found, tirx.IntImm) else None


def _calls(node: Tir) -> bool:
    return isinstance(node, ir.Call) or any(map(_calls, children(node)))
