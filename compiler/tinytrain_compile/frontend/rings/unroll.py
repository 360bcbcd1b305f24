"""A step of a network with rings -> the network of the window that one output depends on.

A ring becomes the sequence that passes through it, so every operator runs over more rows, and each weight is there
once. How many rows of a tensor count follows backwards from the output (`need`). An operator that reads fewer rows
than there are takes the last ones. This is the same for every format of files; `Unrolling` asks for the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused

MOST_FRAMES = 512
"""--max-window, unless the user says otherwise."""

Key = TypeVar("Key", int, str)
"""Key of a tensor in a format: its place, or its name."""


@dataclass(frozen=True, eq=False)
class Ring(Generic[Key]):
    """Rows of a sequence along an axis: `joined` are the `rows` that are kept, then the new ones."""

    variable: str
    axis: int
    rows: int
    new: Key
    joined: Key


class Step(Protocol):
    """An operator of a file."""

    @property
    def op(self) -> str:
        """Return what it is called in the format."""
        ...


Operator = TypeVar("Operator", bound=Step)


@dataclass
class Rows:
    """Rows of one tensor. axis: time axis; fresh: rows that a step adds; need: rows that the output depends on."""

    axis: int
    fresh: int = 0
    need: int = 0


class Unrolling(ABC, Generic[Key, Operator]):
    """Finds the axis of time of every tensor, and how many of its rows the output depends on.

    rings: by what they join. operators: without those that only keep state; of a ring its join alone.
    """

    def __init__(
        self,
        name: str,
        rings: Mapping[Key, Ring[Key]],
        operators: Sequence[Operator],
        ends: tuple[Sequence[Key], Sequence[Key]],
    ) -> None:
        self._name, self.rings, self.operators = name, rings, list(operators)
        self._inputs, self._outputs = ends
        self.rows = dict[Key, Rows]()

    # ---- what a format tells ----------------------------------------------------------------------------------------

    @abstractmethod
    def shape(self, k: Key) -> tuple[int, ...]:
        """Return the shape of a tensor in a step."""

    @abstractmethod
    def size(self, k: Key) -> int:
        """Return the bytes of an element."""

    @abstractmethod
    def called(self, k: Key) -> str:
        """Return the name of a tensor."""

    @abstractmethod
    def results(self, operator: Operator) -> Sequence[Key]:
        """Return what an operator makes."""

    @abstractmethod
    def data(self, operator: Operator) -> list[Key]:
        """Return what is computed of what an operator reads."""

    @abstractmethod
    def across(self, operator: Operator, known: Key, other: Key, back: bool) -> int | None:
        """Return the axis of `other` that is that of time of `known`, if there is one.

        back: `known` is the result.
        """

    @abstractmethod
    def check(self, operator: Operator, sources: Sequence[Key]) -> None:
        """Raise Refused for an operator whose rows would not be those of the sequence."""

    @abstractmethod
    def window(self, operator: Operator) -> tuple[int, int]:
        """Return how many rows of its input a row of an operator's result reads, and the step from row to row."""

    @abstractmethod
    def late(self, operator: Operator) -> int | None:
        """Return how many rows a slice leaves out at the end of a step; None for what is no slice of rows."""

    # ---- the axis of time -------------------------------------------------------------------------------------------

    def count(self, max_window: int) -> None:
        """Find `rows`. max_window: frames of the input that may be needed; 0: any. Errors: Refused, E0217."""
        self._find_axes()
        for operator in self.operators:
            self._count(operator)
        self._find_need()
        self._check_length(max_window)

    def _find_axes(self) -> None:
        """Find the axis of every tensor that has rows: from the rings back to the input, then to the output."""
        for ring in self.rings.values():
            self.rows[ring.joined], self.rows[ring.new] = Rows(ring.axis), Rows(ring.axis)
        for operator in reversed(self.operators):
            for k in self.results(operator):
                if k in self.rows:
                    for source in self.data(operator):
                        self._pass(k, source, operator, back=True)
        for operator in self.operators:
            for source in self.data(operator):
                for k in self.results(operator) if source in self.rows else ():
                    self._pass(source, k, operator, back=False)
        for k in self._inputs:
            if k not in self.rows and not self.take_axis(k):
                raise Refused(self.called(k), "no ring depends on this input", "one input of frames")

    def take_axis(self, k: Key) -> bool:
        """Give an input without an axis of time one, if the operator behind it tells which; tell whether it did."""
        return False

    def _pass(self, known: Key, other: Key, operator: Operator, back: bool) -> None:
        """Give a tensor the axis that corresponds to that of another across an operator, if there is one."""
        found = self.across(operator, known, other, back)
        if found is not None and found < len(self.shape(other)):
            self.rows.setdefault(other, Rows(found))

    # ---- rows of a step ---------------------------------------------------------------------------------------------

    def length(self, k: Key) -> int:
        """Return the rows of a tensor in a step."""
        return self.shape(k)[self.rows[k].axis]

    def sources(self, operator: Operator) -> list[Key]:
        """Return what an operator reads that has rows."""
        return [k for k in self.data(operator) if k in self.rows]

    def _count(self, operator: Operator) -> None:
        """Count rows that a step adds; Refused for an operator whose rows would not be those of the sequence."""
        for k in self._inputs:
            self.rows[k].fresh = self.length(k)
        sources, results = self.sources(operator), self.results(operator)
        if not sources:
            return
        if results[0] in self.rings:
            self._enter(self.rings[results[0]], operator.op)
            return
        self.check(operator, sources)
        fresh = {self.rows[k].fresh for k in sources}
        window, stride = self.window(operator)
        if len(fresh) != 1 or any(one % stride for one in fresh) or (self.length(sources[0]) - window) % stride:
            raise Refused(operator.op, f"{sorted(fresh)} new rows by strides of {stride}", "strides that divide a step")
        for k in results:
            if k in self.rows:
                self.rows[k].fresh = fresh.copy().pop() // stride

    def _enter(self, ring: Ring[Key], op: str) -> None:
        fresh = self.rows[ring.new].fresh
        if self.length(ring.new) != fresh or self.length(ring.joined) != fresh + ring.rows:
            what = f"{self.length(ring.new)} rows enter the ring {ring.variable}, of which {fresh} are new"
            raise Refused(op, what, "rings that take each row once")
        self.rows[ring.joined].fresh = fresh

    # ---- rows of the window -----------------------------------------------------------------------------------------

    def _find_need(self) -> None:
        for k in self._outputs:
            if k in self.rows:
                self.rows[k].need = self.length(k)
        for operator in reversed(self.operators):
            results = [k for k in self.results(operator) if k in self.rows]
            need = max((self.rows[k].need for k in results), default=0)
            for k in results:
                self.rows[k].need = need
            for k in self.sources(operator):
                if need or not results:
                    self.rows[k].need = max(self.rows[k].need, self.asked(operator, k, need))

    def asked(self, operator: Operator, source: Key, need: int) -> int:
        """Return rows of an operand that so many rows of an operator's result depend on."""
        if not any(k in self.rows for k in self.results(operator)):
            return self.length(source)
        late = self.late(operator)
        if late is not None:
            return need + late
        window, stride = self.window(operator)
        return (need - 1) * stride + window

    def lengthened(self, k: Key) -> tuple[int, ...]:
        """Return the shape of a tensor in the window."""
        shape = self.shape(k)
        if k not in self.rows or not self.rows[k].need:
            return shape
        axis = self.rows[k].axis
        return (*shape[:axis], self.rows[k].need, *shape[axis + 1 :])

    def _check_length(self, max_window: int) -> None:
        frames = max(self.rows[k].need for k in self._inputs)
        sizes = [int(np.prod(self.lengthened(k), dtype=object)) * self.size(k) for k in self.rows]
        if 0 < max_window < frames:
            what = f"its output depends on a window of {frames} frames, whose activations take {sum(sizes):,} B"
            raise CompileError("E0217", self._name, what, f"--max-window {frames}, if there is so much memory")


def same_axis(shape: Sequence[int], other: Sequence[int], axis: int) -> int | None:
    """Return the axis that a Reshape leaves as it is: as many elements in front of it, and as long."""
    before = int(np.prod(shape[:axis], dtype=object))
    places = range(1, len(other))
    fitting = (k for k in places if other[k] == shape[axis] and int(np.prod(other[:k], dtype=object)) == before)
    return next(fitting, None)


def size_at(shape: Sequence[int], axis: int) -> int:
    """Return the size of an axis, counted from the end; 1 where there is none."""
    return shape[axis] if -len(shape) <= axis < len(shape) else 1
