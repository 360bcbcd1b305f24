"""The update of the judged step against the optimizers' formulas: two updates by one gradient, over all numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.driver.derivative.judged import JudgedStep, Part, norm
from tinytrain_compile.driver.derivative.optimizers import KINDS, Step, expected, implied
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.training import TrainingOptions

TOLERANCE = 1e-3
"""Largest error of a state, of the norm of its change; of the second gradient, of the first one."""
SPACING = 2.0**-23
"""Of float32 numbers, relative: what storing a state may round."""

State = Mapping[str, Array]


def gradients_of(
    judged: JudgedStep, how: TrainingOptions, update: Step, before: State, after: State
) -> dict[str, Array]:
    """Return the gradient of the loss that each part's change implies."""
    found: dict[str, Array] = {}
    for part in judged.parts:
        old, new = (judged.tensors(part, state, how.optimizer) for state in (before, after))
        found[part.name] = np.where(part.factor() != 0, implied(how, update, old, new), 0)
    return found


def check_initial(judged: JudgedStep, how: TrainingOptions) -> None:
    """Check that optimizer state begins with zeros, or with what the file says. E0607."""
    for part in judged.parts:
        tensors = judged.tensors(part, judged.initial, how.optimizer)
        for kind in KINDS[how.optimizer]:
            given = how.initial.get((part.parameter, kind))
            wanted = 0.0 if given is None else part.of(np.asarray(given, np.float64))
            if kind in tensors and np.any(tensors[kind] != wanted):
                begins = "numbers other than 0" if given is None else "other numbers than the file gives it"
                what = f"its {kind} begins with {begins}"
                raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")


def check_rule(
    judged: JudgedStep,
    how: TrainingOptions,
    update: Step,
    states: tuple[State, State, State],
    wanted: tuple[State, State],
    whose: str,
) -> tuple[State, State]:
    """Check two updates on the same samples, the second from the numbers of the first, and return their gradients.

    states: before them, after the first, after the second (which began with its optimizer state). wanted: the gradient
    that each update must imply, by part; whose: where that is from. E0607.
    """
    before, between, after = states
    second = replace(update, before=update.before + 1)
    restored = {**between, **judged.numbers(before)}
    pairs = ((update, before, between), (second, restored, after))
    found = tuple(gradients_of(judged, how, *pair) for pair in pairs)
    for number, ((step, old, new), own, right) in enumerate(zip(pairs, found, wanted, strict=True)):
        largest = norm(right.values())
        for part in judged.parts:
            theirs = right.get(part.name, own[part.name])
            least = TOLERANCE**2 * largest + _rounding(judged, part, how, step, (old, new))
            if not norm((own[part.name] - theirs,)) <= TOLERANCE * norm((theirs,)) + least:
                word = ("first", "second")[number]
                what = f"the {word} {how.optimizer} update on the same samples implies another gradient than {whose}"
                raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")
            tensors = judged.tensors(part, old, how.optimizer)
            numbers, others = (expected(how, step, tensors, theirs + off) for off in (0.0, least))
            _compare(judged, part, how, (old, new), numbers, others)
    return found[0], found[1]


def _rounding(judged: JudgedStep, part: Part, how: TrainingOptions, step: Step, states: tuple[State, State]) -> float:
    """Return the norm of what storing a parameter and its moments in float32 may add to the implied gradient."""
    old, new = (judged.tensors(part, state, how.optimizer) for state in states)
    exact = implied(how, step, old, new)
    stored = ({**new, kind: numbers + SPACING * np.abs(numbers)} for kind, numbers in new.items())
    return sum(norm((implied(how, step, old, rounded) - exact,)) for rounded in stored)


def _compare(
    judged: JudgedStep,
    part: Part,
    how: TrainingOptions,
    states: tuple[State, State],
    wanted: Mapping[str, Array],
    others: Mapping[str, Array],
) -> None:
    """Compare a part's parameter and moments with those wanted. E0607.

    others: those of a gradient that nobody tells from the wanted one, since it is next to nothing beside the others'.
    """
    old, new = (judged.tensors(part, state, how.optimizer) for state in states)
    for kind, numbers in wanted.items():
        rounding = SPACING * (norm((new[kind],)) + norm((old[kind],)))
        off = np.abs(numbers - new[kind]) - np.abs(others[kind] - numbers)
        error, change = norm((np.maximum(off, 0),)), norm((numbers - old[kind],))
        if not error <= TOLERANCE * change + rounding:
            name = "parameter" if kind == "w" else kind
            share = f"{error / (change or 1):.2g} of the change"
            what = f"its {name} is not what {how.optimizer} makes of the gradient (off by {share})"
            raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")
