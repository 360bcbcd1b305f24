"""Float32 against numpy, step by step: every step of the reference begins with the state that the C code had there.

So what a step rounds differently is judged in that step and cannot pile up, however many follow; and since all that a
step changed is compared, not where it led, the bound is one of the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface
from tinytrain_compile.verify.compare import DTYPES
from tinytrain_compile.verify.results import FloatArray, RunResult

TOLERANCE = 1e-4
"""Of a loss and an output: max |a - b| <= TOLERANCE * max(1, max |b|). Of a tensor that a step changes: TOLERANCE times
the largest change, and STORED units in the last place."""

STORED = 4 * 2.0**-24
"""Relative: what storing a number before and after an update may round."""

HINT = "more than rounding explains (docs/verification.md): see whether --optimizer sgd agrees, and look at --kernels"

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Step:
    """What one step makes of a state: the loss of each micro-batch, and the state after it."""

    losses: FloatArray
    state: State


@dataclass(frozen=True, eq=False)
class Rounded:
    """A step in float64, and per element how far float32 may lead away from it: by tensor name, "loss" for losses."""

    step: Step
    allowed: State
    allowed_losses: FloatArray


class StepReference(Protocol):
    """The model in numpy, on given samples. States are those after a step of the run that is judged."""

    def initial(self) -> State:
        """The state before the first step."""
        ...

    def infer(self, state: State) -> NDArray[Any]:
        """The output of the first micro-batch."""
        ...

    def step(self, number: int, state: State) -> Step:
        """Step `number` (from 0) from a state."""
        ...

    def rounded(self, number: int, state: State) -> Rounded:
        """The same step with what rounding may do to it: much more work."""
        ...

    def rounded_output(self, state: State) -> tuple[NDArray[Any], float]:
        """`infer` in float64, and how far float32 may lead away from it."""
        ...


@dataclass(frozen=True, eq=False)
class _StepTensor:
    """One buffer of the C code, the reference's, and the bound of their difference (per element or for all)."""

    what: str
    name: str
    ours: FloatArray
    theirs: FloatArray
    bound: FloatArray | float
    scale: float


def compare_steps(run: RunResult, reference: StepReference, interface: Interface) -> float:
    """The largest difference of a run and the reference beside its scale; E0601 naming the first that is too large.

    The scale of a buffer is max(1, max |b|).
    """
    slots = {slot.name: slot for slot in interface.state}
    before = reference.initial()
    worst = judged_output("output before training", run.output_first, reference, before)
    batch = len(run.losses) // max(1, len(run.states))
    for number, raw in enumerate(run.states):
        after = {name: np.frombuffer(raw[name], DTYPES[slots[name].dtype]) for name in before}
        losses = run.losses[number * batch : (number + 1) * batch]
        worst = max(worst, _judged_step(number, before, Step(losses, after), reference))
        before = after
    return max(worst, judged_output("output after training", run.output_last, reference, before))


def judged_output(what: str, ours: FloatArray, reference: StepReference, state: State) -> float:
    """How far an output is from what a state gives, beside its scale; E0601 if that is more than rounding explains."""
    theirs = reference.infer(state)
    found = _difference(ours, theirs)
    scale = _scale(theirs)
    if float(np.max(found, initial=0.0)) > TOLERANCE * scale:
        exact, allowed = reference.rounded_output(state)
        item = _StepTensor(what, "", ours, _flat(exact), TOLERANCE * _scale(exact) + allowed, scale)
        _expect(item)
        found = _difference(ours, exact)
    return float(np.max(found, initial=0.0)) / scale


def _judged_step(number: int, before: State, ours: Step, reference: StepReference) -> float:
    expected = reference.step(number, before)
    items = list(_items(number, before, ours, expected))
    if all(_holds(item) for item in items):
        return max((_relative(item) for item in items), default=0.0)
    rounded = reference.rounded(number, before)
    worst = 0.0
    for item in _items(number, before, ours, rounded.step):
        more = rounded.allowed_losses if not item.name else _flat(rounded.allowed[item.name])
        # Above the plain bound only by what rounding explains, which is no measure of agreement.
        _expect(_StepTensor(item.what, item.name, item.ours, item.theirs, item.bound + more, item.scale))
        worst = max(worst, _relative(item) if _holds(item) else 0.0)
    return worst


def _items(number: int, before: State, ours: Step, theirs: Step) -> Iterator[_StepTensor]:
    losses = _flat(theirs.losses)
    if len(ours.losses) != len(losses):
        raise ValueError(f"reference: {len(losses)} losses in a step, run: {len(ours.losses)}")
    yield _StepTensor(f"loss, step {number}", "", ours.losses, losses, TOLERANCE * _scale(losses), _scale(losses))
    for name, expected in theirs.state.items():
        old, new = _flat(before[name]), _flat(expected)
        with np.errstate(all="ignore"):
            change = float(np.max(np.abs(new - old), initial=0.0))
            stored = STORED * (np.abs(old) + np.abs(new))
        bound = np.nan_to_num(TOLERANCE * change + stored, nan=0.0, posinf=0.0)  # then only equal values agree
        yield _StepTensor(f"'{name}', step {number}", name, _flat(ours.state[name]), new, bound, _scale(new))


def _flat(array: NDArray[Any]) -> FloatArray:
    return np.asarray(array, np.float64).ravel()


def _scale(array: NDArray[Any]) -> float:
    return max(1.0, float(np.max(np.abs(array), initial=0.0)))


def _difference(ours: NDArray[Any], theirs: NDArray[Any]) -> FloatArray:
    """|ours - theirs|: 0 where both are the same infinity or no number, infinite where only one is no number."""
    a, b = _flat(ours), _flat(theirs)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} elements, reference {b.size}")
    with np.errstate(all="ignore"):
        error = np.abs(a - b)
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    error[np.isnan(error)] = np.inf
    return error


def _holds(item: _StepTensor) -> bool:
    return bool(np.all(_difference(item.ours, item.theirs) <= item.bound))


def _relative(item: _StepTensor) -> float:
    return float(np.max(_difference(item.ours, item.theirs), initial=0.0)) / item.scale


def _expect(item: _StepTensor) -> None:
    """E0601 with the element that is farthest above its bound."""
    error, bound = _difference(item.ours, item.theirs), np.broadcast_to(item.bound, item.theirs.shape)
    with np.errstate(all="ignore"):
        above = np.where(error <= bound, 0.0, error / np.maximum(bound, np.finfo(np.float64).tiny))
    if not np.any(above > 0):
        return
    index = int(np.argmax(above))
    numbers = f"the C code gives {float(item.ours[index]):.9g}, the reference {float(item.theirs[index]):.9g}"
    limit = f"error {error[index]:.3g}, allowed {bound[index]:.3g}"
    raise CompileError("E0601", "verify", f"{item.what}, index {index}: {numbers} ({limit})", HINT)
