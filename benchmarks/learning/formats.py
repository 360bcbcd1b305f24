"""Compare int8 with float32 at batch 1, each at its best rate, on digits and harder tasks (8 minutes).

    python -m benchmarks formats [--tasks NAME,..] [--first SEED] [--most N] [--variants NAME,..] [--same-rate]

Tasks of rate_tasks.py: 240 samples of a new domain, ten passes one sample at a time, a cosine schedule. The rate of
each format is the best of nine by mean accuracy on 24 development seeds. A seed draws the change of domain, the
samples and their order; both formats get the same ones. Test: the mean over seeds of int8 minus float32, with Student's
95 % interval. Blocks of 50 seeds are added until its half width is at most 0.5 points. Accuracies are of over 1,000
samples that chose nothing. --variants: options of int8, to find where it loses. --same-rate: int8 at the rate that is
best for float32. Exits 1 if an interval stays wider, or if the first variant loses over 0.5 points.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tinytrain_compile as tt
from benchmarks.learning.int8_accuracy import VARIANTS, interval
from benchmarks.learning.rate_tasks import DEVELOPMENT, FRESH, OWN, REPORTED
from tinytrain_compile.errors import CompileError
from tinytrain_compile.twin import Twin

TASKS = {**DEVELOPMENT, **FRESH, **REPORTED}
GRID = tuple(0.001 * 10.0 ** (step / 3) for step in range(9))
PASSES, BLOCK, CHOOSING, FIRST_CHOOSING = 10, 50, 24, 9000
HALF_WIDTH, BAR = 0.5, -0.5
"""Points: of the interval, and what int8 may lose."""


@dataclass(frozen=True)
class Trained:
    """Accuracies in % on samples that chose nothing, before and after."""

    before: float
    after: float


def compiled(name: str, variant: str, folder: Path) -> tt.Compiled:
    """Compile a task's network in a format; int8 is calibrated by samples of both domains."""
    task, calib = TASKS[name], folder / "calib.npz"
    model = folder / "task.onnx"
    if not model.exists():
        task.model(folder)
        new = [task.draw(np.random.default_rng((FIRST_CHOOSING + seed, 2)), True)[0][:32] for seed in range(4)]
        np.savez(calib, x=np.concatenate([task.draw(np.random.default_rng(77), False)[0][:128], *new]))
    own = {} if variant == "float32" else {"quant": "int8", "calib": calib, **VARIANTS.get(variant, {})}
    return tt.compile(model, update="all", verify="none", **own)


def accuracy(twin: Twin, x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of samples, in %, whose class has the largest output."""
    return 100 * float(np.mean(twin.instance.infer(twin.as_inputs(x)).argmax(axis=1) == y))


def trained(twin: Twin, name: str, rate: float, seed: int) -> Trained:
    """Train a new state on the samples of a seed."""
    x, y = TASKS[name].draw(np.random.default_rng((seed, 1)), True)
    twin.reset()
    before, order = accuracy(twin, x[OWN:], y[OWN:]), np.random.default_rng((seed, 3))
    slots = twin.as_slots(x[:OWN], y[:OWN])
    every = np.concatenate([order.permutation(OWN) for _ in range(PASSES)])
    for step, index in enumerate(every):
        twin.instance.set_rate(rate * 0.5 * (1 + math.cos(math.pi * step / len(every))))
        try:
            twin.instance.train(slots[0][index : index + 1], slots[1][index : index + 1])
        except CompileError:
            return Trained(before, 0.0)
    return Trained(before, accuracy(twin, x[OWN:], y[OWN:]))


def ends(build: tt.Compiled, name: str, rate: float, seeds: Sequence[int]) -> list[Trained]:
    """Train seeds one after the other."""
    with build.twin() as twin:
        return [trained(twin, name, rate, seed) for seed in seeds]


def best_rate(build: tt.Compiled, name: str) -> float:
    """Return the best rate of the grid on development seeds."""
    seeds = range(FIRST_CHOOSING, FIRST_CHOOSING + CHOOSING)
    return max(GRID, key=lambda rate: sum(one.after for one in ends(build, name, rate, seeds)))


def compare(name: str, variants: Sequence[str], first: int, most: int, same_rate: bool) -> tuple[list[str], bool]:
    """Return rows of the table, and whether the first variant meets the bar at the width."""
    with tempfile.TemporaryDirectory() as folder:
        floats = compiled(name, "float32", Path(folder))
        rate, rows, met = best_rate(floats, name), list[str](), True
        base = list[Trained]()
        for variant in variants:
            build = compiled(name, variant, Path(folder))
            own_rate = rate if same_rate else best_rate(build, name)
            own, seeds, mean, half = list[Trained](), 0, 0.0, math.inf
            while half > HALF_WIDTH and seeds < most:
                block = range(first + seeds, first + seeds + BLOCK)
                seeds += BLOCK
                own += ends(build, name, own_rate, block)
                base += ends(floats, name, rate, block) if len(base) < seeds else []
                pairs = [mine.after - other.after for mine, other in zip(own, base, strict=False)]
                mean, half = interval(pairs)
            known = base[: len(own)]
            before, there = (float(np.mean([getattr(one, of) for one in known])) for of in ("before", "after"))
            rows.append(
                f"| {name} | {variant} | {before:.1f} | {rate:.4f} | {there:.1f} | {own_rate:.4f} | "
                f"{np.mean([one.after for one in own]):.1f} | **{mean:+.2f} +- {half:.2f}** | {seeds} |"
            )
            met &= half <= HALF_WIDTH and (variant != variants[0] or mean >= BAR)
        return rows, met


def main() -> None:
    """Print a row per task and variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="turned,images,beats,table")
    parser.add_argument("--variants", default="int8")
    parser.add_argument("--first", type=int, default=400)
    parser.add_argument("--most", type=int, default=2000)
    parser.add_argument("--same-rate", action="store_true")
    given = parser.parse_args()
    print("| task | format | untrained | rate of float32 | float32 % | rate | % | difference | seeds |")
    print("|---|---|---|---|---|---|---|---|---|")
    met = list[bool]()
    for name in given.tasks.split(","):
        rows, holds = compare(name, given.variants.split(","), given.first, given.most, given.same_rate)
        print("\n".join(rows), flush=True)
        met.append(holds)
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
