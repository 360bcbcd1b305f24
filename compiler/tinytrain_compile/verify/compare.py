"""Comparison of runs to the byte: host and board, and integers with numpy (float32: `stepwise`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface
from tinytrain_compile.verify.results import FloatArray, RunResult

_HINT = "please report this with the model"
DTYPES = {"float32": "<f4", "int32": "<i4", "int8": "<i1", "uint8": "<u1", "bits": "<u1"}
"""Of the interface, as numpy reads them."""


@dataclass(frozen=True, eq=False)
class ReferenceRun:
    """What the numpy interpreter computed on the same samples.

    losses: one per micro-batch. output_first, output_last: the first micro-batch's output before and after.
    states: after every step, tensor name -> array; any subset of the interface's state slots.
    """

    losses: Sequence[float] | FloatArray
    output_first: NDArray[Any]
    output_last: NDArray[Any]
    states: Sequence[Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class ComparedTensor:
    """One buffer at one point of a run, as two runs see it."""

    what: str
    ours: NDArray[Any]
    theirs: NDArray[Any]


def compare_bytes(board: RunResult, host: RunResult, interface: Interface, board_name: str) -> None:
    """E0601 naming the first buffer, step and index in which two runs differ; any NaN equals any NaN."""
    for item in _pairs(board, host, interface):
        index = _first_difference(item.ours, item.theirs)
        if index is not None:
            got, expected = _number_text(item.ours, index), _number_text(item.theirs, index)
            what = f"{item.what}, index {index}: {board_name} has {got}, the host {expected}"
            raise CompileError("E0601", "verify", what, _HINT)


def compare_reference(host: RunResult, reference: ReferenceRun, interface: Interface) -> float:
    """0.0 if the C code and the reference agree to the byte, as integers must; E0601 naming the first difference."""
    for item in _reference_pairs(host, reference, interface):
        if item.ours.shape != item.theirs.shape:
            raise ValueError(f"{item.what}: {item.ours.size} elements, reference {item.theirs.size}")
        expect_equal(item)
    return 0.0


def expect_equal(item: ComparedTensor) -> None:
    """E0601 unless the C code and the reference agree to the byte (any NaN equals any NaN)."""
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
