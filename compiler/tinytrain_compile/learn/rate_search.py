"""The search of `finetune` for a learning rate: rounds of trainings, from many short ones to a few long ones.

The search halves successively (Jamieson and Talwalkar, AISTATS 2016): many rates for a few epochs, the better ones for
longer and on more seeds, then rates around the best. A round goes on beyond its first rates while its best is the
largest or the smallest of them. Work is counted in epochs of a training, never timed: see MORE_WORK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.driver.progress import Progress
from tinytrain_compile.ir.learning import Curve, Learned, Score, StreamOrder, Tried, curve_of, mean_curve
from tinytrain_compile.learn.runs import KnownRuns
from tinytrain_compile.learn.training import CHECK_SHARE, Build, LearningRun, learn_all
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.effort import FinetuneEffort

STEP = 10.0**0.5  # two rates a decade: on a wider grid the best may lie unseen between two
FIRST_RATES = tuple(STEP**power for power in range(-3, 4))
"""Learning rates of the first round, times the one that the options say."""
MORE_RATES = 4
"""At most so many more in that round, which trains for an eighth of the epochs."""
NEXT_STEP = STEP**0.5
NEXT_TO = (1 / NEXT_STEP, 1.0, NEXT_STEP)
"""Rates of the last round, times the best so far; and how far further ones are apart."""
MORE_WORK = 0.2
"""Share of a search's epochs that further rates of the second and the last round may add."""
SURVIVORS = 3
"""Rates of the second round."""
FIRST_SHARE, SECOND_SHARE, SECOND_SEEDS = 8, 3, 2
"""Of the epochs, a run of the first and of the second round trains one in so many; on one seed and on so many."""
CHANCE = 2.0
"""Standard errors by which accuracies may differ by chance (chosen on the tasks of `make bench NAME=rates`)."""
STREAMS = 3
"""Orders that are compared: shuffled, the stream's, and the stream's with kept samples."""
COPY_SEEDS = 6
"""Seeds on which low-rank copies are compared with exact inputs: of fewer a standard error says little."""
LAST_SEEDS = 1
"""Seeds on which the last round looks for the best rate, before it and its neighbours are trained on all."""
Place = tuple[int, float]
"""A variant and a rate."""
NOTHING: Mapping[Place, Tried] = {}


