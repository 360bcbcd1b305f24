"""What this example trains with, and how the firmware's loop goes on the desk: the twin computes the same bytes.

Rate and steps were chosen on the development speakers by results.py; what is reported is of others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymicro_wakeword
from speech import CALL, CONFUSABLE, KNOWN, ORDINARY, TAUGHT, WORD, ZERO, Array, Recording, Said, real, recording

import tinytrain_compile as tt
from tinytrain_compile.twin import Twin

MODELS = Path(pymicro_wakeword.__file__).parent / "models"
MODEL = MODELS / "hey_mycroft.tflite"
SETTINGS = json.loads((MODELS / "hey_mycroft.json").read_text(encoding="utf-8"))["micro"]
CUTOFF, MEAN = SETTINGS["probability_cutoff"], SETTINGS["sliding_window_size"]
"""The word is heard if the mean of the last MEAN probabilities is above CUTOFF."""
WINDOW = 179
"""Rows on which an output depends."""
RATE, LESSON = 0.0001, 200
TARGET, OPTIONS = (
    "cortex-m4",
    ("--update", "all", "--head", "int8", "--lr", str(RATE), "--listen", "on", "--slices", "on"),
)
OWN_WORDS, OWN_OTHERS, SHIPPED_WORDS = 5, 6, 3
"""What the owner says before a lesson; utterances of the word by each known speaker in flash."""
PRESSED = 70
"""Rows from the end of a phrase to the owner's button."""
PLACES, STEP, LATEST, KEPT, CLIPS, QUIET, STRIDE, REST = 4, 6, 30, 360, 11, -70, 5, 50
"""As in clips.h and main.c."""


@dataclass(frozen=True, eq=False)
class Clip:
    """Rows with what was said, and 1 if it was the word, else 0."""

    rows: Array
    label: int

    def window(self, place: int) -> Array:
        """One of its PLACES windows."""
        return self.rows[place * STEP : place * STEP + WINDOW]


def compiled(update: str = "all", head: str = "int8") -> tt.Compiled:
    """A build of the model that listens."""
    return tt.compile(
        MODEL, target=TARGET, update=update, head=head, listen="on", slices="on", name="wake", verify="none"
    )


def kept_clip(rows: Array, text: str) -> Clip:
    """keep_clip in clips.h: of what was heard up to the press of a button."""
    length = WINDOW + STEP * (PLACES - 1)
    kept = np.vstack([np.full((KEPT, rows.shape[1]), ZERO, np.int8), rows])[-KEPT:]
    speech = kept.astype(int).sum(axis=1) > QUIET * rows.shape[1]
    end = KEPT - LATEST
    while end > length and not speech[end - 1]:
        end -= 1
    return Clip(kept[end + LATEST - length : end + LATEST], int(text == WORD))


def press_after(said: Said) -> int:
    """Calls of m_hear up to that in which the owner presses a button."""
    return (said.end + PRESSED) // CALL


def clips_of(heard: Recording) -> list[Clip]:
    """One for each phrase."""
    return [kept_clip(heard.rows[: press_after(said) * CALL], said.text) for said in heard.said]


def taught(speaker: str, others: bool = True) -> Recording:
    """What the owner says before a lesson."""
    return recording(speaker, (WORD,) * OWN_WORDS + TAUGHT[: OWN_OTHERS if others else 0], "taught")


def shipped() -> list[Clip]:
    """A window of each phrase of the known speakers, at places that differ, in the order of lessons."""
    found = [clip for one in KNOWN for clip in clips_of(recording(one, (WORD,) * SHIPPED_WORDS + TAUGHT, "shipped"))]
    mixed = [found[i] for i in np.random.default_rng(1).permutation(len(found))]
    return [Clip(clip.window(i % PLACES), clip.label) for i, clip in enumerate(mixed)]


def learn(twin: Twin, own: Sequence[Clip], others: Sequence[Clip], steps: int, rate: float, begun: int = 0) -> None:
    """So many steps of the lesson of main.c, from number `begun` on. Without others, all windows are the owner's."""
    for turn in range(begun, begun + steps):
        i = turn // 2 if others else turn
        if others and turn % 2:
            clip = others[i % len(others)]
        else:
            clip = own[i * STRIDE % len(own)]
            clip = Clip(clip.window(i // len(own) % PLACES), clip.label)
        twin.train_step(real(clip.rows)[None], np.array([[clip.label]], np.float32), lr=rate)


def probabilities(twin: Twin, one: Recording) -> Array:
    """Of each call of m_hear, from empty rings on."""
    twin.instance.load(twin.instance.save())
    return twin.instance.hear(one.rows).ravel()


def decisions(heard: Array, cutoff: float = CUTOFF) -> list[int]:
    """Calls in which the word is heard by probabilities (N), as main.c decides."""
    found, last = list[int](), np.zeros(MEAN, np.float32)
    for call, probability in enumerate(heard):
        last[call % MEAN] = probability
        if last.sum() / np.float32(MEAN) > np.float32(cutoff) and (not found or call >= found[-1] + REST):
            found.append(call)
    return found


def heard(calls: Sequence[int], said: Sequence[Said]) -> Array:
    """For each phrase, whether one of these calls lies between its start and the next one's."""
    at = np.asarray(calls) * CALL
    return np.array([bool(((one.start <= at) & (at < one.until)).any()) for one in said])


def listened(twin: Twin, one: Recording) -> Array:
    """For each phrase of a recording, whether the twin hears the word in it."""
    return heard(decisions(probabilities(twin, one)), one.said)


def judged(speaker: str, group: str, words: int, takes: int) -> Recording:
    """Speech that is in no lesson: the word, then confusable phrases, then ordinary ones. group: key of CONFUSABLE."""
    return recording(speaker, (WORD,) * words + (CONFUSABLE[group] + ORDINARY[group]) * takes, "judged")
