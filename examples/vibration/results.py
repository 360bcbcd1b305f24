"""What a threshold of its own and what training is worth to a new machine, over all of them: a table.

usage: results.py [--development] [--machines N] [--rate 0.1] [--epochs 20] [--update all] [--quant int8]

Trains by the twin, whose bytes are those of the firmware that run.py puts into QEMU. The row "no network" takes the
distance of each band from the mean of own windows, in their spread, where the network takes its error.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from make_data import DEVELOPMENT, REPORT, Parts, parts_of, real
from recipe import EPOCHS, PER_MILLE, RATE, Outcome, adapt, area, compiled, factory_threshold, verdict

from tinytrain_compile.parts.monitor.twin import percentile

T95 = {8: 2.36, 16: 2.13}
"""Student's t for so many machines."""


def without_network(parts: Parts) -> tuple[float, float, float]:
    """(false alarms, faults found, area) of the mean square distance from own windows, by the percentile of theirs."""
    own, judged = real(parts.own), real(parts.x)
    mean, spread = own.mean(axis=0), own.std(axis=0) + 1e-6
    far = [(((x - mean) / spread) ** 2).mean(axis=1) for x in (own, judged)]
    found = verdict(far[1], parts.y, percentile(far[0], PER_MILLE))
    return found.false_alarms, found.found, area(far[1], parts.y)


def rows_of(one: Outcome, parts: Parts) -> list[tuple[float, float, float]]:
    """(false alarms, faults found, area) by what was done."""
    ways = [(one.factory, one.area), (one.percentile, one.area), (one.sigma, one.area)]
    ways.append((one.retrained, one.area_retrained))
    return [*((way.false_alarms, way.found, area) for way, area in ways), without_network(parts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--development", action="store_true", help="the machines by which everything was chosen")
    parser.add_argument("--machines", type=int, help="the first so many alone")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--update", default="all", help="as for tinytrain-compile (default: all)")
    parser.add_argument("--quant", default="fp32", choices=("fp32", "int8"), help="(default: fp32)")
    given = parser.parse_args()
    machines = (DEVELOPMENT if given.development else REPORT)[: given.machines]
    with compiled(given.rate, given.update, given.quant).twin() as twin:
        factory, found = factory_threshold(twin), list[list[tuple[float, float, float]]]()
        for number in machines:
            parts = parts_of(number)
            found.append(rows_of(adapt(twin, parts, factory, given.epochs), parts))
    numbers = np.array(found)  # (machines, ways, 3)
    names = ("factory's threshold", "own percentile", "own mean + 3 sigma", "retrained, own percentile", "no network")
    print("| | false alarms | faults found | area under the ROC curve |\n|---|---|---|---|")
    for name, (alarms, caught, area_) in zip(names, numbers.mean(axis=0), strict=True):
        print(f"| {name} | {alarms:.1f} % | {caught:.1f} % | {area_:.3f} |")
    print(f"\nmean of {len(machines)} machines; retrained - own percentile, with 95 % intervals over machines:")
    for index, (name, unit) in enumerate((("false alarms", "points"), ("faults found", "points"), ("area", ""))):
        gaps = numbers[:, 3, index] - numbers[:, 1, index]
        half = T95.get(len(gaps), math.nan) * gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
        digits = 3 if index == 2 else 1
        print(f"{name} {gaps.mean():+.{digits}f} +- {half:.{digits}f} {unit}".rstrip())


if __name__ == "__main__":
    main()
