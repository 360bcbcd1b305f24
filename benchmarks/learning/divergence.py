"""Count trainings that end worse than untrained, those that the watch reports, and those left with a guard (9 minutes).

    python -m benchmarks divergence [--tasks NAME,..] [--seeds N] [--first SEED]

Small tasks (rate_tasks.py) in float32 and int8, one sample a step, five passes over 240 samples. The rates are 1/2 to
30 times the best, which other seeds found. The watch hears 100 untrained losses, then every loss; its verdict after
the last step counts. A training ends worse if its accuracy on over 1,000 other samples falls by over a point.
DEVELOPMENT and FRESH tasks chose the constants of the watch, REPORTED tasks did not.

Each training is done again with a guard (--guard-drop 1%) that checks 100 golden samples of the new domain at the end
of each pass. The last columns count those over a point below the untrained network: on the golden samples without and
with the guard, and on the other samples with it.

Exits 1 if less than 90 % of those that end worse are reported, or over 1 % of those that end better, or if one with the
guard ends over a point worse on the golden samples.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tinytrain_compile as tt
from benchmarks.learning.rate_tasks import DEVELOPMENT, FRESH, OWN, REPORTED, Data, RateTask
from tinytrain_compile.api import Compiled
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.golden import Golden
from tinytrain_compile.parts.guard.part import Guard as GuardPart
from tinytrain_compile.parts.guard.twin import Guard
from tinytrain_compile.parts.monitor.twin import Watch
from tinytrain_compile.twin import Twin

GRID = tuple(0.001 * 10.0 ** (step / 3) for step in range(7))
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
PASSES, UNTRAINED, GOLDEN = 5, 100, 100
BAR_FOUND, BAR_FALSE = 0.9, 0.01
TASKS = {**DEVELOPMENT, **FRESH, **REPORTED}


@dataclass(frozen=True)
class Training:
    """Accuracies on other samples before and after, from 0 to 1, and the last verdict of the watch.

    golden: right golden samples before, after, and after a training with a guard. rest: accuracies on the other samples
    without the golden ones, before and after a training with a guard.
    """

    before: float
    after: float
    reported: bool
    golden: tuple[int, int, int]
    rest: tuple[float, float]

    @property
    def worse(self) -> bool:
        """True if it ends over a point below the untrained network."""
        return self.after < self.before - 0.01

    @property
    def better(self) -> bool:
        """True if it ends above the untrained network."""
        return self.after > self.before


def right(twin: Twin, data: Data) -> int:
    """Number of samples whose class has the largest output."""
    return int((twin.predict(data[0]).argmax(axis=1) == data[1]).sum())


def accuracy(twin: Twin, data: Data) -> float:
    """Share of these samples."""
    return right(twin, data) / len(data[1])


def loss_of(twin: Twin, x: np.ndarray, y: np.ndarray, rate: float) -> float:
    """Loss of a step, infinite if the step failed."""
    try:
        return twin.train_step(x[None], y[None], lr=rate)
    except CompileError:
        return float("inf")


def trained(twin: Twin, seed: int, own: Data, test: Data, rate: float, golden: Golden) -> Training:
    """Train a new instance on the samples of a seed, without a guard and with one.

    test: begins with the golden samples.
    """
    order, watch = np.random.default_rng(seed), Watch(int(max(own[1])) + 1)
    known, rest = (test[0][:GOLDEN], test[1][:GOLDEN]), (test[0][GOLDEN:], test[1][GOLDEN:])
    before, golden_before, rest_before = accuracy(twin, test), right(twin, known), accuracy(twin, rest)
    guard = Guard(golden)
    assert guard.check(twin.instance), "the guard refuses the model of the file"
    for index in order.permutation(OWN)[:UNTRAINED]:
        watch.add_untrained(loss_of(twin, own[0][index], own[1][index], 0.0))
    verdict, passes, refused = "healthy", [order.permutation(OWN) for _ in range(PASSES)], PASSES
    for number, samples in enumerate(passes):
        for index in samples:
            verdict = watch.add(loss_of(twin, own[0][index], own[1][index], rate))
        if refused == PASSES:  # so far the guard has changed nothing
            if guard.keeps_limit(twin.instance.infer(golden.samples.x)):
                guard.kept = twin.instance.save()
            else:
                refused = number
    after, golden_after = accuracy(twin, test), right(twin, known)
    if refused < PASSES:
        assert guard.kept is not None
        twin.instance.load(guard.kept)
    for samples in passes[refused + 1 :]:
        for index in samples:
            loss_of(twin, own[0][index], own[1][index], rate)
        guard.check(twin.instance)
    golden_ends = golden_before, golden_after, right(twin, known)
    return Training(before, after, verdict == "worse", golden_ends, (rest_before, accuracy(twin, rest)))


def drawn(task: RateTask, seed: int) -> tuple[Data, Data]:
    """Own and other samples of the new domain."""
    x, y = task.draw(np.random.default_rng((seed, 1)), True)
    return (x[:OWN], y[:OWN]), (x[OWN:], y[OWN:])


def golden_of(result: Compiled) -> Golden:
    """Return the golden samples of a build, with their limit."""
    return next(part.golden for part in result.project.summary.parts if isinstance(part, GuardPart))


def trainings(task: RateTask, quant: str, seeds: Sequence[int]) -> Iterator[Training]:
    """All trainings of a task in a format."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, known, own_format = task.model(folder), folder / "golden.npz", task.in_format(quant, folder)

        def ends(seed: int, rates: Sequence[float]) -> list[Training]:
            own, test = drawn(task, seed)
            np.savez(known, x=test[0][:GOLDEN], y=test[1][:GOLDEN])
            result = tt.compile(model, update="all", verify="none", guard=known, guard_drop=0.01, **own_format)
            golden, found = golden_of(result), list[Training]()
            for rate in rates:
                with result.twin() as twin:
                    found.append(trained(twin, seed, own, test, rate, golden))
            return found

        after = [[one.after for one in ends(seed, GRID)] for seed in (900, 901)]
        best = GRID[int(np.argmax(np.sum(after, axis=0)))]
        for seed in seeds:
            yield from ends(seed, [best * factor for factor in FACTORS])


