"""Print the tables of docs/learning.md: digits, keywords; fp32, int8; updates; replay (hours).

Tasks (learning_tasks.py): digits turned, at low contrast with noise, five new classes, a new head; keywords of a new
speaker. Each in float32 and int8; trained are the head, all biases, the last three layers, what `--update auto` chooses
in the arena of those three, or all; with and without replay of one old sample after each new one. All of it is trained
by the generated C on this machine, whose bytes are the device's, at a rate that falls along a cosine.

Rates are chosen for each task, format and update on development seeds, with replay, by the accuracy on the new domain
(half an order of magnitude between rates, one training each). Accuracies are those of other seeds, on samples
that chose nothing. Same arguments, same table; with --keep a study that was ended goes on.

usage: python -m benchmarks learning [--tasks turned,keywords,..] [--seeds N] [--first SEED] [--development N]
                                     [--updates head,all,..] [--passes N] [--jobs N] [--keep FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tinytrain_compile as tt
from benchmarks.learning.choice import interval
from benchmarks.learning.learning_tasks import FAMILIES, Domain, Recipe
from benchmarks.record import Record
from tinytrain_compile.errors import CompileError
from tinytrain_compile.parts.replay.twin import Reservoir
from tinytrain_compile.parts.schedule.twin import Schedule
from tinytrain_compile.twin import Twin

FORMATS, UPDATES = ("fp32", "int8"), ("head", "bias", "last:3", "auto", "all")
LAST = "last:3"
"""Its arena is what auto gets."""
KEPT = 100
"""Old samples that are kept."""
Schemes = Mapping[str, str]
"""Format -> what auto trains, as a scheme file."""
Key = tuple[str, str, bool]
"""(format, update, with replay)"""


@dataclass(frozen=True)
class Accuracies:
    """In per cent, on the new domain and the old one (None: there is none)."""

    new: float
    old: float | None


@dataclass(frozen=True)
class Plan:
    """What a study trains."""

    task: str
    updates: tuple[str, ...]
    recipe: Recipe


def main() -> None:
    """Choose rates, judge, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(FAMILIES))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, help="the first seed that is reported (keywords: speaker)")
    parser.add_argument("--development", type=int, default=3, help="seeds that choose rates")
    parser.add_argument("--updates", default=",".join(UPDATES))
    parser.add_argument("--passes", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args()
    record = Record(given.keep)
    for task in given.tasks.split(","):
        recipe = FAMILIES[task].recipe
        plan = Plan(task, tuple(given.updates.split(",")), replace(recipe, passes=given.passes or recipe.passes))
        first = FAMILIES[task].first if given.first is None else given.first
        seeds = range(first, first + given.seeds)
        chosen, found = study(plan, seeds, given.development, given.jobs, record)
        print("\n".join(table(plan, seeds, chosen, found)), flush=True)


def study(
    plan: Plan, seeds: Sequence[int], development: int, jobs: int, record: Record
) -> tuple[Mapping[tuple[str, str], float], list[dict[Key, Accuracies]]]:
    """(rate by format and update, accuracies of each seed by what was trained; update "" is before training)."""
    first = FAMILIES[plan.task].development
    choosing = range(first, first + development)
    schemes: Schemes = record.once(("schemes", *_name(plan)), lambda: schemes_of(plan, first))
    named = _name(plan)
    work = {("rates", *named, str(seed)): (plan, seed, schemes) for seed in choosing}
    tried = record.each(rates_tried, work, jobs)
    rates = {
        what: max(plan.recipe.rates, key=lambda rate: float(np.mean([one[*what, rate] for one in tried])))
        for what in product(FORMATS, plan.updates)
    }
    how = f"judged by {development}"
    work = {(how, *named, str(seed)): (plan, seed, schemes, rates) for seed in seeds}
    return rates, record.each(judged, work, jobs)


def _name(plan: Plan) -> tuple[str, ...]:
    return plan.task, ",".join(plan.updates), str(plan.recipe.passes)


def schemes_of(plan: Plan, seed: int) -> Schemes:
    """What auto chooses in each format; it does not look at the samples, so it is the same for all seeds."""
    if "auto" not in plan.updates:
        return {}
    domain, found = FAMILIES[plan.task].make(seed, True), dict[str, str]()
    for quant in FORMATS:
        arena = _compiled(domain, quant, LAST, plan.recipe).report["memory"]["arena_bytes"]
        scheme = _compiled(domain, quant, "auto", plan.recipe, arena=arena).files["update.toml"]
        assert isinstance(scheme, str)
        found[quant] = scheme
    return found


def rates_tried(plan: Plan, seed: int, schemes: Schemes) -> dict[tuple[str, str, float], float]:
    """Accuracy on the new domain of a development seed by (format, update, rate), with replay where there is any."""
    domain, found = FAMILIES[plan.task].make(seed, True), dict[tuple[str, str, float], float]()
    for quant, update in product(FORMATS, plan.updates):
        with build_of(domain, quant, update, plan.recipe, schemes).twin() as twin:
            for rate in plan.recipe.rates:
                kept = KEPT if domain.pool else 0
                found[quant, update, rate] = trained(twin, domain, plan.recipe, rate, kept, seed).new
    return found


def judged(plan: Plan, seed: int, schemes: Schemes, rates: Mapping[tuple[str, str], float]) -> dict[Key, Accuracies]:
    """Accuracies of a seed that chose nothing."""
    domain, found = FAMILIES[plan.task].make(seed, False), dict[Key, Accuracies]()
    for quant, update in product(FORMATS, plan.updates):
        with build_of(domain, quant, update, plan.recipe, schemes).twin() as twin:
            found[quant, "", False] = accuracies(twin, domain)
            for kept in (0, KEPT) if domain.pool else (0,):
                rate = rates[quant, update]
                found[quant, update, kept > 0] = trained(twin, domain, plan.recipe, rate, kept, seed)
    return found


def trained(twin: Twin, domain: Domain, recipe: Recipe, rate: float, kept: int, order: int) -> Accuracies:
    """After training anew, on own samples in an order of their own, each followed by one of `kept` old ones.

    A loss that is NaN ends it: what the network knows by then counts.
    """
    twin.reset()
    pairs = [twin.as_slots(part.x, part.y) for part in (domain.own, domain.pool) if part is not None]
    x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    samples = sequence(len(domain.own.x), len(x), kept, recipe.passes, order)
    updates = len(samples) // recipe.batch
    falling = Schedule("cosine", rate, every=updates)
    try:
        for update in range(updates):
            chosen = samples[update * recipe.batch : (update + 1) * recipe.batch]
            twin.instance.set_rate(falling.rate_of(update))
            twin.instance.train(x[chosen], y[chosen])
    except CompileError as problem:
        if problem.code != "E0603":
            raise
    return accuracies(twin, domain)


def sequence(own: int, together: int, kept: int, passes: int, order: int) -> list[int]:
    """Numbers of the samples to train on: below `own` new ones, from there on old ones from a reservoir of `kept`."""
    rng, past, found = np.random.default_rng(7 + order), Reservoir[int](kept, order), list[int]()
    for index in range(own, together) if kept else ():
        past.add(index)
    for _ in range(passes):
        for index in rng.permutation(own).tolist():
            found += [past.draw(), index] if past.due() else [index]
    return found


def accuracies(twin: Twin, domain: Domain) -> Accuracies:
    """Of the weights as they are."""
    found = [twin.evaluate(part.x, part.y)["accuracy"] for part in (domain.new, domain.old) if part is not None]
    return Accuracies(100 * found[0], 100 * found[1] if len(found) > 1 else None)


def build_of(domain: Domain, quant: str, update: str, recipe: Recipe, schemes: Schemes) -> tt.Compiled:
    """A build; for auto of what it chose once."""
    if update != "auto":
        return _compiled(domain, quant, update, recipe)
    with tempfile.TemporaryDirectory() as folder:
        scheme = Path(folder) / "update.toml"
        scheme.write_text(schemes[quant], encoding="utf-8")
        return _compiled(domain, quant, str(scheme), recipe, name=hashlib.sha256(schemes[quant].encode()).hexdigest())


_BUILDS: dict[tuple[Any, ...], tt.Compiled] = {}
"""The last builds of this process: all speakers share theirs."""


def _compiled(
    domain: Domain, quant: str, update: str, recipe: Recipe, arena: int | None = None, name: str = ""
) -> tt.Compiled:
    key = (hashlib.sha256(domain.model).hexdigest(), quant, name or update, recipe, arena)
    if key not in _BUILDS:
        while len(_BUILDS) >= len(FORMATS) * len(UPDATES):
            del _BUILDS[next(iter(_BUILDS))]
        with tempfile.TemporaryDirectory() as folder:
            model, calib = Path(folder) / "network.onnx", Path(folder) / "calib.npz"
            model.write_bytes(domain.model)
            np.savez(calib, x=domain.typical)
            own: dict[str, Any] = {"calib": calib} if quant == "int8" else {}
            own |= {} if recipe.clip is None else {"clip_norm": recipe.clip}
            common = {"batch": recipe.batch, "loss": "cross-entropy", "verify": "none", "arena": arena}
            _BUILDS[key] = tt.compile(model, quant=quant, update=update, **common, **own)
            _BUILDS[key].library()
    return _BUILDS[key]


def table(
    plan: Plan, seeds: Sequence[int], rates: Mapping[tuple[str, str], float], found: list[dict[Key, Accuracies]]
) -> list[str]:
    """Means over seeds, new domain / old domain; then the differences that matter, with their 95 % intervals."""
    replay = any(replayed for _, _, replayed in found[0])
    columns = [(quant, replayed) for quant in FORMATS for replayed in ((False, True) if replay else (False,))]
    heads = [f"{quant}{', replay' if replayed else ''}" for quant, replayed in columns]
    shown = "new / old, %" if replay else "new, %"
    lines = ["", f"**{plan.task}**, {len(seeds)} seeds from {seeds[0]}: {shown}", ""]
    lines += ["| trained | " + " | ".join((*heads, "rates")) + " |", "|---|" + "---|" * (len(heads) + 1)]
    before = " | ".join(_mean(found, (quant, "", False)) for quant, _ in columns)
    lines.append(f"| nothing | {before} | |")
    for update in plan.updates:
        cells = [_mean(found, (quant, update, replayed)) for quant, replayed in columns]
        used = ", ".join(f"{rates[quant, update]:g}" for quant in FORMATS)
        lines.append(f"| {update} | {' | '.join(cells)} | {used} |")
    return [*lines, "", *widest(found), *differences(plan, found, replay)]


def widest(found: list[dict[Key, Accuracies]]) -> list[str]:
    """How wide the 95 % interval of a cell's mean over seeds is at most, for each domain."""
    lines = list[str]()
    for part in ("new", "old"):
        each = [np.array([getattr(one[key], part) for one in found], float) for key in found[0]]
        halves = [float(interval(values).partition("+- ")[2]) for values in each if not np.isnan(values).any()]
        lines += [f"a cell's interval, {part} domain: at most +- {max(halves):.1f}"] if halves else []
    return lines


def _mean(found: list[dict[Key, Accuracies]], key: Key) -> str:
    old = [one[key].old for one in found]
    known = [accuracy for accuracy in old if accuracy is not None]
    new = f"{np.mean([one[key].new for one in found]):.1f}"
    return f"{new} / {np.mean(known):.1f}" if known else new


def differences(plan: Plan, found: list[dict[Key, Accuracies]], replay: bool) -> list[str]:
    """Paired by seed: int8 less float32 on the new domain, and what replay does to new and old."""
    by_update = np.array(
        [[one["int8", u, replay].new - one["fp32", u, replay].new for u in plan.updates] for one in found]
    )
    how = ", with replay" if replay else ""
    each = (f"{update} {interval(by_update[:, index])}" for index, update in enumerate(plan.updates))
    lines = [f"int8 - float32, new domain{how}: {', '.join(each)}"]
    alike = [index for index, update in enumerate(plan.updates) if update != "auto"]  # it trains other layers in each
    lines += [f"the same, mean of all but auto: {interval(by_update[:, alike].mean(axis=1))}"] if alike else []
    for part in ("new", "old") if replay else ():
        pairs = list(product(FORMATS, plan.updates))
        gains = [np.mean([_gain(one, *pair, part) for pair in pairs]) for one in found]
        lines.append(f"replay - none, {part} domain, mean over updates and formats: {interval(np.asarray(gains))}")
    return lines


def _gain(one: dict[Key, Accuracies], quant: str, update: str, part: str) -> float:
    return getattr(one[quant, update, True], part) - getattr(one[quant, update, False], part)
