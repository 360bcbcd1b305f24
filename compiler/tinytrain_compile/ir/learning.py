"""Results of trainings on a user's own samples: scores by epoch, rates tried, and the recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from tinytrain_compile.ir.cost import NextArena, StepCost

RateSchedule = Literal["cosine", "constant"]
StreamOrder = Literal["shuffled", "sorted", "as-recorded"]
"""Course of a learning rate in a training: it falls to 0 along half a cosine, or stays."""
SCHEDULES: tuple[RateSchedule, ...] = get_args(RateSchedule)

MOST_WARM_UP = 0.5
"""Largest share of a training in which the rate may grow first."""

ENOUGH = 0.9
"""Share of the gain after which more epochs bring little."""

POINT, LOSS_POINT = 0.01, 0.05
"""Of accuracy, and the share of a loss: what a rate may lose and still count as good as the chosen one."""


@dataclass(frozen=True)
class Score:
    """Performance on samples. accuracy: None if labels are values.

    For networks that reproduce their input, with some faults among the test samples (else None): auc, the area under
    the ROC curve of the errors; threshold, the 99th percentile of the errors of own samples that were not trained on;
    false_alarms, the share of sound test samples above it; detected, the share of faults above it.
    calibrated: the loss of outputs times the best common factor, for classes or yes and no; None: the same as loss.
    """

    loss: float
    accuracy: float | None = None
    auc: float | None = None
    threshold: float | None = None
    false_alarms: float | None = None
    detected: float | None = None
    calibrated: float | None = None

    @property
    def calibrated_loss(self) -> float:
        """Return the calibrated loss, or the loss if there is none."""
        return self.loss if self.calibrated is None else self.calibrated

    @property
    def worth(self) -> tuple[float, float]:
        """Sort key, larger is better: accuracy first, if there is one, then the loss."""
        return (0.0 if self.accuracy is None else self.accuracy, -self.loss)

    def better_than(self, other: Score, samples: int, errors: float = 1.0) -> bool:
        """Tell whether it is better by more than `errors` standard errors of an accuracy on `samples` samples.

        Without an accuracy: whether it is better at all.
        """
        if self.accuracy is None or other.accuracy is None:
            return self.worth > other.worth
        right = (self.accuracy * samples + 1) / (samples + 2)  # a few samples never prove a share of 0 or 1
        return self.accuracy - other.accuracy > errors * (right * (1 - right) / max(samples, 1)) ** 0.5

    def learned_since(self, before: Score, samples: int) -> bool:
        """Tell whether performance is better than before.

        That is, the accuracy is higher, or not significantly lower on this many samples, with a smaller loss.
        """
        return self.worth > before.worth or (self.loss < before.loss and not before.better_than(self, samples))


@dataclass(frozen=True)
class Curve:
    """Scores of one training, before the first epoch and after each; in final trainings, of old samples too.

    steps: updates of an epoch. failed: a loss was NaN or infinite; scores before it are included. golden: in final
    trainings with --guard, the share of golden samples lost at the end of each epoch.
    """

    scores: tuple[Score, ...]
    old: tuple[Score, ...]
    steps: int
    failed: bool = False
    golden: tuple[float, ...] = ()


def curve_of(found: Mapping[str, Any]) -> Curve:
    """Make a curve from its `dataclasses.asdict` form; of an earlier version, without `golden`."""
    each = {name: tuple(Score(**score) for score in found[name]) for name in ("scores", "old")}
    return Curve(**each, steps=found["steps"], failed=found["failed"], golden=tuple(found.get("golden", ())))


def mean_curve(curves: Sequence[Sequence[Score]], failed: Sequence[bool]) -> tuple[Score, ...]:
    """Return the mean over trainings, epoch by epoch.

    A training that ended earlier keeps its last score; a failed one counts as the worst.
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
    """Return the mean of several scores; a number that one of them lacks is missing in the mean."""

    def each(name: str) -> float | None:
        known = [value for score in found if (value := getattr(score, name)) is not None]
        return sum(known) / len(known) if len(known) == len(found) else None

    loss = sum(score.loss for score in found) / len(found)
    return Score(loss, *(each(item.name) for item in fields(Score)[1:]))


def warm_up_updates(share: float, updates: int) -> int:
    """Return the number of first updates in which the rate grows: a share of `updates`."""
    return round(share * updates)


@dataclass(frozen=True)
class Tried:
    """A batch, a norm to clip to (0: none) and a rate in a round of the search, with the mean curve over its trainings,
    one per seed. settles: the rate had fallen to 0 at the end, so only the end counts for a device. per_layer: the norm
    is that of each layer alone. warm_up: share of the updates in which the rate grew first. average: number of last
    epochs whose averaged states were scored (0: none)."""

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
        """The epoch with the best score on held-back samples; 0: before the first."""
        if self.settles:
            return len(self.curve) - 1
        return max(range(len(self.curve)), key=lambda epoch: self.curve[epoch].worth)

    @property
    def best(self) -> Score:
        """The score after the best epoch."""
        return self.curve[self.best_epoch]


