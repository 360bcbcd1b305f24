"""Compare the rate that `finetune` recommends with a fine grid, and what finding it costs (10 minutes).

Four tasks: the digits example turned in its own way, and the network of 7 convolutions on turned images, on low
contrast with noise, and under a new head (see choice.py); all of it trained in float32. `finetune` sees 400 samples
(700 of the example). A fine grid of 33 rates over two decades and a half is then trained for as many epochs as it
recommends, with the same schedule, on the same samples; both are judged by test samples that chose nothing. A point of
the grid is smoothed with its two neighbours: the largest of 33 means of noisy trainings is above the truth. The rate
that is recommended is trained on as many seeds as such three points together.

usage: python -m benchmarks finetune [--tasks digits,turned,..] [--seeds N] [--task-seed N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.learning.choice import NETS, make_task
from benchmarks.learning.convergence import make_model
from testing.places import ROOT
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.ir.learning import Curve, Finding
from tinytrain_compile.learn import rate_search
from tinytrain_compile.learn.finetune import finetune
from tinytrain_compile.learn.training import Build, LearningRun, learn_all
from tinytrain_compile.options.effort import FinetuneEffort

DIGITS = ROOT / "examples" / "digits"
TASKS = ("digits", "turned", "contrast", "head")
GRID = tuple(10.0 ** (-1.25 + step / 12.8) for step in range(33))
"""Times the rate that the options say."""
NEIGHBOURS = 3
"""Points of the grid that are smoothed together."""
EPOCHS = 24
BAR_POINTS, BAR_SHARE = 1.0, 0.1


def files_of(name: str, seed: int, folder: Path) -> tuple[Path, Path]:
    """The model and the samples of a task."""
    if name == "digits":
        return DIGITS / "digits.onnx", DIGITS / "data.npz"
    task, model, data = make_task("7", name, seed), folder / f"{name}.onnx", folder / f"{name}.npz"
    model.write_bytes(make_model(dict(task.start), 1, NETS["7"]).SerializeToString())
    own, test = task.own, task.test
    np.savez(data, x=own.x, y=own.y[:, 0], x_test=test.x, y_test=test.y[:, 0])
    return model, data


def measure(name: str, seeds: int, task_seed: int, folder: Path) -> tuple[float, float, str]:
    """Points below the best of the grid, share of its updates, a row for people."""
    model, data = files_of(name, task_seed, folder)
    builds, updates, chosen = list[Build](), [0], [0]

    def watched(found: list[Build], runs: list[LearningRun], jobs: int, done: object) -> list[Curve]:
        builds[:], chosen[0] = found, runs[-1].build if runs else chosen[0]
        curves = learn_all(found, runs, jobs, done)  # type: ignore[arg-type]
        updates[0] += sum((len(curve.scores) - 1) * curve.steps for curve in curves if not curve.failed)
        return curves

    rate_search.learn_all = watched  # type: ignore[assignment]
    options = options_from(model, {"data": data, "update": "all", "verify": "none"})
    effort = FinetuneEffort(EPOCHS, seeds)
    found: Finding = finetune(options, effort, folder / f"{name}.toml", lambda _what, _share: None)
    final, epochs = found.taken, found.taken.epochs
    searched = updates[0] - seeds * epochs * final.steps  # the rest judges, as the grid does
    runs = [
        LearningRun(0, options.learning_rate * rate, 50 + seed, epochs, final=True, schedule=effort.schedule)
        for rate in GRID
        for seed in range(seeds)
    ]
    runs += [replace(runs[0], rate=found.rate, seed=50 + seed) for seed in range(NEIGHBOURS * seeds)]
    curves = learn_all(builds, runs, -1, lambda _index, _curve: None)
    ends = np.array([100 * (curve.scores[-1].accuracy or 0.0) * (not curve.failed) for curve in curves])
    means = ends[: len(GRID) * seeds].reshape(len(GRID), seeds).mean(axis=1)
    smooth = np.convolve(means, np.ones(NEIGHBOURS) / NEIGHBOURS, "valid")
    best, mine = smooth.max(), ends[len(GRID) * seeds :].mean()
    share = searched / (len(GRID) * seeds * EPOCHS * final.steps)
    rate = options.learning_rate * GRID[1 + int(smooth.argmax())]
    row = f"| {name} | {100 * (final.curve[0].accuracy or 0):.1f} | {found.rate:.3g} | {epochs} | {mine:.1f} "
    return best - mine, share, f"{row}| {rate:.3g} | {best:.1f} | {best - mine:+.1f} | {share:.1%} |"


def main() -> None:
    """Measure all tasks; exit 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task-seed", type=int, default=100)
    given = parser.parse_args()
    print("| task | before | rate | epochs | accuracy | best of the grid | accuracy | below | updates, of the grid's |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in given.tasks.split(","):
            below, share, row = measure(name, given.seeds, given.task_seed, Path(folder))
            missed |= below > BAR_POINTS or share > BAR_SHARE
            print(row, flush=True)
    print("bar missed" if missed else f"all within {BAR_POINTS} point, by at most {BAR_SHARE:.0%} of the updates")
    sys.exit(int(missed))
