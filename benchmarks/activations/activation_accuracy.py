"""Measure what low-rank activations cost in accuracy (docs/results-activations.md).

Tasks, recipes and seeds are those of `learning` (learning_tasks.py): float32 and int8, all layers trained without
replay, by the generated C on this machine; but a step takes all samples of a batch at once (of keywords one), so that
inputs of that many are kept. A budget is the error of a gradient on the samples (--rank-error), which ranks are
measured for as the command does it, on the task's own samples. Ranges of int8 and its first exponents are those of the
own samples too. Rates are those that `learning` chose for exact gradients on its development seeds, the same for
all ways; accuracy is of other samples and seeds than chose anything. Intervals are of differences by seed, 95 %.
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

import tinytrain_compile as tt
from benchmarks.learning.choice import interval
from benchmarks.learning.learning import trained
from benchmarks.learning.learning_tasks import FAMILIES, Domain, Recipe
from benchmarks.record import Record
from testing.planning.kept_inputs import kept_bytes

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


def outcome(task: str, seed: int, quant: str, kind: str, budget: float) -> Outcome:
    """Of a network that was trained in one of the ways, from what a seed gives."""
    domain, recipe = FAMILIES[task].make(seed, False), FAMILIES[task].recipe
    built = build_of(domain, quant, kind, budget, recipe)
    train = built.project.summary.train
    with built.twin() as twin:
        accuracy = trained(twin, domain, recipe, RATES[task][quant], 0, seed).new
    return Outcome(accuracy, kept_bytes(train), len(train.low_rank))


def build_of(domain: Domain, quant: str, kind: str, budget: float, recipe: Recipe) -> tt.Compiled:
    """A build of a task's network."""
    with tempfile.TemporaryDirectory() as folder:
        model, own = Path(folder) / "network.onnx", Path(folder) / "own.npz"
        model.write_bytes(domain.model)
        np.savez(own, x=domain.own.x, y=domain.own.y.reshape(-1))
        said: dict[str, Any] = {"calib": own} if quant == "int8" else {}
        said |= {} if recipe.clip is None else {"clip_norm": recipe.clip}
        said |= {} if kind == "exact" else {"activations": kind, "rank_error": budget, "data": own}
        said |= {"batch": recipe.batch, "micro_batch": recipe.batch, "loss": "cross-entropy", "verify": "none"}
        return tt.compile(model, quant=quant, update="all", **said)


def table(record: Record, task: str, seeds: Sequence[int], formats: Sequence[str]) -> list[str]:
    """Means, and differences to exact gradients of the same format by seed with their 95 % intervals."""
    lines = ["| task | activations | kept | layers | accuracy | less exact |", "|---|---|---|---|---|---|"]
    for quant, (kind, budget) in product(formats, WAYS):
        found = {seed: record.done.get(_key(task, seed, quant, kind, budget)) for seed in seeds}
        exact = {seed: record.done.get(_key(task, seed, quant, "exact", 0.0)) for seed in seeds}
        both = [(one, other) for seed in seeds if (one := found[seed]) and (other := exact[seed])]
        if not both:
            continue
        got, whole = (np.asarray([pair[place].accuracy for pair in both]) for place in (0, 1))
        less = "" if kind == "exact" or len(both) < 2 else interval(got - whole)
        said = kind if kind == "exact" else f"{kind}, {budget:.0%}"
        kept, layers = (float(np.mean([getattr(one, key) for one, _ in both])) for key in ("kept_bytes", "layers"))
        title = f"{task}, {quant}, {len(both)} seeds"
        lines.append(f"| {title} | {said} | {kept:,.0f} B | {layers:.1f} | {got.mean():.1f} % | {less} |")
    return lines


def _key(task: str, seed: int, quant: str, kind: str, budget: float) -> tuple[str, ...]:
    return task, str(seed), quant, kind, str(budget)


def main(arguments: Sequence[str]) -> None:
    """Train, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks activations accuracy", description=__doc__)
    parser.add_argument("--tasks", default=",".join(RATES))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--kinds", default="exact,asi,subspace")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args(arguments)
    record, tasks, formats = Record(given.keep), given.tasks.split(","), given.formats.split(",")
    ways = [(quant, *way) for quant, way in product(formats, WAYS) if way[0] in given.kinds.split(",")]
    for number, task, way in product(range(given.seeds), tasks, ways):
        seed = FAMILIES[task].first + number
        record.once(_key(task, seed, *way), partial(outcome, task, seed, *way))
        print(f"# {task}, seed {seed}, {', '.join(map(str, way))}", file=sys.stderr, flush=True)
    for task in tasks:
        first = FAMILIES[task].first
        print("\n".join(table(record, task, range(first, first + given.seeds), formats)), flush=True)
