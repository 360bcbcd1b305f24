"""Integer forms of what clips gradients: sums of squares of integer gradients, and clipped rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import NO_ATTRS, Node, Phase, Value
from tinytrain_compile.ops.int8.clip import WORDS
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.ops.shape import ExpandAttrs
from tinytrain_compile.quantize.state import Rewriter


@dataclass(frozen=True)
class _Rows:
    """Sums of squares by channel, and what brings them into real units: (multiplier, shift, p)."""

    rows: Value
    units: tuple[Value, ...]


class IntegerClipping:
    """Knows the squares of integer gradients until their total is asked for. phase: of updates."""

    def __init__(self, train: TrainGraph, rewriter: Rewriter, phase: Phase) -> None:
        self._factors: Mapping[str, Value] = train.clip
        self._r = rewriter
        self._phase: Phase = phase
        self._rates: dict[str, Value] = {}
        self._rows: dict[str, _Rows] = {}

    @property
    def clips(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._factors)

    def rate(self, node: Node, rate: Value) -> Value:
        """The rate with which the parameter of an update node follows its gradient."""
        factor = self._factors.get(operand(node, "w").name)
        if factor is None:
            return rate
        if factor.name not in self._rates:
            known = self._r.as_float(factor, node)
            (self._rates[factor.name],) = self._r.emit("QClipRate", (rate, known), NO_ATTRS, node, self._phase)
        return self._rates[factor.name]

    def empty_rows(self, node: Node, parameter: Value) -> Value:
        """Zeros to which an update of the parameter adds its squares."""
        zero = self._r.table("no_squares", np.zeros((1, 1), np.int32))
        attrs = ExpandAttrs((parameter.shape[0], WORDS))
        return self._r.emit("Expand", (zero,), attrs, node, self._phase)[0]

    def keep(self, node: Node, rows: Value, scale: tuple[Value, ...]) -> None:
        """Rows that stand for the float ones of a RowSquares node; scale: of the update, see Updates."""
        multiplier, shift, _, p = scale
        self._rows[result(node, "rows").name] = _Rows(rows, (multiplier, shift, p))

    def total(self, node: Node) -> bool:
        """The integer form of a SquareTotal node, if its rows are integers."""
        known = self._rows.get(operand(node, "rows").name)
        if known is None:
            return False
        total = self._r.as_float(operand(node, "total"), node)
        inputs = (total, known.rows, *known.units)
        (after,) = self._r.emit("QSquareTotal", inputs, node.attrs, node, self._phase)
        self._r.forms[result(node, "total").name] = after
        return True
