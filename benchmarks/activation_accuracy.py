"""`make bench-activations ARGS=accuracy`: what low-rank activations cost in accuracy (docs/activations.md).

Tasks, recipes and seeds are those of `make learning` (learning_tasks.py): float32 and int8, all layers trained without
replay, by the generated C on this machine; but a step takes all samples of a batch at once, so that inputs of that many
are kept. A budget is the error of a gradient on the samples (--rank-error), which ranks are measured for as the command
does it, on the task's own samples. Ranges of int8 and its first exponents are those of the own samples too. Rates are
those that `make learning` chose for exact gradients on its development seeds, the same for all ways; accuracy is of
other samples and seeds than chose anything. Intervals are of differences by seed, 95 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from choice import interval
from learning import trained
from learning_tasks import FAMILIES, Domain, Recipe
from record import Record

import tinytrain_compile as tt
from testing.kept_inputs import kept_bytes

TASKS = ("turned", "contrast", "head")
"""Without further arguments; "classes" and "keywords" (one sample in a step) work too."""
RATES = {
    "turned": {"fp32": 0.3, "int8": 0.3},
    "contrast": {"fp32": 0.3, "int8": 0.3},
    "head": {"fp32": 1.0, "int8": 1.0},
    "classes": {"fp32": 0.3, "int8": 1.0},
    "keywords": {"fp32": 0.01, "int8": 0.01},
}
"""Of `all`, in docs/learning.md."""
BUDGETS = (0.1, 0.3, 0.6)
WAYS = (("exact", 0.0), *((kind, budget) for kind in ("asi", "subspace") for budget in BUDGETS))
FORMATS = ("fp32", "int8")


@dataclass(frozen=True)
class Outcome:
    """accuracy: in per cent, of new samples; kept_bytes: of the inputs of trained layers in a step; layers: that keep a
    copy."""

    accuracy: float
    kept_bytes: int
    layers: int


def outcomes(task: str, seed: int) -> dict[tuple[str, str, float], Outcome]:
    """Accuracy of a seed by (format, kind, budget)."""
    domain, recipe = FAMILIES[task].make(seed, False), FAMILIES[task].recipe
    found = dict[tuple[str, str, float], Outcome]()
    for quant, (kind, budget) in product(FORMATS, WAYS):
        built = build_of(domain, quant, kind, budget, recipe)
        train = built.project.summary.train
        with built.twin() as twin:
            accuracy = trained(twin, domain, recipe, RATES[task][quant], 0, seed).new
        found[quant, kind, budget] = Outcome(accuracy, kept_bytes(train), len(train.low_rank))
    _BUILDS.clear()
    return found


_BUILDS: dict[tuple[str, str, float], tt.Compiled] = {}
"""Of one seed."""


def build_of(domain: Domain, quant: str, kind: str, budget: float, recipe: Recipe) -> tt.Compiled:
    """A build of a task's network."""
    key = quant, kind, budget
    if key not in _BUILDS:
        with tempfile.TemporaryDirectory() as folder:
            model, own = Path(folder) / "network.onnx", Path(folder) / "own.npz"
            model.write_bytes(domain.model)
            np.savez(own, x=domain.own.x, y=domain.own.y.reshape(-1))
            said: dict[str, Any] = {"calib": own} if quant == "int8" else {}
            said |= {} if recipe.clip is None else {"clip_norm": recipe.clip}
            said |= {} if kind == "exact" else {"activations": kind, "rank_error": budget, "data": own}
            said |= {"batch": recipe.batch, "micro_batch": recipe.batch, "loss": "cross-entropy", "verify": "none"}
            _BUILDS[key] = tt.compile(model, quant=quant, update="all", **said)
    return _BUILDS[key]


def table(record: Record, tasks: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Means, and differences to exact gradients of the same format by seed with their 95 % intervals."""
    lines = ["| task | activations | kept | layers | accuracy | less exact |", "|---|---|---|---|---|---|"]
    for task, quant in product(tasks, FORMATS):
        each = [record.done[key] for seed in seeds if (key := _key(task, seed)) in record.done]
        if not each:
            continue
        exact = np.asarray([one[quant, "exact", 0.0].accuracy for one in each])
        for kind, budget in WAYS:
            found: list[Outcome] = [one[quant, kind, budget] for one in each]
            got = np.asarray([one.accuracy for one in found])
            less = "" if kind == "exact" or len(each) < 2 else interval(got - exact)
            said = kind if kind == "exact" else f"{kind}, {budget:.0%}"
            kept, layers = (float(np.mean([getattr(one, key) for one in found])) for key in ("kept_bytes", "layers"))
            title = f"{task}, {quant}, {len(each)} seeds"
            lines.append(f"| {title} | {said} | {kept:,.0f} B | {layers:.1f} | {got.mean():.1f} % | {less} |")
    return lines


def _key(task: str, seed: int) -> tuple[str, ...]:
    return "outcomes", task, str(seed)


def main(arguments: Sequence[str]) -> None:
    """Train, print."""
    parser = argparse.ArgumentParser(prog="benchmarks.activations accuracy", description=__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args(arguments)
    record, tasks = Record(given.keep), given.tasks.split(",")
    for number in range(given.seeds):
        for task in tasks:
            seed = FAMILIES[task].first + number
            record.once(_key(task, seed), partial(outcomes, task, seed))
            print(f"# {task}, seed {seed}", file=sys.stderr, flush=True)
    for task in tasks:
        first = FAMILIES[task].first
        print("\n".join(table(record, (task,), range(first, first + given.seeds))), flush=True)
