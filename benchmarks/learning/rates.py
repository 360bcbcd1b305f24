"""Compare the rate that `finetune` recommends with the best of nine, on three small tasks (5 minutes).

Three tasks with tiny networks, see rate_tasks.py. For each seed (of the change of domain, the samples and the search)
`finetune` recommends a rate from 240 samples. Nine rates a factor of 2.15 apart are then trained for as many epochs,
with the same options, on the same samples. The best of the nine has the best mean over all seeds. Then other trainings,
three a seed, compare it with the recommended rate, since the largest of nine noisy means is above the truth. Accuracies
are of test samples that chose nothing.

usage: python -m benchmarks rates [--fresh] [--tasks NAME,..] [--seeds N] [--first SEED] [--keep FILE] [--steps-of FILE]

--keep FILE: trainings that were done are kept in it and not done again. --steps-of FILE: a table that another commit
printed for the same tasks and seeds; exits 1 if this one trains over 25 % more steps. Exits 1, too, if a task is more
than a point below the best of the grid, or if the standard error of that difference is above 0.75.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shelve
import sys
import tempfile
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.rate_tasks import DEVELOPMENT, FRESH, RateTask
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.driver.pipeline import Project, Result
from tinytrain_compile.ir.learning import Curve, Finding, curve_of
from tinytrain_compile.learn import finetune as search
from tinytrain_compile.learn import rate_search
from tinytrain_compile.learn.finetune import finetune
from tinytrain_compile.learn.training import Build, LearningRun, learn_all
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.effort import FinetuneEffort

GRID = tuple(0.001 * 10.0 ** (step / 3) for step in range(9))
EPOCHS, TRAININGS = 12, 3
"""Of a search, at most; trainings of a seed that compare its rate with the best of the grid."""
BAR_POINTS, BAR_ERROR, BAR_STEPS = 1.0, 0.75, 1.25
Known = MutableMapping[str, Any]


@dataclass(frozen=True)
class Row:
    """Of one seed: accuracies in % before training, at each rate of the grid by one training, at the recommended rate
    by others, and at any rate by these others."""

    before: float
    found: Finding
    steps: int
    grid: tuple[float, ...]
    mine: float
    at: Callable[[float], float]


class Desk:
    """A task, compiled once for all seeds, since these differ in samples alone."""

    def __init__(self, task: RateTask, folder: Path, known: Known) -> None:
        self.task, self.folder, self.known, self.model = task, folder, known, task.model(folder)
        self.builds, self.steps = list[Build](), 0
        self._projects, self._libraries = dict[str, Project | Result](), dict[int, Path]()
        self._make_project, self._build_library = search.make_project, search.build_library
        search.make_project = self._project  # type: ignore[assignment]
        search.build_library = self._library  # type: ignore[assignment]
        rate_search.learn_all = self.learn  # type: ignore[assignment]

    def close(self) -> None:
        """Give `finetune` its own functions back."""
        search.make_project, search.build_library = self._make_project, self._build_library
        rate_search.learn_all = learn_all

    def row(self, seed: int) -> Row:
        """Search, then train the grid."""
        data = self.task.files(seed, self.folder)
        asked = {"data": data, "update": "all", "verify": "none", "seed": seed, **self.task.options}
        self.steps = 0
        found: Finding = finetune(
            options_from(self.model, asked),
            FinetuneEffort(EPOCHS, jobs=1),
            self.folder / "f.toml",
            lambda _what, _share: None,
        )
        steps, epochs, chosen = self.steps, found.taken.epochs, self._build_of(found)
        builds = [*self.builds]
        grid = tuple(self._mean(builds, chosen, rate, epochs, range(50, 51)) for rate in GRID)
        others = range(60, 60 + TRAININGS)

        def at(rate: float) -> float:
            return self._mean(builds, chosen, rate, epochs, others)

        return Row(100 * (found.taken.curve[0].accuracy or 0.0), found, steps, grid, at(found.rate), at)

    def learn(
        self, builds: Sequence[Build], runs: Sequence[LearningRun], _jobs: int, done: Callable[[int, Curve], None]
    ) -> list[Curve]:
        """`learn_all` of what is not known yet."""
        self.builds[:], curves = builds, list[Curve]()
        for index, run in enumerate(runs):
            build = builds[run.build]
            hashed = hashlib.sha256(b"".join((build.code, *(part.x.tobytes() for part in (build.own, build.test)))))
            key = f"{hashed.hexdigest()} {run.key}"
            if key not in self.known:
                self.known[key] = asdict(learn_all(builds, [run], 1, lambda _index, _curve: None)[0])
            curves.append(curve_of(self.known[key]))
            self.steps += (len(curves[-1].scores) - 1) * curves[-1].steps
            done(index, curves[-1])
        return curves

    def _build_of(self, found: Finding) -> int:
        """The one that was taken: clipped or not."""
        clips = [0.0, 1.0]
        return clips.index(found.chosen.clip)

    def _mean(self, builds: Sequence[Build], build: int, rate: float, epochs: int, seeds: Iterable[int]) -> float:
        """Accuracy in % of trainings on all samples; 0 for those that ended in NaN."""
        runs = [LearningRun(build, rate, seed, epochs, final=True, schedule="cosine") for seed in seeds]
        curves = self.learn(builds, runs, 1, lambda _index, _curve: None)
        return float(np.mean([100 * (one.scores[-1].accuracy or 0.0) * (not one.failed) for one in curves]))

    def _project(self, options: CompileOptions, progress: Any) -> Project | Result:
        key = repr((options.clip_norm, options.batch, options.dry_run))
        if key not in self._projects:
            self._projects[key] = self._make_project(options, progress)
        return self._projects[key]

    def _library(self, bundle: Any, tools: Any, _folder: Path) -> Path:
        if id(bundle) not in self._libraries:
            folder = self.folder / f"build{len(self._libraries)}"
            self._libraries[id(bundle)] = self._build_library(bundle, tools, folder)
        return self._libraries[id(bundle)]


def measure(name: str, task: RateTask, seeds: Sequence[int], known: Known) -> tuple[str, float, float, int]:
    """A row for people; points below the best of the grid, the standard error of that, steps of all searches."""
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(task, Path(folder), known)
        try:
            rows = [desk.row(seed) for seed in seeds]
            best = GRID[int(np.argmax(np.mean([row.grid for row in rows], axis=0)))]
            grid, mine = np.array([row.at(best) for row in rows]), np.array([row.mine for row in rows])
        finally:
            desk.close()
    below = grid - mine
    error, steps = float(below.std(ddof=1) / len(below) ** 0.5), sum(row.steps for row in rows)
    rate = float(np.exp(np.mean([np.log(row.found.rate) for row in rows])))
    each = " ".join(
        f"{row.found.rate:.3g}{'c' * bool(row.found.chosen.clip)}:{one:+.1f}"
        for row, one in zip(rows, below, strict=True)
    )
    print(f"{name}: {each}", file=sys.stderr)
    before = np.mean([row.before for row in rows])
    figures = f"{before:.1f} | {rate:.3g} | {mine.mean():.1f} | {best:.3g} | {grid.mean():.1f} "
    return f"| {name} | {figures}| {below.mean():+.2f} +- {error:.2f} | {steps:,} |", float(below.mean()), error, steps


def steps_in(table: Path) -> dict[str, int]:
    """Task -> steps, of a table that this printed."""
    found = re.findall(r"^\| (\w+) \|.*\| ([\d,]+) \|$", table.read_text(), re.MULTILINE)
    return {name: int(steps.replace(",", "")) for name, steps in found}


def main() -> None:
    """Measure all tasks; exit 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--steps-of", type=Path)
    given = parser.parse_args()
    tasks, missed = FRESH if given.fresh else DEVELOPMENT, list[str]()
    before = {} if given.steps_of is None else steps_in(given.steps_of)
    print("| task | before | rate | accuracy | best of nine | accuracy | below | steps of the searches |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with ExitStack() as open_files:
        known: Known = {} if given.keep is None else open_files.enter_context(shelve.open(str(given.keep)))
        for name in given.tasks.split(",") if given.tasks else tasks:
            seeds = range(given.first, given.first + given.seeds)
            row, below, error, steps = measure(name, tasks[name], seeds, known)
            print(row, flush=True)
            missed += [f"{name}: below by {below:.2f}"] if below > BAR_POINTS else []
            missed += [f"{name}: error {error:.2f}"] if error > BAR_ERROR else []
            if name in before:
                print(f"{name}: {steps / before[name] - 1:+.1%} steps", file=sys.stderr)
                missed += [f"{name}: {steps} steps"] if steps > BAR_STEPS * before[name] else []
    print(f"missed: {'; '.join(missed)}" if missed else "all bars held")
    sys.exit(bool(missed))
