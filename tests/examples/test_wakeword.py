"""examples/wakeword: the firmware listens and learns in QEMU as the recipe does; who judges was not taught."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tests.examples.folders import modules_of
from tests.examples.pages import check_page

WAKEWORD = ROOT / "examples" / "wakeword"
STEPS = 100
"""Of the short lesson."""
needs_voices = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed: make setup installs it"
)


@pytest.fixture
def modules() -> tuple[ModuleType, ModuleType]:
    """speech, recipe."""
    speech, recipe = modules_of(WAKEWORD, "speech", "recipe")
    return speech, recipe


def lesson_decisions(recipe: ModuleType, session: Any, first: int, calls_of_step: int, known: int) -> list[int]:
    """Calls of the lesson in which the word is heard, if each is decided by the weights of one moment.

    first: its first call. known: the slice of a step, from 0 on, that tells the loss. Later calls of the step are
    decided by the weights after it, as the calls of the next one up to its loss.
    """
    rows, mean, found = session.rows, recipe.MEAN, list[int]()
    own, others = recipe.clips_of(session.taught), recipe.shipped()
    with recipe.compiled().twin() as twin:
        for steps in range(STEPS + 1):
            begun = first + steps * calls_of_step  # the next step
            start = first if steps == 0 else begun - calls_of_step + known + 1
            end = begun if steps == STEPS else begun + known + 1
            twin.instance.rehear(rows[(start - mean + 1) * 3 - 180 : (start - mean + 1) * 3])
            heard = twin.instance.hear(rows[(start - mean + 1) * 3 : end * 3]).ravel()
            for call in range(start, end):
                last = heard[call - start : call - start + mean]
                if last.sum() / np.float32(mean) > recipe.CUTOFF and (not found or call >= found[-1] + recipe.REST):
                    found.append(call)
            if steps < STEPS:
                recipe.learn(twin, own, others, 1, recipe.RATE, steps)
    return found


@pytest.mark.qemu
@needs_qemu
@needs_voices
def test_a_short_lesson_in_qemu(tmp_path: Path) -> None:
    """run.py itself ends with 1 if board, host and twin differ in a byte or a decision before or after the lesson."""
    command = [sys.executable, str(WAKEWORD / "run.py"), "--steps", str(STEPS), "--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^equal      yes: ", done.stdout, re.MULTILINE)
    assert re.search(r"^twin       equal: ", done.stdout, re.MULTILINE)
    line = r" .*in (\d+) of 8, .* (\d+) of 12$"
    before, after = (re.findall(part + line, done.stdout, re.MULTILINE) for part in ("^before", "^after"))
    assert int(after[0][0]) >= int(before[0][0]) + 5
    assert int(after[0][1]) <= 3
    assert re.search(r"^meanwhile +the word in [1-9]", done.stdout, re.MULTILINE)
    agreed = re.search(r"^LiteRT     agrees with the device in (\d+) of 20 phrases", done.stdout, re.MULTILINE)
    assert agreed is not None and int(agreed[1]) >= 19
    assert (tmp_path / "learned.tflite").stat().st_size > 50_000
    speech, recipe, _, run = modules_of(WAKEWORD, "speech", "recipe", "stream", "run")
    session = run.session_of(speech.REPORT[0])
    first, (over,) = session.said[1][-1].until // 3, run.calls_of(done.stdout, "the lesson is over")
    calls, rest = divmod(over + 1 - first, STEPS)
    heard = run.calls_of(done.stdout, "heard, in the lesson")
    assert rest == 0 and len(heard) >= 3
    assert heard in [lesson_decisions(recipe, session, first, calls, known) for known in range(calls)]


def test_the_program_is_short_and_has_the_numbers_of_the_recipe(modules: tuple[ModuleType, ModuleType]) -> None:
    _, recipe = modules
    main, clips = ((WAKEWORD / name).read_text(encoding="utf-8") for name in ("main.c", "clips.h"))
    assert len(main.splitlines()) <= 100
    assert float(re.findall(r"CUTOFF = ([0-9.]+)f", main)[0]) == recipe.CUTOFF
    found = {name: int(number) for name, number in re.findall(r"\b([A-Z]+) = (-?\d+)\b", main + clips)}
    names = ("MEAN", "REST", "PLACES", "STEP", "LATEST", "CLIPS", "QUIET")
    assert {name: found[name] for name in names} == {name: getattr(recipe, name) for name in names}


def test_speakers_and_phrases_of_lessons_judge_nothing(modules: tuple[ModuleType, ModuleType]) -> None:
    speech, _ = modules
    speakers = [*speech.KNOWN, *speech.DEVELOPMENT, *speech.REPORT]
    assert len({name.partition("+")[2] for name in speakers}) == len(speakers)
    assert len(speech.REPORT) >= 8
    phrases = [
        *speech.TAUGHT,
        *(text for kind in (speech.CONFUSABLE, speech.ORDINARY) for part in kind.values() for text in part),
    ]
    assert len({*phrases, speech.WORD}) == len(phrases) + 1


@needs_voices
def test_recordings_are_the_same_each_time(modules: tuple[ModuleType, ModuleType]) -> None:
    speech, recipe = modules
    one = speech.recording("en-gb+m1", (speech.WORD, "good morning"), "test")
    (again,) = modules_of(WAKEWORD, "speech")
    assert np.array_equal(one.rows, again.recording.__wrapped__("en-gb+m1", (speech.WORD, "good morning"), "test").rows)
    assert one.rows.shape[1] == 40 and len(one.rows) % speech.CALL == 0
    word, other = recipe.clips_of(one)
    assert (word.label, other.label) == (1, 0)
    end = one.said[0].end
    windows = {one.rows[last - 179 : last].tobytes() for last in range(end - 10, end + 50)}
    assert {word.window(place).tobytes() for place in range(recipe.PLACES)} <= windows


def test_a_decision_by_hand(modules: tuple[ModuleType, ModuleType]) -> None:
    """The mean of five is above 0.95 from call 7 on; the next decision may be made a second and a half later."""
    speech, recipe = modules
    heard = np.r_[np.zeros(3), np.ones(60), np.zeros(20), np.full(30, 0.96)].astype(np.float32)
    calls = recipe.decisions(heard)
    assert calls == [7, 57, 107]
    said = (speech.Said("a", 0, 10, 21), speech.Said("b", 21, 30, 60), speech.Said("c", 172, 180, 200))
    assert recipe.heard(calls, said).tolist() == [False, True, False]


@pytest.mark.slow
@needs_voices
def test_the_page_shows_what_the_commands_print() -> None:
    check_page("examples/wakeword/README.md")
