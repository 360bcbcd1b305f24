"""Comparison of m_hear with numpy, call by call: to the byte in int8, within the bounds of float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.stages import Interface
from tinytrain_compile.verify.compare import DTYPES, ComparedTensor, State, expect_equal, judged_output
from tinytrain_compile.verify.run import RunResult


class HeardReference(Protocol):
    """A stream in numpy whose rings are kept from one state to the next, as in the check program."""

    def initial(self) -> State:
        """Return the state before the first step."""
        ...

    def heard(self, states: Sequence[State]) -> list[NDArray[Any]]:
        """Return the outputs of all calls of a window with each state: (calls, elements)."""
        ...

    def rounded(self, states: Sequence[State]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the same in float64, and per call the most by which float32 may differ."""
        ...


def compare_heard(run: RunResult, reference: HeardReference, interface: Interface) -> float:
    """Return the largest difference of an output, relative to its scale; E0601 names the first call that is wrong.

    The run may lack outputs of calls before the last: those that m_rehear made. Where steps take features of what was
    heard, the stream goes on behind their windows, so only the last output after training is known.
    """
    takes_features = interface.window is not None and interface.trains
    first, dtypes = reference.initial(), {slot.name: DTYPES[slot.dtype] for slot in interface.state}
    last = first
    for raw in run.states[-1:]:
        last = {name: np.frombuffer(raw[name], dtypes[name]).reshape(array.shape) for name, array in first.items()}
    whole, worst = _Whole(reference, (first, last)), 0.0
    for number, when in enumerate(("before", "after")):
        ours, theirs = run.heard[number], whole.heard[number]
        earlier = range(len(ours) - 1) if number == 0 or not takes_features else ()
        for call in (*earlier, -1):
            place = call % len(theirs)
            what = f"output of m_hear, call {place} {when} training"
            if interface.exact:
                expect_equal(ComparedTensor(what, ours[call], theirs[place]))
            else:
                worst = max(worst, judged_output(what, ours[call], _Call(whole, number, place), {}))
    return worst


@dataclass(frozen=True, eq=False)
class _Whole:
    """Both windows of the reference, computed once; with the bounds of rounding only if they are needed."""

    reference: HeardReference
    states: Sequence[State]

    @cached_property
    def heard(self) -> list[NDArray[Any]]:
        return self.reference.heard(self.states)

    @cached_property
    def rounded(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return self.reference.rounded(self.states)


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of the reference, as `judged_output` asks for it."""

    whole: _Whole
    number: int
    call: int

    def infer(self, state: State) -> NDArray[Any]:
        return self.whole.heard[self.number][self.call]

    def rounded_output(self, state: State) -> tuple[NDArray[Any], float]:
        exact, allowed = self.whole.rounded[self.number]
        return exact[self.call], float(allowed[self.call])
