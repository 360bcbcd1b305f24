"""What a lesson is worth, over speakers that were not looked at while rate and steps were chosen.

usage: results.py [--ablation] [--development] [--update all] [--rate 0.0001 ...] [--steps 200 ...]

The twin learns, whose bytes are those of the firmware that run.py puts into QEMU. Every share is of speech that is in
no lesson. `export` writes the learned weights, and LiteRT hears the same speech.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from recipe import (
    LESSON,
    RATE,
    clips_of,
    compiled,
    decisions,
    heard,
    judged,
    learn,
    listened,
    probabilities,
    shipped,
    taught,
)
from speech import CONFUSABLE, DEVELOPMENT, REPORT, WORD, Array, Recording
from stream import by_litert, export

from tinytrain_compile.twin import Twin

OWN_WORDS, OWN_TAKES, OTHERS_WORDS = 8, 2, 3
"""Of a speaker's own speech: utterances of the word and of each other phrase; of each other speaker's: of the word."""
COLUMNS = ("word", "confusable", "ordinary", "others: word", "confusable", "ordinary")
NEGATIVES = {"none": (False, False), "own phrases": (True, False), "own phrases, shipped windows": (True, True)}
"""What a lesson has besides the owner's word -> other phrases of the owner, windows of known speakers."""
FULL = "own phrases, shipped windows"
RATES, STEPS = (0.00003, 0.0001, 0.0003, 0.001), (100, 200, 400)


def shares(twin: Twin, group: str, spoken: Sequence[Recording]) -> Array:
    """(3): percentages of the word, of confusable and of ordinary phrases in which the word is heard."""
    counts = np.zeros((3, 2))
    for one in spoken:
        for said, yes in zip(one.said, listened(twin, one), strict=True):
            counts[0 if said.text == WORD else 1 if said.text in CONFUSABLE[group] else 2] += (yes, 1)
    return 100 * counts[:, 0] / counts[:, 1]


def judge(twin: Twin, speaker: str, group: str) -> Array:
    """(6): COLUMNS, of a speaker and of all others of the group."""
    others = [judged(one, group, OTHERS_WORDS, 1) for one in speakers_of(group) if one != speaker]
    own = judged(speaker, group, OWN_WORDS, OWN_TAKES)
    return np.concatenate([shares(twin, group, [own]), shares(twin, group, others)])


def speakers_of(group: str) -> tuple[str, ...]:
    return REPORT if group == "report" else DEVELOPMENT


def lesson(twin: Twin, speaker: str, steps: int, rate: float, negatives: str = FULL) -> None:
    """Begin anew, and learn a speaker."""
    own, others = NEGATIVES[negatives]
    twin.reset()
    learn(twin, clips_of(taught(speaker, own)), shipped() if others else [], steps, rate)


def over_speakers(twin: Twin, group: str, steps: int, rate: float, negatives: str = FULL) -> Array:
    """(speakers, 6) after a lesson of each, or without one if it has no steps."""
    found = list[Array]()
    for speaker in speakers_of(group):
        lesson(twin, speaker, steps, rate, negatives)
        found.append(judge(twin, speaker, group))
    return np.stack(found)


def row(name: str, found: Array) -> str:
    """Means over speakers with their standard errors."""
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))
    return f"| {name} | " + " | ".join(f"{m:.1f} ± {e:.1f} %" for m, e in zip(mean, error, strict=True)) + " |"


def table(first: str, *more: str) -> None:
    names = (first, *COLUMNS, *more)
    print("| " + " | ".join(names) + " |\n|---|" + "---:|" * (len(names) - 1), flush=True)


def develop(twin: Twin, numbers: Sequence[int], rates: Sequence[float]) -> None:
    """Every rate with every number of steps, on the development speakers. All kinds of error count alike."""
    table("rate, steps", "sum")
    best = dict[str, float]()
    for rate in rates:
        for steps in numbers:
            found, name = over_speakers(twin, "development", steps, rate), f"{rate:g}, {steps}"
            mean = found.mean(axis=0)
            best[name] = 100 - mean[0] + mean[1] + mean[2] + mean[4] + mean[5]
            print(f"{row(name, found)} {best[name]:.1f} |", flush=True)
    print(f"\nleast sum of own words missed and phrases wrongly heard: {min(best, key=lambda name: best[name])}")


def report(twin: Twin, build: Path, steps: int, rate: float) -> None:
    """Each speaker before and after, and what LiteRT hears by the file that `export` writes."""
    table("speaker", "LiteRT agrees")
    before, after, agreed = list[Array](), list[Array](), np.zeros(2, int)
    for speaker in REPORT:
        twin.reset()
        before.append(judge(twin, speaker, "report"))
        lesson(twin, speaker, steps, rate)
        after.append(judge(twin, speaker, "report"))
        own = judged(speaker, "report", OWN_WORDS, OWN_TAKES)
        device, file = probabilities(twin, own), by_litert(export(twin, build), own.rows)
        same = heard(decisions(device), own.said) == heard(decisions(file), own.said)
        agreed += (same.sum(), len(same))
        cells = [f"{b:.0f} -> {a:.0f} %" for b, a in zip(before[-1], after[-1], strict=True)]
        print(f"| {speaker} | {' | '.join(cells)} | {same.sum()} of {len(same)} |", flush=True)
    print(
        f"{row('mean, before', np.stack(before))} |\n{row('mean, after', np.stack(after))} {agreed[0]} of {agreed[1]} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--development", action="store_true", help="all rates and steps, on the development speakers")
    parser.add_argument(
        "--ablation", action="store_true", help="lessons without other phrases, or without other speakers"
    )
    parser.add_argument("--update", default="all", help="as for tinytrain-compile (default: all)")
    parser.add_argument("--rate", type=float, nargs="+", help=f"(default: {RATE}, or several for --development)")
    parser.add_argument("--steps", type=int, nargs="+", help=f"(default: {LESSON}, or several for --development)")
    given = parser.parse_args()
    build = compiled(given.update)
    rates, numbers = given.rate or [RATE], given.steps or [LESSON]
    with build.twin() as twin, tempfile.TemporaryDirectory() as folder:
        if given.development:
            develop(twin, given.steps or STEPS, given.rate or RATES)
        elif given.ablation:
            table("beside the own word")
            print(row("no lesson", over_speakers(twin, "report", 0, 0)))
            for name in NEGATIVES:
                print(row(name, over_speakers(twin, "report", numbers[0], rates[0], name)), flush=True)
        else:
            build.save(Path(folder) / "project")
            report(twin, Path(folder), numbers[0], rates[0])


if __name__ == "__main__":
    main()
