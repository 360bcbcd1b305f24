"""A project that does not train: what it loads is compared to the byte, what it infers as that of any other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.stages import Interface
from tinytrain_compile.verify.compare import DTYPES, ComparedTensor, ReferenceRun, compare_reference, expect_equal
from tinytrain_compile.verify.results import RunResult
from tinytrain_compile.verify.stepwise import State, StepReference, judged_output

INITIAL, LOADED = "output before loading", "output after loading"


@dataclass(frozen=True, eq=False)
class LoadedReference:
    """reference: of integers what a run has to give; of float32 what judges outputs. state: what is loaded."""

    reference: ReferenceRun | StepReference
    state: State


def compare_loaded(run: RunResult, loaded: LoadedReference, interface: Interface) -> float:
    """The largest difference of an output beside its scale; E0601 naming the first buffer that is wrong."""
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
