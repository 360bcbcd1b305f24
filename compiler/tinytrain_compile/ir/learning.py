"""What trainings on a user's own samples showed: scores by epoch, rates that were tried, what is recommended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tinytrain_compile.ir.cost import StepCost

RateSchedule = Literal["cosine", "constant"]
"""What a learning rate does in a training: it falls to 0 along half a cosine, or stays."""
SCHEDULES: tuple[RateSchedule, ...] = get_args(RateSchedule)

MOST_WARM_UP = 0.5
"""Largest share of a training in which the rate may grow first."""

ENOUGH = 0.9
"""Share of the gain after which more epochs bring little."""


@dataclass(frozen=True)
class Score:
    """How well samples are known. accuracy: None where labels are values.

    Of networks that repeat their input, with test samples of which some are faults (else None): auc, the area under the
    ROC curve of the errors; threshold, the 99th percentile of the errors of own samples that were not trained on;
    false_alarms, the share of sound test samples above it; detected, the share of faults above it.
    """

    loss: float
    accuracy: float | None = None
    auc: float | None = None
    threshold: float | None = None
    false_alarms: float | None = None
    detected: float | None = None

    @property
    def worth(self) -> tuple[float, float]:
        """What is compared, more is better: accuracy first, where there is one, then the loss."""
        return (0.0 if self.accuracy is None else self.accuracy, -self.loss)

    def better_than(self, other: Score, samples: int, errors: float = 1.0) -> bool:
        """Tell whether it is better by more than so many standard errors of an accuracy on so many samples.

        Without an accuracy: whether it is better at all.
        """
        if self.accuracy is None or other.accuracy is None:
            return self.worth > other.worth
        right = (self.accuracy * samples + 1) / (samples + 2)  # never sure of none or all, by a handful
        return self.accuracy - other.accuracy > errors * (right * (1 - right) / max(samples, 1)) ** 0.5

    def learned_since(self, before: Score, samples: int) -> bool:
        """Return whether more is known than before.

        More is right, or for all that so many samples can tell as much is right, at a smaller loss.
        """
        return self.worth > before.worth or (self.loss < before.loss and not before.better_than(self, samples))


@dataclass(frozen=True)
class Curve:
    """Of one training: scores before the first epoch and after each; of old samples too, in final ones.

    steps: updates of an epoch. failed: a loss was NaN or infinite; the scores before it are there.
    """

    scores: tuple[Score, ...]
    old: tuple[Score, ...]
    steps: int
    failed: bool = False


def curve_of(found: Mapping[str, Any]) -> Curve:
    """Make a curve of what `dataclasses.asdict` made of one."""
    each = {name: tuple(Score(**score) for score in found[name]) for name in ("scores", "old")}
    return Curve(**each, steps=found["steps"], failed=found["failed"])


def mean_curve(curves: Sequence[Sequence[Score]], failed: Sequence[bool]) -> tuple[Score, ...]:
    """Return the mean over trainings, epoch by epoch.

    What ended earlier stays as it was, what failed counts as the worst.
    """
    length = max(len(scores) for scores in curves)
    return tuple(
        mean_score([_at(scores, bad, epoch) for scores, bad in zip(curves, failed, strict=True)])
        for epoch in range(length)
    )


def _at(scores: Sequence[Score], failed: bool, epoch: int) -> Score:
    if epoch < len(scores) or not failed:
        return scores[min(epoch, len(scores) - 1)]
    return Score(float("inf"), None if scores[0].accuracy is None else 0.0)


def mean_score(found: Sequence[Score]) -> Score:
    """Return the mean of several; what one of them does not know, the mean does not."""

    def each(name: str) -> float | None:
        known = [value for score in found if (value := getattr(score, name)) is not None]
        return sum(known) / len(known) if len(known) == len(found) else None

    loss = sum(score.loss for score in found) / len(found)
    return Score(loss, *(each(item.name) for item in fields(Score)[1:]))


def warm_up_updates(share: float, updates: int) -> int:
    """Return the updates in which the rate grows first, if that is to be a share of so many."""
    return round(share * updates)


@dataclass(frozen=True)
class Tried:
    """A batch, a norm to clip to (0: none) and a rate in a round of the search: the mean curve over its trainings, each
    on a seed of its own. settles: the rate had fallen to 0 at the end, so that only the end is what a device gets.
    per_layer: the norm is that of each layer alone. warm_up: share of the updates in which the rate grew first.
    average: ends of epochs whose mean was judged (0: none)."""

    batch: int
    clip: float
    rate: float
    seeds: int
    curve: tuple[Score, ...]
    failed: int
    settles: bool = False
    per_layer: bool = False
    warm_up: float = 0.0
    average: int = 0

    @property
    def best_epoch(self) -> int:
        """The epoch after which held-back samples were known best; 0: before the first."""
        if self.settles:
            return len(self.curve) - 1
        return max(range(len(self.curve)), key=lambda epoch: self.curve[epoch].worth)

    @property
    def best(self) -> Score:
        """The score after it."""
        return self.curve[self.best_epoch]


@dataclass(frozen=True)
class Learned:
    """What the recommended training gives on test samples, and on old ones (empty without): the mean over seeds.

    replay: old samples kept, one of which follows every new one (0: none). spread: standard deviation between seeds of
    the accuracy at the end, or of the loss. steps: updates of an epoch.
    """

    replay: int
    curve: tuple[Score, ...]
    old: tuple[Score, ...]
    spread: float
    steps: int

    @property
    def epochs(self) -> int:
        """Trained."""
        return len(self.curve) - 1

    @property
    def epochs_to_most(self) -> int:
        """After how many ENOUGH of the gain is there."""
        each = [one.loss if one.accuracy is None else -one.accuracy for one in self.curve]
        goal = each[0] + ENOUGH * (each[-1] - each[0])
        return next((epoch for epoch, value in enumerate(each) if value <= goal), self.epochs)


@dataclass(frozen=True)
class Finding:
    """All that `finetune` found.

    rounds: what was tried. chosen: of the last one. rate: what is recommended, near that of chosen. learned: what that
    gives without replay and, where there are old samples, with it. replay: old samples to keep, 0 for none. samples,
    tests: how many of them; held: of samples, how many judge a run of the rounds. trainings: run. step: what a call
    costs on the target by its figures; calls: of an update. update: what is trained; scheme: as a file, where that was
    chosen by --update auto ("" else). notes: what was made of the samples. record_bytes: of an old sample that is kept;
    most_kept: how many of them the board has room for (None: its RAM is not known). suspects: notes that may say why
    nothing was learned.
    """

    rounds: tuple[tuple[Tried, ...], ...]
    chosen: Tried
    rate: float
    learned: tuple[Learned, ...]
    replay: int
    trainings: int
    samples: int = 0
    tests: int = 0
    held: int = 0
    target: str = ""
    step: StepCost | None = None
    calls: int = 1
    update: str = ""
    scheme: str = ""
    notes: tuple[str, ...] = ()
    record_bytes: int = 0
    most_kept: int | None = None
    suspects: tuple[str, ...] = ()

    @property
    def taken(self) -> Learned:
        """What is recommended."""
        return next(one for one in self.learned if one.replay == self.replay)

    @property
    def warm_up(self) -> int:
        """Updates of what is recommended in which the rate grows first."""
        return warm_up_updates(self.chosen.warm_up, self.taken.epochs * self.taken.steps)

    @property
    def worth_it(self) -> bool:
        """Whether samples are known better after training than before it: those held back, and the test samples."""
        learned, seeds = self.learned[0].curve, self.chosen.seeds
        held = self.chosen.best.learned_since(self.chosen.curve[0], seeds * self.samples // 4)
        return held and learned[-1].learned_since(learned[0], seeds * self.tests)

    def device(self, updates: int) -> tuple[float, float] | None:
        """Return seconds and joules of so many updates by the target's figures."""
        if self.step is None:
            return None
        count = updates * self.calls
        return self.step.ps * count / 1e12, self.step.pj * count / 1e12
