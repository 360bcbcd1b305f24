"""Measure what the order of samples costs a device, and what samples that it keeps win back (3 minutes).

    python -m benchmarks order [--tasks NAME,..] [--update all,last:1] [--quant float32] [--seeds N] [--first SEED]
                               [--kept 60] [--old 2] [--plain]

Small tasks (rate_tasks.py), one sample a step, at the constant rate with which one shuffled pass is most accurate on
other seeds. Accuracies in % of samples that nothing trains on; means over seeds of the change of domain, with standard
errors. A reservoir of --kept own samples (--runtime replay) trains with --old of them for each new one. --plain: it
does not know their classes.

* One pass over 240 samples: shuffled, sorted by class, and sorted with kept samples.
* Adapted by five shuffled passes; then 200 samples of one class come (each class in turn over the seeds), without and
  with kept samples.
* Two shuffled passes in other orders: the mean and the largest difference.

Exits 1 if, with kept samples, a task that loses 40 points wins back less than 80 % of them, or if 200 samples of one
class cost over 4 points.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

import tinytrain_compile as tt
from benchmarks.learning.rate_tasks import DEVELOPMENT, FRESH, OWN, REPORTED, Data, RateTask
from tinytrain_compile.api import Compiled
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.parts.replay.twin import Reservoir
from tinytrain_compile.twin import Twin

GRID = tuple(0.001 * 10.0 ** (step / 3) for step in range(7))
PASSES, ONE_CLASS, TYPICAL = 5, 200, 128
BAR_LOST, BAR_BACK, BAR_COST = 40.0, 0.8, 4.0
TASKS = {**DEVELOPMENT, **FRESH, **REPORTED}


@dataclass(frozen=True)
class Mix:
    """kept: places, 0 for none. old: samples of these for each new one. balanced: the reservoir knows classes."""

    kept: int = 0
    old: int = 0
    balanced: bool = True


@dataclass(frozen=True)
class Accuracies:
    """In %, of one seed. again: of another shuffled pass."""

    before: float
    shuffled: float
    again: float
    by_class: float
    by_class_kept: float
    adapted: float
    one_class: float
    one_class_kept: float


class Device:
    """A model in use: learns from what comes, and from what it keeps of that."""

    def __init__(self, twin: Twin, rate: float, mix: Mix, seed: int) -> None:
        self.twin, self.rate, self.mix = twin, rate, mix
        self.kept = Reservoir[tuple[Array, Array]](mix.kept, seed)

    def learn(self, data: Data, order: Iterable[int], offers: bool = True) -> None:
        """Train on samples. offers: to the reservoir, too."""
        for index in order:
            for _ in range(self.mix.old if self.kept.samples else 0):
                self._step(*self.kept.draw())
            one = data[0][index][None], data[1][index][None]
            self._step(*one)
            if offers and self.mix.kept:
                self.kept.add(one, int(data[1][index]) if self.mix.balanced else 0)

    def accuracy(self, data: Data) -> float:
        """Return the accuracy on samples, in %."""
        return 100 * float((self.twin.predict(data[0]).argmax(axis=1) == data[1]).mean())

    def _step(self, x: Array, y: Array) -> None:
        with contextlib.suppress(CompileError):  # NaN: the step changed nothing
            self.twin.train_step(x, y, lr=self.rate)


def sample_order(rng: np.random.Generator, y: Array, by_class: bool) -> Array:
    """A random order; by_class: of classes, and within each."""
    order = rng.permutation(len(y))
    rank = rng.permutation(int(y.max()) + 1)
    return order[np.argsort(rank[y[order]], kind="stable")] if by_class else order


def measured(result: Compiled, rate: float, seed: int, data: tuple[Data, Data], mix: Mix) -> Accuracies:
    """All trainings of a seed. data: own and other samples."""
    own, test = data

    def passed(number: int, by_class: bool, mix: Mix) -> float:
        with result.twin() as twin:
            device = Device(twin, rate, mix, seed)
            device.learn(own, sample_order(np.random.default_rng((seed, number)), own[1], by_class))
            return device.accuracy(test)

    def adapted(mix: Mix) -> tuple[float, float]:
        rng = np.random.default_rng((seed, 3))
        with result.twin() as twin:
            device = Device(twin, rate, mix, seed)
            for number in range(PASSES):
                device.learn(own, sample_order(rng, own[1], False), offers=number == 0)
            before = device.accuracy(test)
            same = np.flatnonzero(own[1] == seed % (int(own[1].max()) + 1))
            device.learn(own, rng.choice(same, ONE_CLASS))
            return before, device.accuracy(test)

    with result.twin() as twin:
        before = Device(twin, rate, Mix(), seed).accuracy(test)
    plain, kept = adapted(Mix()), adapted(mix)
    passes = passed(1, False, Mix()), passed(2, False, Mix()), passed(1, True, Mix()), passed(1, True, mix)
    return Accuracies(before, *passes, plain[0], plain[1], kept[1])


def drawn(task: RateTask, seed: int) -> tuple[Data, Data]:
    """Own and other samples of the new domain."""
    x, y = task.draw(np.random.default_rng((seed, 1)), True)
    return (x[:OWN], y[:OWN]), (x[OWN:], y[OWN:])


def build(task: RateTask, update: str, quant: str, folder: Path) -> Compiled:
    """Compile the task's network, which knows the source domain."""
    typical = folder / "typical.npz"
    np.savez(typical, x=task.draw(np.random.default_rng(77), False)[0][:TYPICAL])
    int8 = {"quant": "int8", "calib": str(typical)} if quant == "int8" else {}
    return tt.compile(task.model(folder), update=update, verify="none", **int8)


