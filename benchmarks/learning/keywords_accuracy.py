"""Compare int8 with float32 on keywords: 24 fresh speakers in six orders, with replay (half an hour; espeak-ng).

They are other than those of examples/keywords (fresh_speakers.py, which needs espeak-ng); with --example it is the
eight of its table.

All layers of examples/keywords are trained, with replay, as learning.py does. Both formats train at one rate, the best
of learning.py's by the mean of both on development speakers. A speaker counts by the mean over orders of its
difference to float32 in the same order; the orders are in no other study. Prints the mean over speakers with its 95 %
confidence interval (Student's t) and exits 1 where the new domain loses more than half a point.

usage: python -m benchmarks keywords-accuracy [--speakers 24] [--orders 6] [--batches 1,8] [--development 3]
                                              [--jobs N] [--keep FILE] [--voices FILE.npz | --example]
"""

from __future__ import annotations

import argparse
import sys
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.learning.choice import interval
from benchmarks.learning.fresh_speakers import VOICE_NAMES, make, parts_of
from benchmarks.learning.learning import FORMATS, KEPT, Accuracies, build_of, trained
from benchmarks.learning.learning_tasks import FAMILIES, KEYWORDS, Domain, Recipe, spoken
from benchmarks.record import Record

BAR = -0.5
"""Points of accuracy on the new domain that int8 may lose."""
FIRST_ORDER = 1000
Run = tuple[str, float, int]
"""(format, rate, order)"""


@dataclass(frozen=True)
class Speakers:
    """Who speaks. voices: a file of fresh speakers; None: the example's, those that choose or those that judge."""

    voices: Path | None = None
    development: bool = False

    def domain(self, speaker: int) -> Domain:
        """Of one of them."""
        if self.voices is not None:
            return spoken(parts_of(self.voices, speaker))
        return FAMILIES["keywords"].make(speaker, self.development)


def runs_of(speakers: Speakers, speaker: int, recipe: Recipe, runs: list[Run]) -> dict[Run, Accuracies]:
    """Accuracies of a speaker after each of these trainings."""
    domain, found = speakers.domain(speaker), dict[Run, Accuracies]()
    for quant in FORMATS:
        with build_of(domain, quant, "all", recipe, {}).twin() as twin:
            for run in runs:
                if run[0] == quant:
                    found[run] = trained(twin, domain, recipe, run[1], KEPT, run[2])
    return found


def each(
    speakers: Speakers, count: int, recipe: Recipe, runs: list[Run], jobs: int, record: Record
) -> list[Mapping[Run, Accuracies]]:
    """The same of so many speakers, from the record or made now."""
    keys = [(str(speakers), str(recipe), str(runs), str(speaker)) for speaker in range(count)]
    work = {key: (speakers, speaker, recipe, runs) for speaker, key in enumerate(keys)}
    return record.each(runs_of, work, jobs)


def rate_for(recipe: Recipe, development: int, jobs: int, record: Record) -> float:
    """The best rate of both formats together on development speakers."""
    runs = [(quant, rate, 0) for quant in FORMATS for rate in recipe.rates]
    tried = each(Speakers(development=True), development, recipe, runs, jobs, record)
    return max(recipe.rates, key=lambda rate: np.mean([one[quant, rate, 0].new for one in tried for quant in FORMATS]))


def judged(who: Speakers, recipe: Recipe, speakers: int, orders: int, rate: float, jobs: int, record: Record) -> bool:
    """Print a batch size; whether it meets the bar."""
    chosen = range(FIRST_ORDER, FIRST_ORDER + orders)
    by_order = [each(who, speakers, recipe, [(q, rate, order) for q in FORMATS], jobs, record) for order in chosen]
    found = [dict(ChainMap(*map(dict, parts))) for parts in zip(*by_order, strict=True)]
    print(f"batch {recipe.batch}, rate {rate:g}, {speakers} speakers x {orders} orders")
    met = True
    for part in ("new", "old"):
        own = np.array([[[getattr(one[q, rate, o], part) for o in chosen] for q in FORMATS] for one in found])
        gaps = (own[:, 1] - own[:, 0]).mean(axis=1)
        verdict = "" if part == "old" else f"   bar {BAR}: {'met' if gaps.mean() >= BAR else 'MISSED'}"
        means = f"float32 {own[:, 0].mean():.2f}   int8 {own[:, 1].mean():.2f}"
        print(f"  {part}   {means}   difference {interval(gaps)}   worst {gaps.min():+.1f}{verdict}", flush=True)
        met &= part == "old" or gaps.mean() >= BAR
    return bool(met)


def main() -> None:
    """Choose rates, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speakers", type=int, help="the first so many alone")
    parser.add_argument("--orders", type=int, default=6)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--development", type=int, default=3, help="speakers that choose the rate")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    parser.add_argument("--voices", type=Path, default=Path("out/voices.npz"), help="what they say, made where absent")
    parser.add_argument("--example", action="store_true", help="the eight speakers of the example's table")
    given = parser.parse_args()
    record, met, who = Record(given.keep), True, Speakers(None if given.example else given.voices)
    if who.voices is not None and not who.voices.exists():
        make(who.voices)
    speakers = given.speakers or (8 if given.example else len(VOICE_NAMES))
    for batch in map(int, given.batches.split(",")):
        rates = tuple(rate * min(batch, 4) for rate in KEYWORDS.rates)
        recipe = replace(KEYWORDS, batch=batch, rates=rates)
        rate = rate_for(recipe, given.development, given.jobs, record)
        met &= judged(who, recipe, speakers, given.orders, rate, given.jobs, record)
    sys.exit(not met)
