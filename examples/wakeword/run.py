"""Compiles a wake word, builds main.c with it, and lets it learn how a new speaker says it, in QEMU.

    python examples/wakeword/run.py
    python examples/wakeword/run.py --speaker hi+m6

The same runs on the host and on the twin, and the three are compared. The learned weights go back into a .tflite, and
LiteRT listens with it. Without arm-none-eabi-gcc or qemu-system-arm it trains on the host alone, and says so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from board import Firmware, check_equal, compile_model, facts, say, show, train
from recipe import (
    CLIPS,
    KEPT,
    LESSON,
    MODEL,
    OPTIONS,
    RATE,
    TARGET,
    Clip,
    clips_of,
    compiled,
    decisions,
    heard,
    judged,
    learn,
    listened,
    press_after,
    probabilities,
    shipped,
    taught,
)
from speech import CALL, CONFUSABLE, DEVELOPMENT, ORDINARY, REPORT, WORD, Array, Recording, Said, recording
from stream import by_litert

HERE = Path(__file__).resolve().parent
WORD_BUTTON, OTHER_BUTTON, LEARN_BUTTON = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Session:
    """What a microphone hears: the same speech before the lesson and after it, and other speech in between."""

    before: Recording
    taught: Recording
    meanwhile: Recording

    @property
    def rows(self) -> Array:
        return np.concatenate([part.rows for part in (self.before, self.taught, self.meanwhile, self.before)])

    @property
    def said(self) -> tuple[tuple[Said, ...], ...]:
        """Phrases of the four parts, by rows of the whole."""
        found, first = list[tuple[Said, ...]](), 0
        for part in (self.before, self.taught, self.meanwhile, self.before):
            found.append(
                tuple(Said(one.text, *(first + at for at in (one.start, one.end, one.until))) for one in part.said)
            )
            first += len(part.rows)
        return tuple(found)

    @property
    def microphone(self) -> bytes:
        """mic.bin: the rows of each call, and a button."""
        calls = self.rows.reshape(-1, CALL * self.rows.shape[1])
        buttons, taught = np.zeros((len(calls), 1), np.int8), self.said[1]
        for said in taught:
            buttons[press_after(said) - 1] = WORD_BUTTON if said.text == WORD else OTHER_BUTTON
        buttons[taught[-1].until // CALL] = LEARN_BUTTON
        return np.hstack([calls, buttons]).tobytes()

    def shown(self, line: str, _so_far: str) -> str:
        """A line of the firmware, with what was said at that time."""
        calls, phrases = calls_of(line), [one for part in self.said for one in part]
        return f"  {line:34}" + "".join(one.text for one in phrases if calls and heard(calls, [one]).any())


def session_of(speaker: str) -> Session:
    group = "report" if speaker in REPORT else "development"
    meanwhile = tuple(text for phrase in CONFUSABLE[group] + ORDINARY[group] for text in (WORD, phrase))
    return Session(judged(speaker, group, 8, 1), taught(speaker), recording(speaker, meanwhile, "meanwhile"))


def lesson_header(windows: Sequence[Clip], steps: int) -> str:
    """lesson.h: windows of other speakers, and how many steps a lesson has."""
    rows = ("{" + ", ".join("{" + ", ".join(map(str, row)) + "}" for row in one.rows.tolist()) + "}" for one in windows)
    labels = ", ".join(f"{one.label}.0f" for one in windows)
    return (
        f"enum {{ LESSON = {steps}, SHIPPED = {len(windows)} }};\n"
        f"static const wake_label_t shipped_labels[SHIPPED] = {{{labels}}};\n"
        "static const int8_t shipped[SHIPPED][WINDOW][ROW] = {\n" + ",\n".join(rows) + "};\n"
    )


def calls_of(text: str, what: str = "heard") -> list[int]:
    """Calls of m_hear in which the firmware said so."""
    return [round(float(time) / 0.03) - 1 for time in re.findall(rf"([0-9.]+) s  {what}", text)]


def counts(name: str, said: Sequence[Said], found: Array) -> str:
    words = np.array([one.text == WORD for one in said])
    right, wrong = (f"{found[which].sum()} of {which.sum()}" for which in (words, ~words))
    return f"{name:12} the word in {right}, other phrases in {wrong}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--speaker", default=REPORT[0], choices=(*DEVELOPMENT, *REPORT), help=f"(default: {REPORT[0]})")
    parser.add_argument("--work", type=Path, default=HERE / "out", help="folder for everything that is made")
    parser.add_argument("--steps", type=int, default=LESSON, help=f"of the lesson (default: {LESSON})")
    parser.add_argument("--host", action="store_true", help="train on the host only, even where QEMU is installed")
    given = parser.parse_args()
    work, session = given.work.resolve(), session_of(given.speaker)
    work.mkdir(parents=True, exist_ok=True)
    model, out = work / MODEL.name, work / "generated"
    shutil.copy(MODEL, model)
    verify = ["--verify", "host"] if given.host else []
    compile_model([show(model), "--name", "wake", *OPTIONS, "--target", TARGET, "--count", "-o", show(out), *verify])
    windows = shipped()
    (out / "lesson.h").write_text(lesson_header(windows, given.steps), encoding="utf-8")
    firmware = Firmware(HERE / "main.c", out, {"mic.bin": session.microphone}, session.shown)
    result, host = train(firmware, work, given.host, TARGET)
    over = calls_of(result.text, "the lesson is over")
    if not over or over[0] * CALL > session.said[3][0].start:
        sys.exit(f"a lesson of {given.steps} steps is longer than the speech of this session")
    before, _, meanwhile, after = session.said
    parts = {"before": before, "meanwhile": [one for one in meanwhile if one.until <= over[0] * CALL], "after": after}
    found = {name: heard(calls_of(result.text), said) for name, said in parts.items()}
    say("\n" + "\n".join(counts(name, said, found[name]) for name, said in parts.items()))
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    say("\n".join(facts(result, host, report)))
    own = clips_of(session.taught)
    ram = KEPT * own[0].rows.shape[1] + CLIPS * own[0].rows.nbytes
    flash = sum(one.rows.nbytes for one in windows)
    say(f"besides    {ram:,} B of RAM for rows and clips, {flash:,} B of flash for windows of others")
    check_equal(result, host)
    with compiled().twin() as twin:
        same = np.array_equal(listened(twin, session.before), found["before"])
        learn(twin, own, windows, given.steps, RATE)
        same &= twin.instance.save() == result.checkpoint
        device = probabilities(twin, session.before)
        same &= np.array_equal(heard(decisions(device), session.before.said), found["after"])
    say(f"twin       {'equal' if same else 'NOT EQUAL'}: bytes of the checkpoint, decisions before and after\n")

    checkpoint, learned = work / ("host" if host is None else "qemu") / "trained.bin", work / "learned.tflite"
    options = ["--project", show(out), "--checkpoint", show(checkpoint), "-o", show(learned), "--force"]
    compile_model(["export", show(model), *options])
    file = by_litert(learned, session.before.rows)
    agreed = heard(decisions(file), session.before.said) == found["after"]
    say(f"LiteRT     agrees with the device in {agreed.sum()} of {len(agreed)} phrases")
    say(f"           probabilities of {len(file)} calls differ by up to {np.abs(file - device).max():.2f}")
    if not same:
        sys.exit("the twin and the firmware computed different bytes: please report this")


if __name__ == "__main__":
    main()