def seeds_of(result: Compiled, task: RateTask, seeds: Sequence[int], mix: Mix) -> Iterator[Accuracies]:
    """Choose a rate by seeds of its own, then measure."""

    def shuffled(seed: int, rate: float) -> float:
        own, test = drawn(task, seed)
        with result.twin() as twin:
            device = Device(twin, rate, Mix(), seed)
            device.learn(own, np.random.default_rng(seed).permutation(OWN))
            return device.accuracy(test)

    best = max(GRID, key=lambda rate: sum(shuffled(seed, rate) for seed in (900, 901, 902)))
    for seed in seeds:
        yield measured(result, best, seed, drawn(task, seed), mix)


def with_error(values: np.ndarray) -> str:
    """Mean and standard error."""
    return f"{values.mean():.1f} +- {values.std(ddof=1) / len(values) ** 0.5:.1f}"


def row(name: str, found: Sequence[Accuracies]) -> tuple[str, list[str]]:
    """A row of the table, and what misses a bar."""
    before, shuffled, again, by_class, kept, adapted, one, one_kept = np.array([astuple(each) for each in found]).T
    lost, cost = (shuffled - by_class).mean(), (adapted - one_kept).mean()
    back = (kept - by_class).mean() / lost
    apart = np.abs(shuffled - again)
    cells = [with_error(each) for each in (before, shuffled, by_class, kept)]
    cells += [f"{lost:.1f}", f"{back:.0%}", with_error(adapted), with_error(adapted - one)]
    cells += [with_error(adapted - one_kept), f"{apart.mean():.1f}, {apart.max():.1f}"]
    missed = [f"{name}: {back:.0%} won back"] if lost >= BAR_LOST and back < BAR_BACK else []
    missed += [f"{name}: one class costs {cost:.1f}"] if cost > BAR_COST else []
    return f"| {name} | {' | '.join(cells)} |", missed


def main() -> None:
    """Print a row per task and update; exit 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="table,signal,images,pixels,beats,turned,groups,chirps,shapes")
    parser.add_argument("--update", default="all,last:1")
    parser.add_argument("--quant", default="float32")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=300)
    parser.add_argument("--kept", type=int, default=60)
    parser.add_argument("--old", type=int, default=2)
    parser.add_argument("--plain", action="store_true")
    given, missed = parser.parse_args(), list[str]()
    print("| task, trained | before | shuffled | by class | kept samples | lost | won back ", end="")
    print("| adapted | one class costs | with kept samples | run to run |\n" + "|---" * 11 + "|", flush=True)
    for name in given.tasks.split(","):
        for update in given.update.split(","):
            with tempfile.TemporaryDirectory() as folder:
                result = build(TASKS[name], update, given.quant, Path(folder))
                seeds = range(given.first, given.first + given.seeds)
                mix = Mix(given.kept, given.old, not given.plain)
                found = [*seeds_of(result, TASKS[name], seeds, mix)]
            text, below = row(f"{name}, {update}", found)
            print(text, flush=True)
            missed += below
    print(f"missed: {'; '.join(missed)}" if missed else "all bars held")
    sys.exit(bool(missed))
