"""Compare the rate that `finetune` recommends with the best of nine, on small tasks (2 minutes each).

Tasks with tiny networks in float32 and int8, see rate_tasks.py. For each seed (of the change of domain, the samples and
the search) `finetune` recommends a rate from 240 samples. Nine rates a factor of 2.15 apart are then trained for as
many epochs, with the same options, on the same samples. The best of the nine has the best mean over all seeds. Then
other trainings, three a seed, compare it with the recommended rate, since the largest of nine noisy means is above the
truth. Accuracies are of test samples that chose nothing.

usage: python -m benchmarks rates [--reported] [--tasks NAME,..] [--quant FORMAT] [--seeds N] [--first SEED]
                                  [--keep FILE]

--keep FILE: trainings that were done are kept in it and not done again. Exits 1 if more than one cell in nine is more
than a point below the best of the grid, if a standard error of that difference is above 0.75, or if a cell trains over
25 % more steps than the search of commit 1f2fa785 did at least.
"""

from __future__ import annotations

import argparse
import hashlib
import shelve
import sys
import tempfile
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.rate_tasks import DEVELOPMENT, FRESH, OWN, REPORTED, RateTask
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.driver.pipeline import Project, Result
from tinytrain_compile.ir.learning import Curve, Finding, curve_of
from tinytrain_compile.learn import finetune as search
from tinytrain_compile.learn import rate_search
from tinytrain_compile.learn.finetune import finetune
from tinytrain_compile.learn.training import CHECK_SHARE, Build, LearningRun, learn_all
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.effort import FinetuneEffort

GRID = tuple(0.001 * 10.0 ** (step / 3) for step in range(9))
EPOCHS, TRAININGS = 12, 3
"""Of a search, at most; trainings of a seed that compare its rate with the best of the grid."""
BAR_POINTS, BAR_ERROR, BAR_STEPS, BAR_CELLS = 1.0, 0.75, 1.25, 9
EPOCHS_BEFORE, FINAL_BEFORE = 14 * 1 + 3 * 2 * 4 + 3 * 3 * 12, 3 * 12
"""Of a search of commit 1f2fa785 with these options, if its first round needed no further rate: epochs on the samples
that are not held back, and on all."""
FORMATS = ("float32", "int8")
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


def _refuse_nothing(_finding: Finding, _where: str) -> None:
    """Let a recommendation that learned nothing count by its rate, instead of ending the table."""


class Desk:
    """A task, compiled once for all seeds, since these differ in samples alone."""

    def __init__(self, task: RateTask, quant: str, folder: Path, known: Known) -> None:
        self.task, self.folder, self.known, self.model = task, folder, known, task.model(folder)
        self.options = {"update": "all", "verify": "none", **task.options, **task.in_format(quant, folder)}
        self.builds, self.steps = list[Build](), 0
        self._projects, self._libraries = dict[str, Project | Result](), dict[int, Path]()
        self._own = (search.make_project, search.build_library, search.check_learned)
        search.make_project = self._project  # type: ignore[assignment]
        search.build_library = self._library  # type: ignore[assignment]
        search.check_learned = _refuse_nothing
        rate_search.learn_all = self.learn  # type: ignore[assignment]

    def close(self) -> None:
        """Give `finetune` its own functions back."""
        search.make_project, search.build_library, search.check_learned = self._own
        rate_search.learn_all = learn_all

    def row(self, seed: int) -> Row:
        """Search, then train the grid."""
        data = self.task.files(seed, self.folder)
        asked = {"data": data, "seed": seed, **self.options}
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

    def _project(self, options: CompileOptions, progress: Any, choose: Any) -> Project | Result:
        key = repr((options.clip_norm, options.batch, options.dry_run))
        if key not in self._projects:
            self._projects[key] = self._own[0](options, progress, choose)
        return self._projects[key]

    def _library(self, bundle: Any, tools: Any, _folder: Path) -> Path:
        if id(bundle) not in self._libraries:
            folder = self.folder / f"build{len(self._libraries)}"
            self._libraries[id(bundle)] = self._own[1](bundle, tools, folder)
        return self._libraries[id(bundle)]


@dataclass(frozen=True)
class Cell:
    """A task in a format: accuracy in % before, at the recommended rate and at the best of the grid, means over seeds;
    the standard error of their difference; steps of all searches, and those that commit 1f2fa785 needed at least."""

    before: float
    rate: float
    mine: float
    best_rate: float
    best: float
    error: float
    steps: int
    steps_before: int

    def row(self, name: str) -> str:
        """A row for people."""
        figures = f"{self.before:.1f} | {self.rate:.3g} | {self.mine:.1f} | {self.best_rate:.3g} | {self.best:.1f}"
        more = self.steps / self.steps_before - 1
        return f"| {name} | {figures} | {self.best - self.mine:+.2f} +- {self.error:.2f} | {more:+.1%} |"

    def faults(self) -> list[str]:
        """Return what misses a bar: the standard error, or the steps."""
        found = [f"standard error {self.error:.2f}"] if self.error > BAR_ERROR else []
        return found + ([f"{self.steps:,} steps"] if self.steps > BAR_STEPS * self.steps_before else [])


def measure(name: str, task: RateTask, quant: str, seeds: Sequence[int], known: Known) -> Cell:
    """Search and train the grid for each seed."""
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(task, quant, Path(folder), known)
        try:
            rows = [desk.row(seed) for seed in seeds]
            best = GRID[int(np.argmax(np.mean([row.grid for row in rows], axis=0)))]
            grid, mine = np.array([row.at(best) for row in rows]), np.array([row.mine for row in rows])
        finally:
            desk.close()
    each = " ".join(
        f"{row.found.rate:.3g}{'c' * bool(row.found.chosen.clip)}:{one:+.1f}"
        for row, one in zip(rows, grid - mine, strict=True)
    )
    print(f"{name}: {each}", file=sys.stderr)
    batch = int(task.options.get("batch", 1))
    before = EPOCHS_BEFORE * (int(OWN * (1 - CHECK_SHARE)) // batch) + FINAL_BEFORE * (OWN // batch)
    return Cell(
        float(np.mean([row.before for row in rows])),
        float(np.exp(np.mean([np.log(row.found.rate) for row in rows]))),
        float(mine.mean()),
        best,
        float(grid.mean()),
        float((grid - mine).std(ddof=1) / len(rows) ** 0.5),
        sum(row.steps for row in rows),
        before * len(rows),
    )


def main() -> None:
    """Measure all cells; exit 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reported", action="store_true")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--quant", choices=FORMATS, action="append")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    tasks = REPORTED if given.reported else {**DEVELOPMENT, **FRESH}
    cells = dict[str, Cell]()
    print("| task | before | rate | accuracy | best of nine | accuracy | below | steps, to those of 1f2fa785 |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with ExitStack() as open_files:
        known: Known = {} if given.keep is None else open_files.enter_context(shelve.open(str(given.keep)))
        names = given.tasks.split(",") if given.tasks else tasks
        for name, quant in product(names, given.quant or FORMATS):
            cell, seeds = f"{name} {quant}", range(given.first, given.first + given.seeds)
            cells[cell] = measure(cell, tasks[name], quant, seeds, known)
            print(cells[cell].row(cell), flush=True)
    near = [name for name, cell in cells.items() if cell.best - cell.mine <= BAR_POINTS]
    missed = [f"{name}: {fault}" for name, cell in cells.items() for fault in cell.faults()]
    print(f"{len(near)} of {len(cells)} within {BAR_POINTS:g} point")
    print("\n".join(missed))
    sys.exit(bool(missed) or len(cells) - len(near) > len(cells) // BAR_CELLS)
