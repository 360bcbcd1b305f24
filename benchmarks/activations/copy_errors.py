"""Compare the errors that --activations reports with the points that copies lose on other domains (5 minutes).

    python -m benchmarks copy-errors [--tasks NAME,..] [--bounds 0.1,0.3,0.6] [--kind subspace] [--domains 4]
                                     [--seeds N] [--first SEED] [--measured]

Small tasks (rate_tasks.py), float32, batch 1, all layers trained in two shuffled passes at the rate that is best with
exact inputs on other seeds. Ranks are measured on --domains domains of 60 samples, which the file names (`domain`);
with --domains 1 on the source domain alone. Devices train on domains of their own, one a seed. A row is a task and a
bound (--rank-error): the largest reported error of a layer, and the accuracy that devices lose to exact inputs, with
standard errors. --measured: also what `finetune` measures on that file (its line "copies"), which then has to predict
the lost points instead of the errors.

Exits 1 if reported errors and lost points have a rank correlation below 0.7, or if fewer than 80 % of the pairs of one
task are in the order that their errors say.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import tinytrain_compile as tt
from benchmarks.learning.order import GRID, TASKS, Device, Mix, drawn, with_error
from benchmarks.learning.rate_tasks import Data, RateTask
from tinytrain_compile.api import Compiled
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.learn.finetune import finetune
from tinytrain_compile.options.effort import FinetuneEffort

KEPT, CHOSEN, BAR, BAR_PAIRS = 60, (900, 901, 902), 0.7, 0.8
DOMAIN, JUDGES = 100, 100
"""Seed of the first domain that ranks are measured on; further samples of each domain, by which finetune judges."""


@dataclass(frozen=True)
class Row:
    """error: reported, of the worst layer; None if all layers keep their inputs. lost: points, by seed. measured: the
    same by finetune, if that was asked for."""

    task: str
    bound: float
    error: float | None
    kept: str
    lost: np.ndarray
    measured: np.ndarray | None = None

    def __str__(self) -> str:
        said = "-" if self.error is None else f"{100 * self.error:.0f} %"
        name = f"{self.task}, {100 * self.bound:.0f} %"
        more = "" if self.measured is None else f" {with_error(self.measured)} |"
        return f"| {name} | {said} | {self.kept} | {with_error(self.lost)} | {self.lost.max():.1f} |{more}"

    @property
    def predictor(self) -> float | None:
        """Return the figure that has to predict the lost points."""
        return self.error if self.measured is None or self.error is None else float(self.measured.mean())


def accuracy(result: Compiled, data: tuple[Data, Data], rate: float, seed: int) -> float:
    """After two shuffled passes, in %."""
    own, test = data
    with result.twin() as twin:
        device = Device(twin, rate, Mix(), seed)
        for number in range(2):
            device.learn(own, np.random.default_rng((seed, number)).permutation(len(own[1])))
        return device.accuracy(test)


def shown_file(task: RateTask, domains: int, folder: Path) -> Path:
    """Samples that ranks are measured on, and others that finetune judges by."""
    path = folder / "shown.npz"
    parts = [drawn(task, DOMAIN + number)[0] for number in range(domains)]
    if domains == 1:
        parts = [task.draw(np.random.default_rng(DOMAIN), False)]
    x, y = (np.concatenate([part[index][:KEPT] for part in parts]) for index in (0, 1))
    test = (np.concatenate([part[index][KEPT : KEPT + JUDGES] for part in parts]) for index in (0, 1))
    known = dict(zip(("x_test", "y_test"), test, strict=True))
    np.savez(path, x=x, y=y, domain=np.repeat(np.arange(domains), KEPT), **known)
    return path


def measured(model: Path, options: dict[str, Any], folder: Path) -> np.ndarray:
    """Return the points that copies lose by finetune, by seed."""
    effort = FinetuneEffort(epochs=4, seeds=1, clips=(0.0,), jobs=1)
    found = finetune(options_from(model, options), effort, folder / "finetune.toml", lambda *_: None)
    return 100 * np.array(found.copies)


def rows(name: str, given: argparse.Namespace) -> Iterator[Row]:
    """Measure a task at every bound."""
    task, seeds = TASKS[name], range(given.first, given.first + given.seeds)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model, options = task.model(folder), dict[str, Any](update="all", verify="none")
        exact = tt.compile(model, **options)
        rate = max(GRID, key=lambda one: sum(accuracy(exact, drawn(task, seed), one, seed) for seed in CHOSEN))
        whole = np.array([accuracy(exact, drawn(task, seed), rate, seed) for seed in seeds])
        shown = {"data": shown_file(task, given.domains, folder), "activations": given.kind}
        for bound in map(float, given.bounds.split(",")):
            result = tt.compile(model, **options, **shown, rank_error=bound)
            low = result.report["low_rank"]
            copied = np.array([accuracy(result, drawn(task, seed), rate, seed) for seed in seeds])
            kept, of = (sum(one[f"{what}_bytes"] for one in low) for what in ("kept", "exact"))
            error = max((one["error"] for one in low), default=None)
            row = Row(name, bound, error, f"{kept} of {of} B", whole - copied)
            if given.measured and low:
                row = replace(row, measured=measured(model, {**options, **shown, "rank_error": bound}, folder))
            yield row


def main() -> None:
    """Print the table and the rank correlation; exit 1 if that misses the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="table,signal,images,pixels,beats,turned")
    parser.add_argument("--bounds", default="0.1,0.3,0.6")
    parser.add_argument("--kind", default="subspace")
    parser.add_argument("--domains", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=300)
    parser.add_argument("--measured", action="store_true")
    given, found = parser.parse_args(), list[Row]()
    more = " measured |" if given.measured else ""
    print(f"| task, --rank-error | reported | kept | points lost | at most |{more}", flush=True)
    print("|---" * (6 if more else 5) + "|", flush=True)
    for name in given.tasks.split(","):
        for row in rows(name, given):
            found.append(row)
            print(row, flush=True)
    known = [(row.task, row.predictor, float(row.lost.mean())) for row in found if row.predictor is not None]
    spearman: Any = importlib.import_module("scipy.stats").spearmanr
    correlation = float(spearman([one[1] for one in known], [one[2] for one in known]).statistic)
    pairs = [(a, b) for a, b in combinations(known, 2) if a[0] == b[0] and a[1] != b[1]]
    ordered = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in pairs) / max(len(pairs), 1)
    what = "measured" if given.measured else "reported errors"
    print(f"rank correlation of {what} and lost points: {correlation:.2f} (bar {BAR})")
    print(f"of {len(pairs)} pairs of one task {ordered:.0%} are in order (bar {BAR_PAIRS:.0%})")
    sys.exit(not (correlation >= BAR and ordered >= BAR_PAIRS))  # too few rows have no correlation
