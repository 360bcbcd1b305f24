"""Compare training with, without and with chosen clipping: digits and keywords, fp32 and int8 (half an hour).

Tasks, seeds and training are those of `learning`, with replay where there is an old domain: digits turned, at low
contrast, new classes, a new head (batch 8), keywords of a new speaker (batch 1). Each with and without --clip-norm 1,
at the rate that development seeds choose for it among five or six, half an order of magnitude apart. "chosen" is
clipped where development seeds know it better by more than a standard error, which is what `finetune` does with samples
that it holds back. Accuracies are those of other seeds, on samples that chose nothing.

usage: python -m benchmarks clipping [--tasks turned,keywords,..] [--seeds N] [--first N] [--development N]
                                     [--updates head,all,..] [--jobs N] [--keep FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.learning.choice import interval
from benchmarks.learning.learning import FORMATS, KEPT, build_of, trained
from benchmarks.learning.learning_tasks import FAMILIES
from benchmarks.record import Record
from tinytrain_compile.ir.learning import Score
from tinytrain_compile.ir.types import Array

CLIPS = (None, 1.0)
"""--clip-norm; None: not clipped."""
RATES = {
    ("digits", None): (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    ("digits", 1.0): (0.1, 0.3, 1.0, 3.0, 10.0),
    ("keywords", None): (0.001, 0.003, 0.01, 0.03, 0.1),
    ("keywords", 1.0): (0.001, 0.003, 0.01, 0.03, 0.1),
}
UPDATES = ("head", "bias", "last:3", "all")
Way = tuple[str, str]
"""(format, update)"""
Tried = Mapping[tuple[str, str, float | None, float], float]
"""Accuracy on the new domain by (format, update, clip, rate)."""


def main() -> None:
    """Choose rates, judge, print a table for each task and what they say together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(FAMILIES))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="so many of the reported seeds are left out")
    parser.add_argument("--development", type=int, default=2, help="seeds that choose rates, and whether to clip")
    parser.add_argument("--updates", default=",".join(UPDATES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args()
    record, updates = Record(given.keep), tuple(given.updates.split(","))
    together = list[Array]()
    for task in given.tasks.split(","):
        reported = range(given.first, given.first + given.seeds)
        rates, chosen, found = study(task, updates, reported, given.development, given.jobs, record)
        print("\n".join(table(task, rates, chosen, found)), flush=True)
        together += [gains(found, chosen, way) for way in product(FORMATS, updates)]
    print(f"\nchosen - none, mean of all rows: {interval(np.mean(together, axis=0))}")


def study(
    task: str, updates: tuple[str, ...], seeds: range, development: int, jobs: int, record: Record
) -> tuple[dict[tuple[str, str, float | None], float], dict[Way, float | None], list[Tried]]:
    """Rates by format, update and clip; the clip that is chosen; accuracies of each reported seed, at these."""
    family, named = FAMILIES[task], (task, ",".join(updates))
    choosing = range(family.development, family.development + development)
    everything = {(*way, clip): rates_of(task, clip) for *way, clip in product(FORMATS, updates, CLIPS)}
    work = {("tried", *named, str(seed)): (task, seed, True, everything) for seed in choosing}
    tried = record.each(accuracies, work, jobs)

    def known(quant: str, update: str, clip: float | None, rate: float) -> float:
        return float(np.mean([one[quant, update, clip, rate] for one in tried]))

    rates = {what: max(each, key=lambda rate: known(*what, rate)) for what, each in everything.items()}
    samples, chosen = development * len(family.make(family.development, True).new.y), dict[Way, float | None]()
    for way in product(FORMATS, updates):
        plain, clipped = (Score(0.0, known(*way, clip, rates[*way, clip]) / 100) for clip in CLIPS)
        chosen[way] = CLIPS[clipped.better_than(plain, samples)]
    reported = [family.first + seed for seed in seeds]
    best = {what: (rate,) for what, rate in rates.items()}
    work = {(f"judged by {development}", *named, str(seed)): (task, seed, False, best) for seed in reported}
    return (
        rates,
        chosen,
        [{key[:3]: value for key, value in one.items()} for one in record.each(accuracies, work, jobs)],
    )


def rates_of(task: str, clip: float | None) -> tuple[float, ...]:
    """What development seeds choose from."""
    return RATES["keywords" if task == "keywords" else "digits", clip]


def accuracies(
    task: str, seed: int, development: bool, rates: Mapping[tuple[str, str, float | None], Sequence[float]]
) -> Tried:
    """On the new domain of a seed, in per cent."""
    domain, found = FAMILIES[task].make(seed, development), dict[tuple[str, str, float | None, float], float]()
    kept, usual = KEPT if domain.pool else 0, FAMILIES[task].recipe
    for (quant, update, clip), each in rates.items():
        recipe = replace(usual, clip=clip)
        with build_of(domain, quant, update, recipe, {}).twin() as twin:
            for rate in each:
                found[quant, update, clip, rate] = trained(twin, domain, recipe, rate, kept, seed).new
    return found


def gains(
    found: Sequence[Mapping[tuple[str, str, float | None], float]], chosen: Mapping[Way, float | None], way: Way
) -> Array:
    """What the choice has over no clipping, by seed, in points."""
    return np.array([one[*way, chosen[way]] - one[*way, None] for one in found])


def table(
    task: str,
    rates: Mapping[tuple[str, str, float | None], float],
    chosen: Mapping[Way, float | None],
    found: Sequence[Mapping[tuple[str, str, float | None], float]],
) -> list[str]:
    """Means over seeds, and differences with their 95 % intervals."""
    lines = ["", f"**{task}**, {len(found)} seeds: accuracy in the new place, %", ""]
    lines += [
        "| trained | none | clipped | clipped - none | chosen | chosen - none | rates |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in chosen:
        columns = [np.array([one[*way, clip] for one in found]) for clip in CLIPS]
        means = " | ".join(f"{values.mean():.1f}" for values in columns)
        taken = "none" if chosen[way] is None else "clipped"
        used = ", ".join(f"{rates[*way, clip]:g}" for clip in CLIPS)
        cells = f"{means} | {interval(columns[1] - columns[0])} | {taken} | {interval(gains(found, chosen, way))}"
        lines.append(f"| {way[1]}, {way[0]} | {cells} | {used} |")
    return lines
