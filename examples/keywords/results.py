"""How well the model gets used to new speakers, over all of them: a table, in which the bar is judged.

usage: results.py [--development] [--quant int8] [--update all] [--rate 0.001] [--epochs 12] [--replayed 100]

Trains by the twin, whose bytes are those of the firmware that run.py puts into QEMU. Exits 1 where the bar is missed:
new speakers at least 90 %, old ones at most 6 points less than before, in the mean.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from make_data import DEVELOPMENT, REPORT
from recipe import EPOCHS, RATE, REPLAYED, adapt, compiled
from speakers import parts_of

NEW, LOST = 90.0, 6.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--development", action="store_true", help="the speakers by which everything was chosen")
    parser.add_argument("--quant", default="int8", choices=("int8", "fp32"))
    parser.add_argument("--update", default="all", help="as for tinytrain-compile (default: all)")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--replayed", type=int, default=REPLAYED, help="samples of old speakers that are kept")
    given = parser.parse_args()
    speakers = DEVELOPMENT if given.development else REPORT
    build, found = compiled(parts_of(speakers[0]).pool, given.quant, given.update), list[list[float]]()
    print("| speaker | new, before | after | old, before | after |\n|---|---|---|---|---|")
    with build.twin() as twin:
        for speaker in speakers:
            one = adapt(twin, parts_of(speaker), given.epochs, given.rate, given.replayed)
            found.append([one.before[0], one.after[0], one.before[1], one.after[1]])
            print(f"| {speaker} | " + " | ".join(f"{number:.1f} %" for number in found[-1]) + " |", flush=True)
    mean = np.mean(found, axis=0)
    print("| mean | " + " | ".join(f"{number:.1f} %" for number in mean) + " |")
    met = mean[1] >= NEW and mean[2] - mean[3] <= LOST
    verdict = "met" if met else "MISSED"
    print(f"\nnew {mean[1]:.1f} %, old {mean[3] - mean[2]:+.1f} points; bar {NEW:.0f} %, -{LOST:.0f} points: {verdict}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
