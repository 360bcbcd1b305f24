"""Comparison of runs: to the byte of host and board, and of integers with numpy; float32 step by step.

Every step of the float32 reference begins with the state that the C code had there. So different rounding is checked in
its own step and cannot accumulate. Since the change by a step is compared, not its result, the bound is relative to the
change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface
from tinytrain_compile.verify.run import FloatArray, RunResult

# ---- to the byte -----------------------------------------------------------------------------------------------------

_HINT = "please report this with the model"
DTYPES = {"float32": "<f4", "int32": "<i4", "int8": "<i1", "uint8": "<u1", "bits": "<u1"}
"""Element types of the interface -> numpy types."""


@dataclass(frozen=True, eq=False)
class ReferenceRun:
    """Results of the numpy interpreter on the same samples.

    losses: one per micro-batch. output_first, output_last: the first micro-batch's output before and after.
    states: after every step, tensor name -> array; any subset of the interface's state slots.
    """

    losses: Sequence[float] | FloatArray
    output_first: NDArray[Any]
    output_last: NDArray[Any]
    states: Sequence[Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class ComparedTensor:
    """One buffer at one point of a run, from two runs."""

    what: str
    ours: NDArray[Any]
    theirs: NDArray[Any]


def compare_bytes(board: RunResult, host: RunResult, interface: Interface, board_name: str) -> None:
    """Raise E0601 with the first buffer, step and index in which two runs differ; any NaN equals any NaN."""
    for item in _pairs(board, host, interface):
        index = _first_difference(item.ours, item.theirs)
        if index is not None:
            got, expected = _number_text(item.ours, index), _number_text(item.theirs, index)
            what = f"{item.what}, index {index}: {board_name} has {got}, the host {expected}"
            raise CompileError("E0601", "verify", what, _HINT)


def compare_reference(host: RunResult, reference: ReferenceRun, interface: Interface) -> float:
    """Return 0.0 if C code and reference agree to the byte, which integers must; E0601 names the first difference."""
    for item in _reference_pairs(host, reference, interface):
        if item.ours.shape != item.theirs.shape:
            raise ValueError(f"{item.what}: {item.ours.size} elements, reference {item.theirs.size}")
        expect_equal(item)
    return 0.0


def expect_equal(item: ComparedTensor) -> None:
    """Raise E0601 unless the C code and the reference agree to the byte (any NaN equals any NaN)."""
    theirs = item.theirs.astype(item.ours.dtype)
    index = _first_difference(item.ours, theirs)
    if index is not None:
        got, expected = _number_text(item.ours, index), _number_text(theirs, index)
        what = f"{item.what}, index {index}: the C code gives {got}, the reference {expected}"
        raise CompileError("E0601", "verify", what, _HINT)


def _pairs(a: RunResult, b: RunResult, interface: Interface) -> Iterator[ComparedTensor]:
    if (len(a.losses), len(a.states)) != (len(b.losses), len(b.states)):
        raise CompileError("E0602", "verify", "the two runs did not take the same number of steps", _HINT)
    yield ComparedTensor("output before training", a.output_first, b.output_first)
    batch = len(a.losses) // max(1, len(a.states))
    for step, (ours, theirs) in enumerate(zip(a.states, b.states, strict=True)):
        yield ComparedTensor(f"loss, step {step}", *(run.losses[step * batch : (step + 1) * batch] for run in (a, b)))
        for slot in interface.state:
            arrays = (np.frombuffer(state[slot.name], DTYPES[slot.dtype]) for state in (ours, theirs))
            yield ComparedTensor(f"'{slot.name}', step {step}", *arrays)
    yield ComparedTensor("output after training", a.output_last, b.output_last)
    yield ComparedTensor("outputs of m_hear", a.heard_all, b.heard_all)


def _reference_pairs(host: RunResult, reference: ReferenceRun, interface: Interface) -> Iterator[ComparedTensor]:
    losses = np.asarray(reference.losses, np.float64).ravel()
    if (len(host.losses), len(host.states)) != (losses.size, len(reference.states)):
        raise ValueError(f"reference: {losses.size} losses and {len(reference.states)} states, run: {len(host.losses)}")
    slots = {slot.name: slot for slot in interface.state}
    yield ComparedTensor("output before training", host.output_first, reference.output_first.ravel())
    batch = losses.size // max(1, len(reference.states))
    for step, (ours, theirs) in enumerate(zip(host.states, reference.states, strict=True)):
        part = slice(step * batch, (step + 1) * batch)
        yield ComparedTensor(f"loss, step {step}", host.losses[part], losses[part])
        for name, expected in theirs.items():
            array = np.frombuffer(ours[name], DTYPES[slots[name].dtype])
            yield ComparedTensor(f"'{name}', step {step}", array, np.asarray(expected).ravel())
    yield ComparedTensor("output after training", host.output_last, reference.output_last.ravel())


def _first_difference(a: NDArray[Any], b: NDArray[Any]) -> int | None:
    same = a == b
    if a.dtype.kind == "f":
        same = (a.view("<u4") == b.view("<u4")) | (np.isnan(a) & np.isnan(b))
    different = np.flatnonzero(~same)
    return int(different[0]) if different.size else None


def _number_text(array: NDArray[Any], index: int) -> str:
    if array.dtype.kind == "f":
        return f"{float(array[index]):.9g} (0x{int(array.view('<u4')[index]):08x})"
    return str(int(array[index]))


# ---- float32, step by step -------------------------------------------------------------------------------------------

TOLERANCE = 1e-4
"""Tolerance of float32. For a loss and an output: max |a - b| <= TOLERANCE * max(1, max |b|). For a tensor that a step
changes: TOLERANCE times the largest change, plus STORED for storing it."""

STORED = 4 * 2.0**-24
"""Relative rounding of storing a number before and after an update."""

HINT = "more than rounding explains (docs/verification.md): see whether --optimizer sgd agrees, and look at --kernels"

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Step:
    """Result of one step: the loss of each micro-batch, and the state after it."""

    losses: FloatArray
    state: State


@dataclass(frozen=True, eq=False)
class Rounded:
    """A step in float64, and per element the most by which float32 may differ: by tensor name, "loss" for losses."""

    step: Step
    allowed: State
    allowed_losses: FloatArray


class OutputReference(Protocol):
    """Outputs of the model in numpy, on given samples."""

    def infer(self, state: State) -> NDArray[Any]:
        """Return the output of the first micro-batch."""
        ...

    def rounded_output(self, state: State) -> tuple[NDArray[Any], float]:
        """Return `infer` in float64, and the most by which float32 may differ."""
        ...


class StepReference(OutputReference, Protocol):
    """The model in numpy, on given samples. States are those after a step of the run under comparison."""

    def initial(self) -> State:
        """Return the state before the first step."""
        ...

    def step(self, number: int, state: State) -> Step:
        """Step from a state with the samples of step `number` (from 0)."""
        ...

    def rounded(self, number: int, state: State) -> Rounded:
        """Return the step in float64 with bounds of float32's rounding, which is much more work."""
        ...


