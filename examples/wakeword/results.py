"""What a lesson is worth, over all speakers.

usage: results.py [--development] [--update all] [--rate ...] [--steps ...] [--speakers N]

Trains by the twin, whose bytes are those of the firmware that run.py puts into QEMU.
"""

from __future__ import annotations

import argparse

import numpy as np
from recipe import LESSON, RATE, clips_of, compiled, judged, learn, listened, shipped, taught
from speech import CONFUSABLE, DEVELOPMENT, REPORT, WORD, Array, Recording

import tinytrain_compile as tt
from tinytrain_compile.twin import Twin

OWN_WORDS, OTHERS_WORDS = 8, 3
COLUMNS = ("own word", "own confusable", "own other", "others' word", "others' confusable", "others' other")
NEGATIVES = {"none": (False, False), "owner's": (True, False), "owner's and shipped": (True, True)}
"""Name of an ablation -> whether a lesson has other phrases of the owner, and windows of other speakers."""


def shares(twin: Twin, group: str, heard: list[Recording]) -> Array:
    """(3): percentage of the word, of confusable and of ordinary phrases in which the word was heard."""
    counts = np.zeros((3, 2))
    for one in heard:
        for said, yes in zip(one.said, listened(twin, one), strict=True):
            counts[0 if said.text == WORD else 1 if said.text in CONFUSABLE[group] else 2] += (yes, 1)
    return 100 * counts[:, 0] / counts[:, 1]


def judge(twin: Twin, speaker: str, group: str, speakers: tuple[str, ...]) -> Array:
    """(6): COLUMNS."""
    others = [judged(one, group, OTHERS_WORDS, 1) for one in speakers if one != speaker]
    return np.concatenate([shares(twin, group, [judged(speaker, group, OWN_WORDS, 2)]), shares(twin, group, others)])


def lesson(twin: Twin, speaker: str, negatives: str, steps: int, rate: float) -> None:
    """Begin anew, and learn a speaker."""
    own, others = NEGATIVES[negatives]
    twin.reset()
    learn(twin, clips_of(taught(speaker, own)), shipped() if others else [], steps, rate)


def row(name: str, found: list[Array]) -> str:
    """Mean and standard error over speakers."""
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    return f"| {name} | " + " | ".join(f"{m:.1f} ± {e:.1f} %" for m, e in zip(mean, error, strict=True)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--development", action="store_true", help="the speakers by which rate and steps were chosen")
    parser.add_argument("--update", default="all", help="as for tinytrain-compile (default: all)")
    parser.add_argument("--rate", type=float, nargs="+", default=[RATE])
    parser.add_argument("--steps", type=int, nargs="+", default=[LESSON])
    given = parser.parse_args()
    group, speakers = ("development", DEVELOPMENT) if given.development else ("report", REPORT)
    print("| lesson | " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * len(COLUMNS))
    with compiled(given.update).twin() as twin:
        before = [judge(twin, one, group, speakers) for one in speakers]
        print(row("before", before), flush=True)
        for negatives in NEGATIVES if not given.development else ["owner's and shipped"]:
          for rate in given.rate:
            for steps in given.steps:
                found = list[Array]()
                for one in speakers:
                    lesson(twin, one, negatives, steps, rate)
                    found.append(judge(twin, one, group, speakers))
                print(row(f"{negatives} {rate} {steps}", found), flush=True)


if __name__ == "__main__":
    main()
