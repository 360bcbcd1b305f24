"""Training of one compilation on this machine, from the first epoch to the last: what `finetune` compares."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np

from tinytrain_compile.data.own_data import old_parts, split
from tinytrain_compile.data.samples import class_count, is_written
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.golden import Golden
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.learning import Curve, RateSchedule, Score, StreamOrder, warm_up_updates
from tinytrain_compile.ir.stages import Interface, Samples, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.runs import in_processes
from tinytrain_compile.parts.average.twin import Average
from tinytrain_compile.parts.guard.twin import Guard
from tinytrain_compile.parts.replay.twin import Reservoir
from tinytrain_compile.parts.schedule.twin import Schedule
from tinytrain_compile.twin import Instance
from tinytrain_compile.twin.scores import calibrated_loss, scores
from tinytrain_compile.verify.tools import work_folder

CHECK_SHARE = 0.25
"""Of the own samples, that a run which something is chosen by is judged by, and that say a threshold where the network
repeats its input; others for every seed."""
PERCENTILE = 99
"""Of the errors of own samples that were not trained on, above which a sample is taken for a fault."""
PATIENCE = 5
"""Epochs without anything better after which a run ends."""

KEPT_AFTER_EACH = 2
"""Kept samples of a device for each new one. Development tasks of `make bench NAME=order` chose it: of 55 points that a
pass sorted by class lost, one won back 81 %, and two 96 %."""


def held_back(own: Samples, train: TrainGraph, seed: int) -> tuple[Array, Array]:
    """Return indices of own samples: (those that a run trains on, those that judge it)."""
    return split(own.y if class_count(train) else None, len(own.x), CHECK_SHARE, seed)


@dataclass(frozen=True)
class LearningRun:
    """One training of a build. seed: of the order of samples, of those held back, and of rounding noise.

    replay: old samples that are kept, one of which follows every new one (0: none). final: trains to the last epoch,
    and is judged by the test samples: on all own samples, but those that say the threshold of a network that repeats
    its input (of samples that were trained on it would be too low). Others hold some back, and end when nothing gets
    better at a constant rate. schedule: what the rate does from the first update to the last; warm_up: the share of
    the updates in which it grows before it falls. average: ends of epochs whose mean is judged, and is what a device
    gets (0: none, the last state is). order: of the samples in an epoch: shuffled, by class, or as in the file. kept:
    own samples that a reservoir keeps, KEPT_AFTER_EACH of which follow every new one (0: none).
    """

    build: int
    rate: float
    seed: int
    epochs: int
    replay: int = 0
    final: bool = False
    schedule: RateSchedule = "constant"
    warm_up: float = 0.0
    average: int = 0
    order: StreamOrder = "shuffled"
    kept: int = 0

    @property
    def settles(self) -> bool:
        """Tell whether the rate has fallen to 0 at the end."""
        return self.schedule != "constant"

    @property
    def key(self) -> str:
        """Return a name by which it is known again."""
        kind = "final" if self.final else "choosing"
        how = f"{self.schedule} {self.warm_up!r} {self.average}"
        how += "" if self.order == "shuffled" and not self.kept else f" {self.order} {self.kept} {KEPT_AFTER_EACH}"
        return f"{kind} {self.build} {self.rate!r} {self.seed} {self.epochs} {self.replay} {how}"

    def rates(self, updates: int) -> Iterator[float]:
        """Yield the rate of one update after the other, of so many in all."""
        if not self.settles:
            return repeat(self.rate)
        first = warm_up_updates(self.warm_up, updates)
        falling = Schedule("cosine", self.rate, warm_up=first, every=updates - first)
        return (falling.rate_of(update) for update in range(updates))


@dataclass(frozen=True, eq=False)
class Build:
    """A compilation as a library of this machine, with what a process needs to judge what it learns.

    library: where it lies; code: what is in it, for processes of other machines, which have to have the same processor.
    copies: the network repeats its input. faults: of its test samples, which are no sound ones (None: not known).
    golden: samples of --guard.
    """

    library: Path
    code: bytes
    interface: Interface
    model: ImportedModel
    train: TrainGraph
    own: Samples
    test: Samples
    old: Samples | None
    copies: bool = False
    faults: Array | None = None
    golden: Golden | None = None

    @property
    def _says_threshold(self) -> bool:
        """Whether a final run does: the network repeats its input, and its loss is not one that only the C knows."""
        return self.copies and not is_written(self.model)

    def learn(self, run: LearningRun) -> Curve:
        """Train, and score after every epoch."""
        with self._here() as library:
            return self._learned(Instance(library, self.interface), run)

    @contextmanager
    def _here(self) -> Generator[Path]:
        """Build the library for this machine."""
        if self.library.exists():
            yield self.library
            return
        with work_folder() as folder:
            copy = folder / self.library.name
            copy.write_bytes(self.code)
            yield copy

    def _learned(self, instance: Instance, run: LearningRun) -> Curve:
        _seed_noise(instance, run.seed)
        fit, held = self._parts(run)
        pool, kept = self._old_parts(run) if run.final else (None, None)
        rng = np.random.default_rng((run.seed, 3))
        score = self._final_score if run.final else partial(self._score, calibrated=True)
        found = [score(instance, held)]
        old = [] if kept is None else [self._score(instance, kept)]
        guard, lost = Guard(self.golden) if run.final and self.golden else None, list[float]()
        best, waited = found[0].worth, 0
        steps = self._steps(len(fit.x) + (KEPT_AFTER_EACH * (len(fit.x) - 2) if run.kept else 0), pool)
        rates = run.rates(steps * run.epochs)
        average = Average(self.train, run.average) if run.average else None
        for _ in range(run.epochs):
            try:
                self._epoch(instance, fit, pool, rng, rates, run)
                with _as_kept(instance, average):
                    found.append(score(instance, held))
                    old += [] if kept is None else [self._score(instance, kept)]
                    lost += [guard.lost(instance.infer(guard.golden.samples.x))] if guard else []
            except CompileError:
                return Curve(tuple(found), tuple(old), steps, True, tuple(lost))
            better = found[-1].worth > best
            best, waited = (found[-1].worth, 0) if better else (best, waited + 1)
            if waited >= PATIENCE and not (run.final or run.settles):
                break
        return Curve(tuple(found), tuple(old), steps, golden=tuple(lost))

    def _parts(self, run: LearningRun) -> tuple[Samples, Samples]:
        """Return own samples that a run trains on, and those that it holds back.

        The latter judge a run; in a final run they give the threshold (none, if there is none to be said).
        """
        if run.final and not self._says_threshold:
            return self.own, Samples(self.own.x[:0], self.own.y[:0])
        rest, kept = held_back(self.own, self.train, run.seed)
        return Samples(self.own.x[rest], self.own.y[rest]), Samples(self.own.x[kept], self.own.y[kept])

    def _old_parts(self, run: LearningRun) -> tuple[Samples | None, Samples | None]:
        """Return old samples that are replayed, and those that tell what was forgotten.

        Never the same, for all runs alike.
        """
        if self.old is None:
            return None, None
        pool, kept = old_parts(len(self.old.x), run.replay)
        return Samples(self.old.x[pool], self.old.y[pool]), Samples(self.old.x[kept], self.old.y[kept])

    def _steps(self, count: int, pool: Samples | None) -> int:
        return count * (2 if pool is not None and len(pool.x) else 1) // self.train.batch

    def _epoch(
        self,
        instance: Instance,
        fit: Samples,
        pool: Samples | None,
        rng: np.random.Generator,
        rates: Iterator[float],
        run: LearningRun,
    ) -> None:
        """Train on all samples once, in the run's order, with as many old ones.

        A last part of a batch is left out.
        """
        x, y = fit.x, fit.y
        if pool is not None and len(pool.x):
            chosen = rng.integers(0, len(pool.x), len(x))
            x, y = np.concatenate([x, pool.x[chosen]]), np.concatenate([y, pool.y[chosen]])
        order, batch = rng.permutation(len(x)), self.train.batch
        if run.order != "shuffled":
            order = (
                np.arange(len(x)) if run.order == "as-recorded" else order[np.argsort(y[order].ravel(), kind="stable")]
            )
        if run.kept:
            labels = y.ravel() if class_count(self.train) and y[:1].size == 1 else np.zeros(len(y), int)
            order = with_kept(order, run.kept, run.seed, labels)
        for first in range(0, len(order) - batch + 1, batch):
            some = order[first : first + batch]
            instance.set_rate(next(rates))
            instance.train(x[some], y[some])

    def _score(self, instance: Instance, samples: Samples, calibrated: bool = False) -> Score:
        if is_written(self.model):  # only the C knows that loss
            return Score(float(instance.losses(samples.x, samples.y).mean()))
        outputs = self.model, self.train, instance.infer(samples.x), samples.y
        found = scores(*outputs)
        return Score(found["loss"], found.get("accuracy"), calibrated=calibrated_loss(*outputs) if calibrated else None)

    def _final_score(self, instance: Instance, held: Samples) -> Score:
        """Score the end of a training by the test samples."""
        return self._of_copies(instance, held) if self._says_threshold else self._score(instance, self.test)

    def _of_copies(self, instance: Instance, held: Samples) -> Score:
        """Score test samples of which some may be faults: the loss is that of the others. held: say the threshold."""
        errors = _errors(instance.infer(self.test.x), self.test.y)
        threshold = float(np.percentile(_errors(instance.infer(held.x), held.y), PERCENTILE))
        if self.faults is None:
            return Score(float(errors.mean()), threshold=threshold, false_alarms=float((errors > threshold).mean()))
        sound, faulty = errors[~self.faults], errors[self.faults]
        alarms, detected = float((sound > threshold).mean()), float((faulty > threshold).mean())
        return Score(float(sound.mean()), None, area(sound, faulty), threshold, alarms, detected)


def with_kept(order: Array, kept: int, seed: int, labels: Array) -> Array:
    """Return the samples of a stream as a device trains on them: before each new one, some of its reservoir.

    labels: class of each sample; zeros if labels are values.
    """
    reservoir, found = Reservoir[int](kept, seed), list[int]()
    reservoir.mix(1, KEPT_AFTER_EACH)
    for sample in order.tolist():
        while reservoir.due():
            found.append(reservoir.draw())
        found.append(sample)
        reservoir.add(sample, int(labels[sample]))
    return np.asarray(found)


@contextmanager
def _as_kept(instance: Instance, average: Average | None) -> Generator[None]:
    """Yield once, at the end of an epoch, with the mean of states in place if a device would keep one."""
    if average is None:
        yield
        return
    before = instance.state()
    held = {name: instance.tensor(name) for name in before}
    average.add(before)
    average.take(held)
    try:
        yield
    finally:
        for name, array in held.items():
            array[:] = before[name]


def _errors(outputs: Array, wanted: Array) -> Array:
    """Return the mean squared error of each sample."""
    return np.square(outputs.astype(np.float64) - wanted.reshape(outputs.shape)).mean(axis=1)


def area(sound: Array, faulty: Array) -> float:
    """Return the area under the ROC curve: how often a faulty one has the larger error (ties count half)."""
    order = np.sort(sound)
    below, upto = (np.searchsorted(order, faulty, side).sum() for side in ("left", "right"))
    return float(below + upto) / (2 * len(sound) * len(faulty))


def _seed_noise(instance: Instance, seed: int) -> None:
    """Begin the rounding noise elsewhere for every seed, as it would be on another device."""
    for slot in instance.interface.state:
        if slot.name == "noise" and instance.tensor("noise").dtype == np.int32:  # not a float parameter of that name
            held = instance.tensor("noise").view(np.uint32)
            held += np.uint32(2 * seed * 0x3779B97 & 0xFFFFFFFF)


def learn_all(
    builds: Sequence[Build], runs: Sequence[LearningRun], jobs: int, done: Callable[[int, Curve], None]
) -> list[Curve]:
    """Train all, by so many processes, and return curves in order; `done` gets each as it comes."""
    found = list[Curve]()
    for index, curve in enumerate(in_processes(Build.learn, ((builds[run.build], run) for run in runs), jobs)):
        found.append(curve)
        done(index, curve)
    return found
