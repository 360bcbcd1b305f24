"""The update of the judged step against the optimizers' formulas: two updates by one gradient, over all numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.driver.derivative.judged import JudgedStep, Part, norm
from tinytrain_compile.driver.derivative.optimizers import KINDS, Step, expected, implied
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
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


def check_initial(judged: JudgedStep, how: TrainingOptions, model: ImportedModel) -> None:
    """Check that optimizer state begins with zeros, or with what the file says. E0607."""
    begin = judged.shaken(0.0, 0)
    for part in judged.parts:
        tensors = judged.tensors(part, begin, how.optimizer)
        for kind in KINDS[how.optimizer]:
            given = how.initial.get((part.parameter, kind))
            if kind in tensors and given is None and np.any(tensors[kind]):
                what = f"its {kind} begins with numbers other than 0"
                raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")


def check_rule(
    judged: JudgedStep, how: TrainingOptions, update: Step, states: tuple[State, State, State], first: State
) -> None:
    """Check two updates on the same samples, the second from the numbers of the first. E0607.

    states: before them, after the first, after the second (which began with its optimizer state). first: gradients.
    """
    before, between, after = states
    second = replace(update, before=update.before + 1)
    restored = {**between, **judged.numbers(before)}
    largest = norm(first.values())
    for part in judged.parts:
        gradient = first[part.name]
        _compare(
            judged,
            part,
            how,
            (before, between),
            expected(how, update, judged.tensors(part, before, how.optimizer), gradient),
        )
        old = judged.tensors(part, restored, how.optimizer)
        again = implied(how, second, old, judged.tensors(part, after, how.optimizer)) * (part.factor() != 0)
        if part in judged.approximate:  # its subspaces have moved, so its gradient is another one
            continue
        factor = _clipped_later(how, first, gradient, again)
        if not norm((again - factor * gradient,)) <= TOLERANCE * max(norm((gradient,)), TOLERANCE * largest):
            what = f"the second {how.optimizer} update on the same samples implies another gradient than the first"
            raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")
        _compare(judged, part, how, (restored, after), expected(how, second, old, again))


def _compare(
    judged: JudgedStep, part: Part, how: TrainingOptions, states: tuple[State, State], wanted: Mapping[str, Array]
) -> None:
    old, new = (judged.tensors(part, state, how.optimizer) for state in states)
    for kind, numbers in wanted.items():
        rounding = SPACING * (norm((new[kind],)) + norm((old[kind],)))
        error, change = norm((numbers - new[kind],)), norm((numbers - old[kind],))
        if not error <= TOLERANCE * change + rounding:
            name = "parameter" if kind == "w" else kind
            share = f"{error / (change or 1):.2g} of the change"
            what = f"its {name} is not what {how.optimizer} makes of the gradient (off by {share})"
            raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")


def _clipped_later(how: TrainingOptions, gradients: Mapping[str, Array], gradient: Array, again: Array) -> float:
    """The factor of the second update where the norm of the one before clips (docs/clipping.md); else 1.

    Of one layer's norm it is what this tensor shows, if that is no more than 1.
    """
    if how.clip_norm is None or how.sums:
        return 1.0
    if how.clip_per == "layer":
        return min(1.0, float((again * gradient).sum()) / (float((gradient**2).sum()) or 1.0))
    return min(1.0, how.clip_norm / (norm(gradients.values()) or 1.0))
