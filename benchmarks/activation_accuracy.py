"""`make bench-activations ARGS=accuracy`: what low-rank activations cost in accuracy (docs/activations.md).

The network of `make convergence` (7 convolutions, 16 x 16 digits), float32, SGD, eight samples in a step, gradients
clipped, all layers trained, 400 samples, 6 passes, by the numpy reference that the generated C equals. Tasks: turned
images, low contrast with noise, a new head. A budget is the error of a gradient on the samples (--rank-error), which
ranks are measured for as the command does it, on the task's own samples. The rate of a task is the best one of exact
gradients on 150 samples of a development seed, and the same for all ways; accuracy is that of other seeds, on 547
images that nothing else sees.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from choice import CLIP, Task, interval, make_task
from convergence import make_model, nhwc
from digit_domains import Split
from pretrain import LAYERS
from record import Record

from benchmarks.activations import exact_bytes
from tinytrain_compile.driver.candidates import Planner
from tinytrain_compile.driver.external_kernels import Externals
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pipeline import imported
from tinytrain_compile.driver.reference import Trainer
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target import load_target

TASKS = ("turned", "contrast", "head")
BUDGETS = (0.1, 0.3, 0.6)
RATES = (0.03, 0.1, 0.3)
SIZE, PASSES, DEVELOPMENT = 8, 6, 100
WAYS = (("exact", 0.0), *((kind, budget) for kind in ("asi", "subspace") for budget in BUDGETS))


@dataclass(frozen=True)
class Outcome:
    """accuracy: in per cent; kept_bytes: of the inputs of trained layers in a step; layers: that keep a copy."""

    accuracy: float
    kept_bytes: int
    layers: int


def graph_of(task: Task, kind: str, budget: float, folder: Path) -> TrainGraph:
    """The training step of a task's network."""
    (folder / "net.onnx").write_bytes(make_model(dict(task.start), 1, LAYERS).SerializeToString())
    np.savez(folder / "own.npz", x=task.own.x, y=task.own.y[:, 0])
    settings = {"batch": SIZE, "micro_batch": SIZE, "clip_norm": CLIP, "rank_error": budget, "activations": kind}
    options = CompileOptions(folder / "net.onnx", data=folder / "own.npz", update="all", quant="fp32", **settings)  # type: ignore[arg-type]
    model = imported(options)
    planner = Planner(model, options, load_target("cortex-m7"), Externals())
    return planner.train(resolve_update(model.graph, "all"), SIZE)


def trained(train: TrainGraph, own: Split, judged: Split, rate: float, order: int) -> float:
    """Accuracy in per cent after the passes."""
    trainer, rng = Trainer(train), np.random.default_rng(order)
    trainer.set_rate(rate)
    x, y = nhwc(own.x), own.y
    for _ in range(PASSES):
        shuffled = rng.permutation(len(x))
        for start in range(0, len(x) - SIZE + 1, SIZE):
            chosen = shuffled[start : start + SIZE]
            trainer.step(x[chosen], y[chosen])
    return accuracy(trainer, judged)


def accuracy(trainer: Trainer, judged: Split) -> float:
    """In per cent; the last micro-batch is filled up with the first samples, which then count once."""
    x, right = nhwc(judged.x), 0
    for start in range(0, len(x), SIZE):
        chosen = np.arange(start, start + SIZE) % len(x)
        found = trainer.infer(x[chosen]).argmax(axis=1) == judged.y[chosen, 0]
        right += int(found[: len(x) - start].sum())
    return 100 * right / len(x)


def best_rate(name: str, folder: Path) -> float:
    """Of exact gradients, on a development seed."""
    task = task_of(name, DEVELOPMENT)
    train = graph_of(task, "exact", 0.0, folder)
    return max(RATES, key=lambda rate: trained(train, task.own, task.check, rate, 0))


def outcome(name: str, seed: int, kind: str, budget: float, rate: float, folder: Path) -> Outcome:
    """One training."""
    task = task_of(name, seed)
    train, whole = (graph_of(task, way, budget, folder) for way in (kind, "exact"))
    kept = exact_bytes(whole) - sum(item.exact_bytes - item.kept_bytes for item in train.low_rank)
    return Outcome(trained(train, task.own, task.test, rate, seed), kept, len(train.low_rank))


@cache
def task_of(name: str, seed: int) -> Task:
    """A task of a seed: its network is trained beforehand once."""
    return make_task("7", name, seed)


def table(record: Record, seeds: Sequence[int]) -> list[str]:
    """Means, and differences to exact gradients by seed with their 95 % intervals."""
    lines = ["| task | activations | kept | layers | accuracy | less exact |", "|---|---|---|---|---|---|"]
    for name in TASKS:
        found = {way: [record.done["run", name, str(seed), *map(str, way)] for seed in seeds] for way in WAYS}
        exact = np.asarray([one.accuracy for one in found[WAYS[0]]])
        for kind, budget in WAYS:
            each = found[kind, budget]
            got = np.asarray([one.accuracy for one in each])
            less = "" if kind == "exact" else interval(got - exact)
            said = kind if kind == "exact" else f"{kind}, {budget:.0%}"
            kept, layers = (round(float(np.mean([getattr(o, key) for o in each]))) for key in ("kept_bytes", "layers"))
            lines.append(f"| {name} | {said} | {kept:,} B | {layers} | {got.mean():.1f} % | {less} |")
    return lines


def main(arguments: Sequence[str]) -> None:
    """Train, print."""
    parser = argparse.ArgumentParser(prog="benchmarks.activations accuracy", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args(arguments)
    record, seeds = Record(given.keep), range(given.first, given.first + given.seeds)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rates = {name: record.once(("rate", name), partial(best_rate, name, folder)) for name in TASKS}
        print(f"# rates: {rates}", flush=True)
        for seed, name in product(seeds, TASKS):
            for way in WAYS:
                key = ("run", name, str(seed), *map(str, way))
                record.once(key, partial(outcome, name, seed, *way, rates[name], folder))
            print(f"# {name}, seed {seed}", flush=True)
    print("\n".join(table(record, seeds)))