@dataclass(frozen=True, eq=False)
class _StepTensor:
    """One buffer of the C code and of the reference, and the bound of their difference (per element or for all)."""

    what: str
    name: str
    ours: FloatArray
    theirs: FloatArray
    bound: FloatArray | float
    scale: float


def compare_steps(run: RunResult, reference: StepReference, interface: Interface) -> float:
    """Return the largest difference of run and reference relative to its scale; E0601 names the first too large one.

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


def judged_output(what: str, ours: FloatArray, reference: OutputReference, state: State) -> float:
    """Return the distance of an output from the reference's for a state, relative to its scale.

    E0601 if that is more than rounding explains.
    """
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
        # It exceeds the plain bound only as far as rounding explains, so the excess does not measure agreement.
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
    """Return |ours - theirs|: 0 if both are NaN or the same infinity, infinite if only one is NaN."""
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
    """Raise E0601 with the element that is farthest above its bound, if there is one."""
    error, bound = _difference(item.ours, item.theirs), np.broadcast_to(item.bound, item.theirs.shape)
    with np.errstate(all="ignore"):
        above = np.where(error <= bound, 0.0, error / np.maximum(bound, np.finfo(np.float64).tiny))
    if not np.any(above > 0):
        return
    index = int(np.argmax(above))
    numbers = f"the C code gives {float(item.ours[index]):.9g}, the reference {float(item.theirs[index]):.9g}"
    limit = f"error {error[index]:.3g}, allowed {bound[index]:.3g}"
    raise CompileError("E0601", "verify", f"{item.what}, index {index}: {numbers} ({limit})", HINT)


# ---- a project that does not train -----------------------------------------------------------------------------------
# A project that does not train: the loaded state is compared to the byte, inference as in any other project.

INITIAL, LOADED = "output before loading", "output after loading"


@dataclass(frozen=True, eq=False)
class LoadedReference:
    """reference: for integers the expected run; for float32 the reference of outputs. state: the loaded one."""

    reference: ReferenceRun | StepReference
    state: State


def compare_loaded(run: RunResult, loaded: LoadedReference, interface: Interface) -> float:
    """Return the largest difference of an output relative to its scale; E0601 names the first wrong buffer."""
    if len(run.states) != 1:
        raise ValueError(f"{len(run.states)} states, one was loaded")
    for slot in interface.state:
        ours = np.frombuffer(run.states[0][slot.name], DTYPES[slot.dtype])
        expect_equal(ComparedTensor(f"'{slot.name}', loaded", ours, np.asarray(loaded.state[slot.name]).ravel()))
    judge = loaded.reference
    if isinstance(judge, ReferenceRun):
        return compare_reference(run, judge, interface)
    before = judged_output(INITIAL, run.output_first, judge, judge.initial())
    return max(before, judged_output(LOADED, run.output_last, judge, loaded.state))