def main() -> None:
    """Print a row per task and format, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="groups,chirps,shapes")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=200)
    given = parser.parse_args()
    every = list[Training]()
    print("| task | trainings | worse than untrained | reported | better | reported ", end="")
    print("| golden: worse | with a guard | other samples, with a guard |\n" + "|---" * 9 + "|", flush=True)
    for name in given.tasks.split(","):
        for quant in ("float32", "int8"):
            found = [*trainings(TASKS[name], quant, range(given.first, given.first + given.seeds))]
            print(row(f"{name} {quant}", found), flush=True)
            every += found
    print(row("all", every))
    sys.exit(not holds(every))


def counts(found: Sequence[Training]) -> tuple[int, int, int, int]:
    """Worse, reported of these, better, reported of these."""
    worse, better = [one for one in found if one.worse], [one for one in found if one.better]
    return len(worse), sum(one.reported for one in worse), len(better), sum(one.reported for one in better)


def guard_counts(found: Sequence[Training]) -> tuple[int, int, int]:
    """Over a point worse: on golden samples without and with the guard, and on other samples with it."""
    most = GOLDEN // 100
    without, guarded = (sum(one.golden[0] - one.golden[end] > most for one in found) for end in (1, 2))
    return without, guarded, sum(one.rest[1] < one.rest[0] - 0.01 for one in found)


def row(name: str, found: Sequence[Training]) -> str:
    """A row of the table."""
    worse, told, better, wrong = counts(found)
    watched = f"{worse} | {told} ({told / max(worse, 1):.1%}) | {better} | {wrong}"
    return f"| {name} | {len(found)} | {watched} | {' | '.join(map(str, guard_counts(found)))} |"


def holds(found: Sequence[Training]) -> bool:
    """Tell if the watch reports 90 % of those that end worse and at most 1 % of those that end better.

    With the guard none may end over a point worse on the golden samples.
    """
    worse, told, better, wrong = counts(found)
    return told >= BAR_FOUND * worse and wrong <= BAR_FALSE * better and guard_counts(found)[1] == 0
