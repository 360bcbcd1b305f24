"""Speech of synthetic speakers as a microphone's front end gives it: rows of 40 features, one every 10 ms.

Needs espeak-ng (`apt-get install espeak-ng`; pages were made with Debian's 1.51) and PyPI's pymicro-features, the front
end of the wake words of pymicro-wakeword. All randomness comes from the names of speaker and part.
"""

from __future__ import annotations

import io
import subprocess
import wave
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymicro_features import MicroFrontend

WORD = "hey mycroft"
KNOWN = ("en-us+m1", "en-gb-x-rp+f4", "it+f3", "en-029+m7")
"""Speakers whose windows the firmware ships with."""
DEVELOPMENT = (
    *("fr+f2", "de+m2", "en-gb-scotland+m3", "es+f5", "cs+linda", "da+victor", "pt+adam", "nb+belinda"),
    *("hu+Gene", "en-gb+iven"),
)
"""Speakers by which rate and steps were chosen."""
REPORT = (
    *("en-us-nyc+m4", "en-gb-x-gbclan+m5", "en-gb-x-gbcwmd+f1", "hi+m6", "pl+Annie", "sv+Alicia", "nl+m8"),
    *("pt-br+steph", "ro+Andrea", "tr+anika"),
)
"""Speakers by which nothing was chosen. Others, for each of these and of DEVELOPMENT, are the rest of the group."""
TAUGHT = (
    *("hey microsoft", "hey my love", "hey minecraft", "a microscope", "hey mike", "may I crop it"),
    *("what is the weather like today", "turn on the kitchen light", "hey google", "good morning everyone"),
)
"""Phrases that are not the word, of which a lesson has examples: the owner says the first OWN of them."""
CONFUSABLE = {
    "development": ("hey microphone", "hey my craft", "hey michael", "hey mister croft"),
    "report": ("hey my crops", "hey micro", "hey mighty oak", "hey mayflower", "hey my cousin", "a mycologist"),
}
"""Phrases that sound like the word and are in no lesson."""
ORDINARY = {
    "development": (
        "set a timer for five minutes",
        "they harvest in may",
        "hey jarvis",
        "play some jazz for me please",
    ),
    "report": (
        *("is the back door locked", "remind me to call my brother", "okay nabu", "read the news to me"),
        *("how long do eggs take to boil", "turn the volume down a little"),
    ),
}
"""Other phrases that are in no lesson."""
SCALE, ZERO = np.float32(0.10196078568696976), -128
"""Of the model's input: a feature is SCALE * (stored - ZERO)."""
RATE, CALL = 16000, 3
"""Samples in a second; rows of a call of m_hear."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Said:
    """A phrase in a recording: the rows at which it starts and ends, and at which the next one starts."""

    text: str
    start: int
    end: int
    until: int


@dataclass(frozen=True, eq=False)
class Recording:
    """Rows of features (N, 40) in int8, as the model takes them, N a multiple of CALL, and what is said in them."""

    rows: Array
    said: tuple[Said, ...]


def spoken(speaker: str, text: str, speed: int, pitch: int) -> Array:
    """Samples at RATE, in the range of int16, without silence around them."""
    command = ["espeak-ng", "-v", speaker, "-s", str(speed), "-p", str(pitch), "--stdout", text]
    with wave.open(io.BytesIO(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)) as sound:
        rate = sound.getframerate()
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float64)
    loud = np.flatnonzero(np.abs(samples) > 300)
    samples = samples[loud[0] : loud[-1] + 1]
    taps = np.arange(-32, 33)
    low_pass = np.sinc(taps * 2 * 7200 / rate) * np.hamming(len(taps))
    samples = np.convolve(samples, low_pass / low_pass.sum(), "same")
    return np.interp(np.arange(len(samples) * RATE // rate) * rate / RATE, np.arange(len(samples)), samples)


def features(samples: Array) -> Array:
    """Rows (N, 40) of int16 samples at RATE, quantised for the model."""
    front, data, rows, at = MicroFrontend(), samples.astype("<i2").tobytes(), list[list[float]](), 0
    while at + RATE // 100 * 2 <= len(data):
        found = front.process_samples(data[at : at + RATE // 100 * 2])
        at += found.samples_read * 2
        if found.features:
            rows.append(found.features)
    return np.clip(np.rint(np.asarray(rows, np.float32) / SCALE + ZERO), -128, 127).astype(np.int8)


@cache
def recording(speaker: str, texts: Sequence[str], part: str) -> Recording:
    """Two seconds of noise, then the phrases, 1.5 seconds or more apart. Speed, pitch and loudness differ in each."""
    rng = np.random.default_rng(zlib.crc32(f"{speaker} {part}".encode()))
    pieces, said, at = [np.zeros(2 * RATE)], list[Said](), 2 * RATE
    for text in texts:
        samples = spoken(speaker, text, int(rng.integers(125, 190)), int(rng.integers(30, 70)))
        pause = np.zeros(int(rng.uniform(1.5, 2.1) * RATE))
        pieces += [samples * rng.uniform(0.1, 0.5), pause]
        end = at + len(samples)
        said.append(Said(text, *(place * 100 // RATE for place in (at, end, end + len(pause)))))
        at = end + len(pause)
    heard = np.concatenate(pieces)
    heard += rng.normal(0, rng.uniform(5, 60), len(heard))
    rows = features(np.clip(np.rint(heard), -32768, 32767))
    return Recording(rows[: len(rows) // CALL * CALL], tuple(said))


def real(rows: Array) -> Array:
    """Rows as features."""
    return (rows.astype(np.float32) - ZERO) * SCALE