@dataclass(frozen=True)
class Learned:
    """Mean over seeds of the recommended training's scores on test samples, and on old ones (empty without).

    replay: old samples kept, one of which follows every new one (0: none). spread: standard deviation between seeds of
    the final accuracy, or of the loss. steps: updates of an epoch. golden: with --guard, the share of golden samples
    lost at each end of an epoch, of all seeds.
    """

    replay: int
    curve: tuple[Score, ...]
    old: tuple[Score, ...]
    spread: float
    steps: int
    golden: tuple[float, ...] = ()

    @property
    def epochs(self) -> int:
        """Number of epochs trained."""
        return len(self.curve) - 1

    @property
    def epochs_to_most(self) -> int:
        """Number of epochs after which the share ENOUGH of the gain is reached."""
        each = [one.loss if one.accuracy is None else -one.accuracy for one in self.curve]
        goal = each[0] + ENOUGH * (each[-1] - each[0])
        return next((epoch for epoch, value in enumerate(each) if value <= goal), self.epochs)


def _close(one: Score, chosen: Score) -> bool:
    if one.accuracy is None or chosen.accuracy is None:
        return one.loss <= (1 + LOSS_POINT) * chosen.loss
    return one.accuracy >= chosen.accuracy - POINT - 1e-9  # a point is a point, whatever rounding leaves of it


@dataclass(frozen=True)
class Finding:
    """All that `finetune` found.

    rounds: settings tried. chosen: from the last round. rate: recommended, near that of chosen. learned: its results
    without replay and, if there are old samples, with it. replay: old samples to keep, 0 for none. samples, tests:
    their numbers; held: number of samples held back in a run of the rounds. trainings: number run. step: cost of a call
    on the target by its figures; calls: per update. update: selection of trained parameters; scheme: as a file, if
    --update auto chose it (else ""). notes: on the use of the samples. record_bytes: of an old sample that is kept;
    most_kept: how many of them the board has room for (None: its RAM is not known). suspects: notes on possible reasons
    why nothing was learned. copies: what those of --activations lose against exact inputs, by seed: of the accuracy on
    test samples; without one, the share by which the loss is larger. next_arena: worth having above --arena, if
    --update auto had to leave something out.
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
    next_arena: NextArena | None = None
    copies: tuple[float, ...] = ()

    @property
    def taken(self) -> Learned:
        """The recommended result."""
        return next(one for one in self.learned if one.replay == self.replay)

    @property
    def warm_up(self) -> int:
        """Number of first updates in which the rate grows, in the recommended training."""
        return warm_up_updates(self.chosen.warm_up, self.taken.epochs * self.taken.steps)

    @property
    def alike(self) -> tuple[Tried, ...]:
        """Return trainings of the same round that differ from the chosen one by their rate alone, by rate."""
        holds = (tried for tried in self.rounds[::-1] if any(one is self.chosen for one in tried))
        found = next(holds, (self.chosen,))
        rate, curve, failed = self.chosen.rate, self.chosen.curve, self.chosen.failed
        like = (one for one in found if replace(one, rate=rate, curve=curve, failed=failed) == self.chosen)
        return tuple(sorted(like, key=lambda one: one.rate))

    @property
    def flat(self) -> tuple[Tried, ...]:
        """Return those of `alike` around the chosen one, without a gap, that lose at most POINT of accuracy against it.

        Without an accuracy: whose loss is at most the share LOSS_POINT larger.
        """
        found = list(self.alike)
        first = last = next(index for index, one in enumerate(found) if one is self.chosen)
        while first and _close(found[first - 1].best, self.chosen.best):
            first -= 1
        while last + 1 < len(found) and _close(found[last + 1].best, self.chosen.best):
            last += 1
        return tuple(found[first : last + 1])

    @property
    def worth_it(self) -> bool:
        """True if performance is better after training than before, on held-back samples and on test samples."""
        learned, seeds = self.learned[0].curve, self.chosen.seeds
        held = self.chosen.best.learned_since(self.chosen.curve[0], seeds * self.samples // 4)
        return held and learned[-1].learned_since(learned[0], seeds * self.tests)

    def device(self, updates: int) -> tuple[float, float] | None:
        """Return seconds and joules of `updates` updates by the target's figures."""
        if self.step is None:
            return None
        count = updates * self.calls
        return self.step.ps * count / 1e12, self.step.pj * count / 1e12
