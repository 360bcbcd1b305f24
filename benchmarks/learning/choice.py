"""Measure the accuracy of what --update auto chooses against head, bias and last:N, at equal arenas (20 minutes).

Two networks of `convergence`, 7 and 15 convolutions, float32, plain SGD, batch 8, gradients clipped. Tasks: turned
images, low contrast with noise (there the front must learn), five new classes, a new head. Each rule says what is
trained in each of three arenas; 400 samples, 12 passes. What a rule trains is looked for without weights, so it is the
same for all seeds, but for the rules that look at samples. Rates are chosen for each rule, network, task and arena on
150 samples of development seeds; accuracy is that of other seeds, on 547 images that nothing else sees, in three
orders. A rule that does not fit an arena is left out there, and listed. Short runs train: one build for all (ADR 32).

usage: python -m benchmarks choice [--nets 7,15] [--seeds N] [--first SEED] [--orders N] [--keep FILE]
"""

from __future__ import annotations

import argparse
import importlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.convergence import make_model
from benchmarks.learning.digit_domains import Split, domain_a, domain_b
from benchmarks.learning.pretrain import CLASSES, DEEP, LAYERS, pretrain
from benchmarks.record import Record
from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.driver.search.choose import deepest, search_update
from tinytrain_compile.ir.stages import ChannelSlice, Samples
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.choice_by_data import best_of, gradients_of
from tinytrain_compile.learn.short_runs import Desk, Run, make_desk
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse import PRIOR, layers_of, tables_of_gradients, tables_without_data
from tinytrain_compile.sparse.rules import LAST
from tinytrain_compile.target.loader import load_target

NETS = {"7": LAYERS, "15": DEEP}
EPOCHS = {"7": 30, "15": 15}
"""Of pre-training."""
TASKS = ("turned", "contrast", "classes", "head")
SHARES = (0.15, 0.3, 0.6)
"""Arenas: what the head alone needs, and this share of what all layers need more."""
RATES = (0.03, 0.1, 0.3, 1.0)
BATCH, PASSES, CLIP, ORDERS, DEVELOPMENT = 8, 12, 1.0, 3, (100, 101, 102)
PARTS = (slice(700, 1100), slice(1100, 1250), slice(1250, None))
"""Of a seed's images: to train on, to choose by, to judge by. The network has seen those before them."""
RULES = ("head", "bias", "last:N", LAST, "auto", "auto, data", "all")
Updates = Mapping[str, ChannelSlice | None]


@dataclass(frozen=True, eq=False)
class Task:
    """Of a seed: the parameters that a device begins with (ONNX), what it trains on, and what it is judged by."""

    start: Mapping[str, Array]
    own: Split
    check: Split
    test: Split


def make_task(net: str, name: str, seed: int) -> Task:
    """400 samples to train on, 150 to choose by, 547 to judge by, and a network that has seen 700 others."""
    images, labels = digits_of(seed)
    known = np.flatnonzero(labels[:700, 0] < 5) if name == "classes" else np.arange(700)
    meant = labels[known] // 2 if name == "head" else labels[known]
    start = pretrain(seed, Split(images[known], meant), EPOCHS[net], layers=NETS[net])
    if name == "head":
        width = start["wh"].shape[1]
        start["wh"] = np.random.default_rng(seed).uniform(-1, 1, (CLASSES, width)).astype(np.float32) / math.sqrt(width)
        start["bh"] = np.zeros(CLASSES, np.float32)
    return Task(start, *(Split(seen(name, images[p], 31 + 7 * i + seed), labels[p]) for i, p in enumerate(PARTS)))


def digits_of(seed: int) -> tuple[Array, Array]:
    """Images (1797, 1, 8, 8) in 0 to 1 and labels (1797, 1), in an order of the seed."""
    data: Any = importlib.import_module("sklearn.datasets").load_digits()
    order = np.random.default_rng(1000 + seed).permutation(len(data.images))
    return data.images[order].astype(np.float32)[:, None] / 16, data.target[order].astype(np.int32)[:, None]


def seen(name: str, images: Array, seed: int) -> Array:
    """Images (samples, 1, 8, 8) as the device sees them (samples, 1, 16, 16)."""
    if name == "turned":
        return domain_b(images, seed)
    upright = domain_a(images, seed)
    if name != "contrast":
        return upright
    noise = np.random.default_rng(seed).normal(0, 0.1, upright.shape)
    return np.clip(0.3 + 0.4 * upright + noise, 0, 1).astype(np.float32)