def _first_epochs(effort: FinetuneEffort) -> int:
    """Return the epochs of a run of the first round, which has one seed."""
    return max(1, effort.epochs // FIRST_SHARE)


def _second_round(effort: FinetuneEffort) -> tuple[int, int]:
    """Return the seeds and epochs of the second round."""
    return min(SECOND_SEEDS, effort.seeds), max(1, effort.epochs // SECOND_SHARE)


def _more_epochs(effort: FinetuneEffort, builds: int) -> float:
    """Return the epochs that a search with so many builds may add in its second and last round."""
    seeds, epochs = _second_round(effort)
    last = (len(NEXT_TO) + 1) * effort.seeds * effort.epochs
    return MORE_WORK * (len(FIRST_RATES) * builds * _first_epochs(effort) + SURVIVORS * seeds * epochs + last)


def most_runs(effort: FinetuneEffort, builds: int, finals: int) -> int:
    """Return the most runs that a search with so many builds and final trainings makes."""
    first, (seeds, epochs) = len(FIRST_RATES) * builds + MORE_RATES, _second_round(effort)
    more = int(_more_epochs(effort, builds) / epochs)
    streams = 0 if effort.order == "off" else STREAMS
    return first + SURVIVORS * seeds + (len(NEXT_TO) + finals + streams) * effort.seeds + more


@dataclass(frozen=True, eq=False)
class Variant:
    """A compilation with one of the batches and norms that are compared, a warm-up and an average; 0 for none.

    options: those of the project.
    """

    batch: int
    clip: float
    per_layer: bool
    warm_up: float
    average: int
    project: Project
    options: CompileOptions


@dataclass
class Trainings:
    """Runs of a search. Those that an earlier call has made are known; `made` has the keys of all."""

    variants: Sequence[Variant]
    builds: list[Build]
    effort: FinetuneEffort
    seed: int
    known: KnownRuns
    progress: Progress
    finals: int = 1
    made: set[str] = field(default_factory=set[str])

    def tried(self, each: Sequence[Place], seeds: int, epochs: int) -> tuple[Tried, ...]:
        """Train each on so many seeds for so long."""
        runs = [self._run(variant, rate, seed, epochs) for variant, rate in each for seed in range(seeds)]
        curves = self._curves(runs)
        parts = [curves[first : first + seeds] for first in range(0, len(curves), seeds)]
        return tuple(
            Tried(
                self.variants[variant].batch,
                self.variants[variant].clip,
                rate,
                seeds,
                means(part),
                sum(one.failed for one in part),
                runs[0].settles,
                self.variants[variant].per_layer,
                self.variants[variant].warm_up,
                self.variants[variant].average,
            )
            for (variant, rate), part in zip(each, parts, strict=True)
        )

    def learned(self, place: Place, epochs: int, replay: int) -> Learned:
        """Train on all samples, with so many old ones kept, and judge by the test samples."""
        seeds = range(self.effort.seeds)
        runs = [replace(self._run(*place, seed, epochs), replay=replay, final=True) for seed in seeds]
        curves = self._curves(runs)
        old = mean_curve([one.old for one in curves], [one.failed for one in curves]) if curves[0].old else ()
        ends = [one.scores[-1] for one in curves]
        spread = float(np.std([one.loss if one.accuracy is None else one.accuracy for one in ends]))
        golden = tuple(lost for one in curves for lost in one.golden)
        return Learned(replay, means(curves), old, spread, curves[0].steps, golden)

    def losses(self, place: Place, epochs: int, other: int) -> tuple[float, ...]:
        """Train as recommended and by another build, both on COPY_SEEDS seeds.

        Returns what the former loses, seed by seed: of the accuracy on test samples, or the share by which its
        loss is larger.
        """
        self.finals += -(-2 * COPY_SEEDS // self.effort.seeds)
        runs = [
            replace(self._run(*place, seed, epochs), build=build, final=True)
            for build in (place[0], other)
            for seed in range(COPY_SEEDS)
        ]
        ends = [one.scores[-1] if not one.failed else Score(float("inf"), 0.0) for one in self._curves(runs)]
        return tuple(lost_between(*pair) for pair in zip(ends[:COPY_SEEDS], ends[COPY_SEEDS:], strict=True))

    def streamed(self, place: Place, order: StreamOrder, kept: int) -> tuple[Score, ...]:
        """Train one pass at a constant rate, in an order: mean scores of test samples before and after."""
        runs = [
            replace(self._run(*place, seed, 1), schedule="constant", warm_up=0.0, order=order, kept=kept, final=True)
            for seed in range(self.effort.seeds)
        ]
        return means(self._curves(runs))

    def _run(self, variant: int, rate: float, seed: int, epochs: int) -> LearningRun:
        how = self.variants[variant]
        schedule, seed = self.effort.schedule, self.seed + seed
        return LearningRun(variant, rate, seed, epochs, schedule=schedule, warm_up=how.warm_up, average=how.average)

    def _curves(self, runs: Sequence[LearningRun]) -> list[Curve]:
        missing = [run for run in runs if self.known.of(run.key) is None]
        before = len(self.made | {run.key for run in runs}) - len(missing)
        self.made |= {run.key for run in runs}
        most = most_runs(self.effort, len(self.builds), self.finals)

        def done(index: int, curve: Curve) -> None:
            self.known.add(missing[index].key, asdict(curve))
            count = before + index + 1
            self.progress(f"training, run {count} of at most {most}", 0.1 + 0.9 * count / most)

        learn_all(self.builds, missing, self.effort.jobs, done)
        return [curve_of(found) for run in runs if (found := self.known.of(run.key)) is not None]


@dataclass(frozen=True)
class Searched:
    """What the rounds found. place: the recommended variant and rate; open_end: the best full training was at the
    largest (1) or the smallest rate (-1) that the work was enough for (else 0)."""

    rounds: tuple[tuple[Tried, ...], ...]
    chosen: Tried
    place: Place
    open_end: int


class RateSearch:
    """Three rounds of trainings."""

    def __init__(self, trainings: Trainings) -> None:
        self._trainings, self._effort = trainings, trainings.effort
        self._left = _more_epochs(self._effort, len(trainings.builds))

    def run(self) -> Searched:
        """Make the rounds and say which rate they recommend."""
        effort = self._effort
        first = self._first_round()
        second = self._going_on(self._survivors(first), STEP, *_second_round(effort))
        place = self._best(second)
        shorter = second[place]
        last, sure = self._last_round(place)
        best = likely_best(sure, self._judges, whole=True)
        end = _end_of(best, last)
        chosen = sure[_short_of(best, sure, self._judges) if end > 0 else best]
        rate = top_of(_around(list(sure.values()), chosen), chosen)
        judges = self._judges * min(shorter.seeds, chosen.seeds)
        if chosen.settles and shorter.best.better_than(chosen.best, judges):  # longer trainings make it worse
            chosen, rate, end = shorter, shorter.rate, 0
        rounds = (tuple(first.values()), tuple(second.values()), tuple(last.values()))
        return Searched(rounds, chosen, (place[0], float(f"{rate:.4g}")), end)  # as it is written

    def _first_round(self) -> dict[Place, Tried]:
        """Train FIRST_RATES, and more while the best may lie outside.

        Returns (variant, rate) -> how it went, in their order.
        """
        rates = [variant.project.summary.learning_rate for variant in self._trainings.variants]
        each = [(variant, rate * step) for variant, rate in enumerate(rates) for step in FIRST_RATES]
        found = dict(zip(each, self._trainings.tried(each, 1, _first_epochs(self._effort)), strict=True))
        for _ in range(MORE_RATES):
            more = _beyond(found, STEP, self._judges)
            if more is None:
                break
            (found[more],) = self._trainings.tried([more], 1, _first_epochs(self._effort))
        return dict(sorted(found.items()))

    def _last_round(self, place: Place) -> tuple[dict[Place, Tried], dict[Place, Tried]]:
        """Train rates around a place on some of the seeds; then the best and its neighbours on all of them.

        Returns all rates, and those that were trained on all seeds.
        """
        effort, around = self._effort, [(place[0], place[1] * step) for step in NEXT_TO]
        seen = self._going_on(around, NEXT_STEP, min(LAST_SEEDS, effort.seeds), effort.epochs)
        each = list(seen)
        best = each.index(likely_best(seen, self._judges, whole=True))
        first = min(max(best - 1, 0), len(each) - 3)
        last = self._going_on(each[first : first + 3], NEXT_STEP, effort.seeds, effort.epochs, seen)
        return dict(sorted({**seen, **last}.items())), last

    def _survivors(self, first: Mapping[Place, Tried]) -> list[Place]:
        """Choose the best of the first round; one without clipping is among them, to compare clipping with."""
        left, best = dict(first), list[Place]()
        while left and len(best) < SURVIVORS:
            best.append(likely_best(left, self._judges))
            del left[best[-1]]
        plain = {place: one for place, one in left.items() if not one.clip}
        if plain and all(first[place].clip for place in best):
            best[-1] = likely_best(plain, self._judges)
        return sorted(best)

    def _going_on(
        self, each: Sequence[Place], step: float, seeds: int, epochs: int, seen: Mapping[Place, Tried] = NOTHING
    ) -> dict[Place, Tried]:
        """Add further rates while the best is the largest or smallest of its variant and work is left.

        seen: what was trained as long before, on some of the seeds.
        """
        found, whole = dict(zip(each, self._trainings.tried(each, seeds, epochs), strict=True)), step == NEXT_STEP
        while (more := _beyond(found, step, self._judges, seen, whole)) is not None:
            cost = epochs * (seeds - (seen[more].seeds if more in seen else 0))
            if cost > self._left:
                break
            self._left -= cost
            (found[more],) = self._trainings.tried([more], seeds, epochs)
        return dict(sorted(found.items()))

    @property
    def _judges(self) -> int:
        """Samples that judge a run."""
        return int(CHECK_SHARE * len(self._trainings.builds[0].own.x))

    def _best(self, tried: dict[Place, Tried]) -> Place:
        """Return the best; without clipping, unless that is better by more than chance may make it."""
        best, plain = likely_best(tried, self._judges), {place: one for place, one in tried.items() if not one.clip}
        if not tried[best].clip or not plain:
            return best
        other = likely_best(plain, self._judges)
        judges = self._judges * tried[best].seeds
        return best if tried[best].best.better_than(tried[other].best, judges) else other


def likely_best(tried: Mapping[Place, Tried], judges: int, whole: bool = False) -> Place:
    """Choose the smallest loss among those that are as accurate as the best one, but for chance.

    judges: samples that judge each seed. An accuracy on a hundred samples has a standard error of up to 5 %, and the
    best of many is above its own mean; losses of neighbouring rates differ more clearly. whole: trainings to the end,
    whose calibrated losses count. There large rates make a network too sure of itself, which a loss punishes and an
    accuracy does not. After a short training the plain loss says how far it has come.
    """
    best = max(tried, key=lambda place: tried[place].best.worth)
    count = judges * tried[best].seeds
    alike = [place for place in tried if not tried[best].best.better_than(tried[place].best, count, CHANCE)]
    return min([best, *alike], key=lambda place: tried[place].best.calibrated_loss if whole else tried[place].best.loss)


def _short_of(best: Place, tried: Mapping[Place, Tried], judges: int) -> Place:
    """Return the next smaller rate than the largest one, unless that is more accurate by more than chance makes it.

    Nothing was trained beyond: a rate a little too large ends a training, one a little too small only slows it.
    """
    below = max(place for place in tried if place < best)
    count = judges * tried[best].seeds
    return best if tried[best].best.better_than(tried[below].best, count, CHANCE) else below


def _beyond(
    found: Mapping[Place, Tried],
    step: float,
    judges: int,
    seen: Mapping[Place, Tried] = NOTHING,
    whole: bool = False,
) -> Place | None:
    """Return the next rate beyond the best of all, if that is an end of its variant; larger ones first.

    It is one of those that were seen, if there is one.
    """
    variant, best = likely_best(found, judges, whole)
    own = [rate for other, rate in found if other == variant]
    if best not in (max(own), min(own)):
        return None
    upwards = best == max(own)
    near = [rate for other, rate in seen if other == variant and (rate > best if upwards else rate < best)]
    if near:
        return variant, min(near) if upwards else max(near)
    return variant, best * step if upwards else best / step


def _around(tried: Sequence[Tried], best: Tried) -> Sequence[Tried]:
    """Return three neighbours by rate, the best in the middle unless it is at an end."""
    first = min(max(tried.index(best) - 1, 0), len(tried) - 3)
    return tried[first : first + 3]


def _end_of(best: Place, last: dict[Place, Tried]) -> int:
    rates = [rate for _, rate in last]
    return int(best[1] == max(rates)) - int(best[1] == min(rates))


def top_of(tried: Sequence[Tried], chosen: Tried) -> float:
    """Return the rate at the top of the parabola through three accuracies, which is less noisy than the best of three.

    It is over logarithms of rates that are equally far apart; losses stand for accuracies if there are none or if they
    have chosen. The result is never outside the three, nor further than half a step from the chosen one, which is the
    answer if there is no top.
    """
    by_loss = max(tried, key=lambda one: one.best.worth) is not chosen  # then accuracies are alike
    figures = [
        -one.best.calibrated_loss if by_loss or one.best.accuracy is None else one.best.accuracy for one in tried
    ]
    below, middle, above = figures
    best = tried.index(chosen)
    bend = below - 2 * middle + above
    if not np.isfinite(bend) or bend >= 0:
        return tried[best].rate
    top = min(max((below - above) / (2 * bend), -1.0, best - 1.5), 1.0, best - 0.5)  # steps from the middle
    return tried[1].rate * (tried[2].rate / tried[1].rate) ** top


def lost_between(one: Score, exact: Score) -> float:
    """Return how much accuracy one end loses against another; without one, by what share its loss is larger."""
    if one.accuracy is None or exact.accuracy is None:
        return one.loss / exact.loss - 1 if exact.loss > 0 else 0.0
    return exact.accuracy - one.accuracy


def means(curves: Sequence[Curve]) -> tuple[Score, ...]:
    """Return the mean curve of trainings on several seeds."""
    return mean_curve([one.scores for one in curves], [one.failed for one in curves])
