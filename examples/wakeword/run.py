"""Compiles a wake word, builds main.c with it, and lets it learn how a new speaker says it, in QEMU.

    python examples/wakeword/run.py
    python examples/wakeword/run.py --speaker hi+m6

The same runs on the host and on the twin, and the three are compared. What was learned goes back into a .tflite, to which
LiteRT listens. Without arm-none-eabi-gcc or qemu-system-arm it trains on the host alone, and says so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from board import Firmware, check_equal, compile_model, facts, say, show, train
from recipe import (
    LESSON,
    MODEL,
    OPTIONS,
    RATE,
    TARGET,
    clips_of,
    compiled,
    decisions,
    heard,
    judged,
    learn,
    listened,
    press_after,
    shipped,
    taught,
)
from speech import CALL, CONFUSABLE, DEVELOPMENT, ORDINARY, REPORT, WORD, Array, Recording, recording
from stream import litert

HERE = Path(__file__).resolve().parent
WORD_BUTTON, OTHER_BUTTON, LEARN_BUTTON = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Session:
    """What a microphone hears: the same speech before the lesson and after it, and other speech in between."""

    before: Recording
    taught: Recording
    meanwhile: Recording

    @property
    def parts(self) -> dict[str, tuple[Recording, int]]:
        """Recordings in which the word is listened for, and the rows before each."""
        starts = np.cumsum([0, len(self.before.rows), len(self.taught.rows), len(self.meanwhile.rows)])
        return {
            "before": (self.before, int(starts[0])),
            "in the lesson": (self.meanwhile, int(starts[2])),
            "after": (self.before, int(starts[3])),
        }

    @property
    def microphone(self) -> bytes:
        """mic.bin: the rows of each call, and a button."""
        rows = np.concatenate([self.before.rows, self.taught.rows, self.meanwhile.rows, self.before.rows])
        calls = rows.reshape(-1, CALL * rows.shape[1])
        buttons, first = np.zeros((len(calls), 1), np.int8), len(self.before.rows) // CALL
        for said in self.taught.said:
            buttons[first + press_after(said) - 1] = WORD_BUTTON if said.text == WORD else OTHER_BUTTON
        buttons[first + len(self.taught.rows) // CALL] = LEARN_BUTTON
        return np.hstack([calls, buttons]).tobytes()


def session_of(speaker: str) -> Session:
    group = "report" if speaker in REPORT else "development"
    phrases = CONFUSABLE[group] + ORDINARY[group]
    meanwhile = tuple(text for phrase in phrases for text in (WORD, phrase))
    return Session(judged(speaker, group, 8, 1), taught(speaker), recording(speaker, meanwhile, "meanwhile"))


def lesson_header(steps: int) -> str:
    """lesson.h: windows of other speakers, and how many steps a lesson has."""
    windows = [(clip.window(i % 4), clip.label) for i, clip in enumerate(shipped())]
    rows = ",\n".join("{{" + "},{".join(",".join(map(str, row)) for row in window.tolist()) + "}}" for window, _ in windows)
    return (
        f"enum {{ LESSON = {steps}, SHIPPED = {len(windows)} }};\n"
        f"static const int8_t shipped[SHIPPED][WINDOW][ROW] = {{\n{rows}}};\n"
        f"static const wake_label_t shipped_labels[SHIPPED] = {{{', '.join(f'{label}.0f' for _, label in windows)}}};\n"
    )


def told(text: str, session: Session) -> dict[str, Array]:
    """For each part, in which phrases the firmware said that it heard the word."""
    calls = [round(float(time) / 0.03) - 1 for time in re.findall(r"([0-9.]+) s  heard", text)]
    return {name: heard(calls, one.said, first) for name, (one, first) in session.parts.items()}


def counts(name: str, one: Recording, found: Array) -> str:
    words = np.array([said.text == WORD for said in one.said])
    right, wrong = (f"{int(found[which].sum())} of {int(which.sum())}" for which in (words, ~words))
    return f"{name:14} the word {right:8}  other phrases {wrong}"


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
    compile_model([show(model), "--name", "wake", *OPTIONS, "--target", TARGET, "-o", show(out), *verify])
    (out / "lesson.h").write_text(lesson_header(given.steps), encoding="utf-8")
    firmware = Firmware(HERE / "main.c", out, {"mic.bin": session.microphone})
    result, host = train(firmware, work, given.host, TARGET)
    found = told(result.text, session)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    say("\n" + "\n".join(counts(name, one, found[name]) for name, (one, _) in session.parts.items()))
    say("\n".join(facts(result, host, report)))
    check_equal(result, host)

    with compiled().twin() as twin:
        before = listened(twin, session.before)
        learn(twin, clips_of(session.taught), shipped(), given.steps, RATE)
        same = twin.instance.save() == result.checkpoint
        after = listened(twin, session.before)
        device = twin.instance.hear(session.before.rows)
    same &= np.array_equal(before, found["before"]) and np.array_equal(after, found["after"])
    say(f"twin       {'equal' if same else 'NOT EQUAL'}: the checkpoint to the byte, and all decisions")

    checkpoint, learned = work / ("host" if host is None else "qemu") / "trained.bin", work / "learned.tflite"
    options = [show(model), "--project", show(out), "--checkpoint", show(checkpoint), "-o", show(learned), "--force"]
    say(f"\nrunning: tinytrain-compile export {' '.join(options)}")
    subprocess.run([sys.executable, "-m", "tinytrain_compile", "export", *options], check=True)
    of_file = litert(learned, session.before.rows)
    agree = heard(decisions(of_file), session.before.said) == found["after"]
    say(f"LiteRT     hears the word in {int(heard(decisions(of_file), session.before.said).sum())} phrases")


if __name__ == "__main__":
    main()