class Study:
    """A network: one build that trains all of it, and what each rule trains in each arena."""

    def __init__(self, net: str, folder: Path) -> None:
        self.net = net
        layers = NETS[net]
        first = make_task(net, "turned", 0)
        (folder / f"net{net}.onnx").write_bytes(make_model(dict(first.start), 1, layers).SerializeToString())
        np.savez(folder / "own.npz", x=first.own.x, y=first.own.y[:, 0])
        self.options = CompileOptions(folder / f"net{net}.onnx", data=folder / "own.npz", quant="fp32", batch=BATCH)
        self.model = stored(imported(self.options), self.options)
        self.desk = make_desk(self.options, PASSES * len(first.own.x) // BATCH, _silent)
        self.plain = make_desk(replace(self.options, batch=1), 1, _silent)
        self.libraries = self.desk.library(folder / f"all{net}"), self.plain.library(folder / f"one{net}")
        free = self.planner(None)
        small, large = (free.exact(rule).plan.arena_bytes for rule in ("head", "all"))
        self.arenas = tuple(round(small + share * (large - small)) // 16 * 16 for share in SHARES)
        self.fixed = {(arena, rule): one for arena in self.arenas for rule, one in self._fixed(arena)}

    def planner(self, arena: int | None) -> Planner:
        """For an arena."""
        asked = replace(self.options, arena_bytes=arena, update="auto", verify="none", remat="off")
        return Planner(self.model, asked, load_target("cortex-m7"), Externals())

    def _fixed(self, arena: int) -> list[tuple[str, Candidate]]:
        """What rules train that do not look at samples, where it fits; all layers fit nowhere, and are the ceiling."""
        planner = self.planner(arena)
        found = {rule: planner.exact(rule) for rule in ("head", "bias")}
        deep = deepest(planner, planner.layer_count)
        found |= {"last:N": deep[1]} if deep is not None else {}
        for table in (PRIOR, *tables_without_data(layers_of(self.model.graph))):
            found[table.source or "auto"] = search_update(planner, planner.layer_count, table, proof=False)
        fitting = [(rule, one) for rule, one in found.items() if one.plan.arena_bytes <= arena]
        return [*fitting, ("all", self.planner(None).exact("all"))]

    def desk_of(self, task: Task, judged: Split) -> Desk:
        """The desk with a task's numbers in place of those that it was built with."""
        x, y = (np.ascontiguousarray(task.own.x.transpose(0, 2, 3, 1)), task.own.y)
        held = Samples(np.ascontiguousarray(judged.x.transpose(0, 2, 3, 1)), judged.y)
        return replace(self.desk, x=x, y=y, held=held, start=self.start(task), clip=CLIP)

    def start(self, task: Task) -> dict[str, Array]:
        """A task's parameters by the graph's names, in its layout."""
        constants, found = self.desk.train.graph.constants, dict[str, Array]()
        for name in self.desk.weights:
            array = np.asarray(task.start[name])
            found[name] = array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
            assert found[name].shape == constants[name].shape
        return found

    def candidates(self, task: Task, arena: int) -> dict[str, Candidate]:
        """What --update auto --data tries in an arena, by rule, each update once; with the builds that are there."""
        planner, start = self.planner(arena), self.start(task)
        plain = replace(self.plain, x=self.desk_of(task, task.check).x, y=task.own.y, start=start)
        tables = tables_of_gradients(self.desk.layers, gradients_of(plain, self.libraries[1]), plain.weights)
        names = ("auto", *(table.source for table in tables_without_data(self.desk.layers)))
        known = {name: self.fixed[arena, name] for name in names if (arena, name) in self.fixed}
        by_samples = {table.source: search_update(planner, planner.layer_count, table, proof=False) for table in tables}
        found = dict[str, Candidate]()
        for name, one in (known | by_samples).items():
            if one.plan.arena_bytes <= arena and all(one.update.updates != o.update.updates for o in found.values()):
                found[name] = one
        return found

    def by_data(self, task: Task, arena: int, found: dict[str, Candidate]) -> str:
        """Which of them --update auto --data takes: 30 % of what the device would train on are held back."""
        held = len(task.own.x) * 3 // 10
        own, judged = Split(task.own.x[held:], task.own.y[held:]), Split(task.own.x[:held], task.own.y[:held])
        desk = self.desk_of(replace(task, own=own), judged)
        best = best_of(self.planner(arena), desk, list(found.values()), self.libraries[0], _silent)
        return next(name for name, one in found.items() if one.update.updates == best.update.updates)

    def accuracy(self, desk: Desk, updates: Updates, rate: float, orders: int) -> float:
        """Of so many trainings, one per order of the samples, in per cent; a loss that is NaN counts as guessing."""
        runs = [Run(updates, rate, order) for order in range(orders)]
        found = desk.run_all(runs, self.libraries[0], 1, lambda _index, _outcome: None)
        return 100 * sum(1 / CLASSES if one.accuracy is None else one.accuracy for one in found) / orders


@dataclass(frozen=True)
class Cell:
    """A task in an arena (its index)."""

    net: str
    task: str
    arena: int


Rates = Mapping[tuple[Cell, str], float]
Found = dict[tuple[Cell, str], list[float]]
"""Accuracies in per cent by rule, a seed after the other, each the mean over orders."""
Trial = tuple[dict[tuple[Cell, str], float], dict[Cell, str]]
"""Of a seed and a task: accuracy by rule, and which rule samples chose."""


def choose_rates(study: Study, seeds: Sequence[int], record: Record) -> Rates:
    """For each rule, task and arena the rate that is best on 150 samples of each development seed."""
    found = dict[tuple[Cell, str, float], list[float]]()
    for seed, name in product(seeds, TASKS):
        tried = record.once(("rates", study.net, name, str(seed)), partial(at_all_rates, study, name, seed))
        print(f"# rates: net {study.net}, seed {seed}, {name}", flush=True)
        for key, accuracy in tried.items():
            found.setdefault(key, []).append(accuracy)
    rules = {(cell, rule) for cell, rule, _ in found}
    return {(cell, rule): max(RATES, key=lambda rate: float(np.mean(found[cell, rule, rate]))) for cell, rule in rules}


def at_all_rates(study: Study, name: str, seed: int) -> dict[tuple[Cell, str, float], float]:
    """Accuracy of every rule of a task of a seed at every rate, in one order."""
    task, known = make_task(study.net, name, seed), dict[tuple[Any, float], float]()
    desk, found = study.desk_of(task, task.check), dict[tuple[Cell, str, float], float]()
    for index, arena in enumerate(study.arenas):
        fixed = {rule: one for (own, rule), one in study.fixed.items() if own == arena}
        for (rule, one), rate in product((fixed | study.candidates(task, arena)).items(), RATES):
            key = tuple(sorted(one.update.updates.items(), key=str)), rate
            if key not in known:
                known[key] = study.accuracy(desk, one.update.updates, rate, 1)
            found[Cell(study.net, name, index), rule, rate] = known[key]
    return found


def judge(study: Study, rates: Rates, seeds: Sequence[int], orders: int, record: Record) -> None:
    """Accuracy of every rule on samples that nothing was chosen by, into the record."""
    for seed, name in product(seeds, TASKS):
        record.once(("judged", study.net, name, str(seed)), partial(judged, study, rates, name, seed, orders))
        print(f"# judged: net {study.net}, seed {seed}, {name}", flush=True)


def judged(study: Study, rates: Rates, name: str, seed: int, orders: int) -> Trial:
    """A task of a seed."""
    task, known = make_task(study.net, name, seed), dict[tuple[Any, float], float]()
    desk, found, taken = study.desk_of(task, task.test), dict[tuple[Cell, str], float](), dict[Cell, str]()
    for index, arena in enumerate(study.arenas):
        cell, candidates = Cell(study.net, name, index), study.candidates(task, arena)
        taken[cell] = source = study.by_data(task, arena, candidates)
        each = [(rule, rule, one) for (own, rule), one in study.fixed.items() if own == arena and rule in RULES]
        for rule, its, one in (*each, ("auto, data", source, candidates[source])):
            rate = rates.get((cell, its), rates[cell, "auto"])  # a scheme that no development seed had of its own
            key = tuple(sorted(one.update.updates.items(), key=str)), rate
            if key not in known:
                known[key] = study.accuracy(desk, one.update.updates, rate, orders)
            found[cell, rule] = known[key]
    return found, taken


def all_judged(record: Record) -> tuple[Found, dict[Cell, list[str]]]:
    """All trials of a record together: accuracies by rule, and what samples chose."""
    found, taken = Found(), dict[Cell, list[str]]()
    for trial in (trial for key, trial in record.done.items() if key[0] == "judged"):
        for key, accuracy in trial[0].items():
            found.setdefault(key, []).append(accuracy)
        for cell, source in trial[1].items():
            taken.setdefault(cell, []).append(source)
    return found, taken


def interval(values: Array) -> str:
    """Mean and half of its 95 % interval, by Student's t over seeds."""
    t: Any = importlib.import_module("scipy.stats").t
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{values.mean():+.1f} +- {half:.1f}"


def tables(found: Found, taken: Mapping[Cell, Sequence[str]]) -> list[str]:
    """Means by task and arena, differences with their intervals, the worst case of each rule, what does not fit."""
    cells = sorted({cell for cell, _ in found}, key=lambda one: (one.net, TASKS.index(one.task), one.arena))
    lines = ["", "| net, task | " + " | ".join(RULES) + " | samples chose |", "|---|" + "---|" * (len(RULES) + 1)]
    for cell in cells:
        means = [f"{np.mean(found[cell, rule]):.1f}" if (cell, rule) in found else "-" for rule in RULES]
        counts = ", ".join(f"{name} {taken[cell].count(name)}" for name in sorted(set(taken[cell])))
        lines.append(f"| {cell.net}, {cell.task}, {SHARES[cell.arena]:.0%} | {' | '.join(means)} | {counts} |")
    judged = [rule for rule in RULES if rule != "all"]
    for net in sorted({cell.net for cell in cells}):
        own = [cell for cell in cells if cell.net == net]
        whole = {rule: [cell for cell in own if (cell, rule) in found] for rule in judged}
        lines += ["", f"net {net}: mean over tasks and arenas; differences by seed, 95 % intervals"]
        for rule in judged:
            mean = np.mean([found[cell, rule] for cell in whole[rule]])
            cell, below = worst(found, own, rule, judged)
            where = f"worst: {cell.task} at {SHARES[cell.arena]:.0%}, {below:.1f} below the best rule there"
            out = [f"{one.task} {SHARES[one.arena]:.0%}" for one in own if one not in whole[rule]]
            lines.append(f"  {rule:20} {mean:5.1f}   {where}{'   left out: ' + ', '.join(out) if out else ''}")
        for one, other in (("auto, data", r) for r in judged if r != "auto, data"):
            lines.append(f"  {one} - {other}: {interval(gaps(found, whole, one, other))}")
        for other in ("last:N", "bias"):
            lines.append(f"  auto - {other}: {interval(gaps(found, whole, 'auto', other))}")
    return lines


def gaps(found: Found, whole: Mapping[str, Sequence[Cell]], one: str, other: str) -> Array:
    """Differences of two rules by seed, where both fit."""
    both = [cell for cell in whole[one] if cell in whole[other]]
    return np.mean([np.subtract(found[cell, one], found[cell, other]) for cell in both], axis=0)


def worst(found: Found, cells: Sequence[Cell], rule: str, judged: Sequence[str]) -> tuple[Cell, float]:
    """Where a rule is furthest below the best of all, and by how much."""

    def below(cell: Cell) -> float:
        return max(float(np.mean(found[cell, r])) for r in judged if (cell, r) in found) - float(
            np.mean(found[cell, rule])
        )

    cell = max((cell for cell in cells if (cell, rule) in found), key=below)
    return cell, below(cell)


def main() -> None:
    """Choose rates, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", default="7,15")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args()
    record = Record(given.keep)
    for net in given.nets.split(",") if given.nets else ():
        with tempfile.TemporaryDirectory() as folder:
            study = Study(net, Path(folder))
            whole = study.fixed[study.arenas[0], "all"].plan.arena_bytes
            print(f"# net {net}: arenas {study.arenas}, all of it {whole}", flush=True)
            rates = choose_rates(study, DEVELOPMENT, record)
            judge(study, rates, range(given.first, given.first + given.seeds), given.orders, record)
    print("\n".join(tables(*all_judged(record))))


def _silent(_what: str, _share: float) -> None:
    return None
