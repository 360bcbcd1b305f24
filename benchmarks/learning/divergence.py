"""Count how many trainings that end worse than untrained the watch of the monitor reports, and how many others (6 min).

    python -m benchmarks divergence [--tasks NAME,..] [--seeds N] [--first SEED]

Small tasks (rate_tasks.py) in float32 and int8, one sample a step, five passes over 240 samples. The rates are 1/2 to
30 times the best, which other seeds found. The watch hears 100 untrained losses, then every loss; its verdict after
the last step counts. A training ends worse if its accuracy on over 1,000 other samples falls by over a point.
DEVELOPMENT and FRESH tasks chose the constants of the watch, REPORTED tasks did not. Exits 1 if less than 90 % of those
that end worse are reported, or over 1 % of those that end better.
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
from tinytrain_compile.errors import CompileError
from tinytrain_compile.parts.monitor.twin import Watch
from tinytrain_compile.twin import Twin

GRID = tuple(0.001 * 10.0 ** (step / 3) for step in range(7))
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
PASSES, UNTRAINED, TYPICAL = 5, 100, 128
BAR_FOUND, BAR_FALSE = 0.9, 0.01
TASKS = {**DEVELOPMENT, **FRESH, **REPORTED}


@dataclass(frozen=True)
class Training:
    """Accuracies on other samples before and after, from 0 to 1, and the last verdict of the watch."""

    before: float
    after: float
    reported: bool

    @property
    def worse(self) -> bool:
        """True if it ends over a point below the untrained network."""
        return self.after < self.before - 0.01

    @property
    def better(self) -> bool:
        """True if it ends above the untrained network."""
        return self.after > self.before


def accuracy(twin: Twin, data: Data) -> float:
    """Share of samples whose class has the largest output."""
    return float(np.mean([twin.predict(x[None]).argmax() == y for x, y in zip(*data, strict=True)]))


def loss_of(twin: Twin, x: np.ndarray, y: np.ndarray, rate: float) -> float:
    """Loss of a step, infinite if the step failed."""
    try:
        return twin.train_step(x[None], y[None], lr=rate)
    except CompileError:
        return float("inf")


def trained(twin: Twin, seed: int, own: Data, test: Data, rate: float) -> Training:
    """Train a new instance on the samples of a seed."""
    order, watch, before = np.random.default_rng(seed), Watch(int(max(own[1])) + 1), accuracy(twin, test)
    for index in order.permutation(OWN)[:UNTRAINED]:
        watch.add_untrained(loss_of(twin, own[0][index], own[1][index], 0.0))
    verdict = "healthy"
    for index in np.concatenate([order.permutation(OWN) for _ in range(PASSES)]):
        verdict = watch.add(loss_of(twin, own[0][index], own[1][index], rate))
    return Training(before, accuracy(twin, test), verdict == "worse")


def drawn(task: RateTask, seed: int) -> tuple[Data, Data]:
    """Own and other samples of the new domain."""
    x, y = task.draw(np.random.default_rng((seed, 1)), True)
    return (x[:OWN], y[:OWN]), (x[OWN:], y[OWN:])


def trainings(task: RateTask, quant: str, seeds: Sequence[int]) -> Iterator[Training]:
    """All trainings of a task in a format."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, typical = task.model(folder), folder / "typical.npz"
        np.savez(typical, x=task.draw(np.random.default_rng(77), False)[0][:TYPICAL])
        int8 = {"quant": "int8", "calib": str(typical)} if quant == "int8" else {}
        result = tt.compile(model, update="all", verify="none", **int8)

        def ends(seed: int, rate: float) -> Training:
            with result.twin() as twin:
                return trained(twin, seed, *drawn(task, seed), rate)

        best = max(GRID, key=lambda rate: sum(ends(seed, rate).after for seed in (900, 901)))
        for seed in seeds:
            yield from (ends(seed, best * factor) for factor in FACTORS)


def main() -> None:
    """Print a row per task and format, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(REPORTED))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=200)
    given = parser.parse_args()
    every = list[Training]()
    print("| task | trainings | worse than untrained | reported | better | reported |\n|---|---|---|---|---|---|")
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


def row(name: str, found: Sequence[Training]) -> str:
    """A row of the table."""
    worse, told, better, wrong = counts(found)
    return f"| {name} | {len(found)} | {worse} | {told} ({told / max(worse, 1):.1%}) | {better} | {wrong} |"


def holds(found: Sequence[Training]) -> bool:
    """Tell if the watch reports 90 % of those that end worse, and at most 1 % of those that end better."""
    worse, told, better, wrong = counts(found)
    return told >= BAR_FOUND * worse and wrong <= BAR_FALSE * better
