"""Makes features.npz, what the example trains and judges by, and base.npz, what pretrain.py trains on.

Needs espeak-ng (`apt-get install espeak-ng`; Debian's 1.51 made the committed file). Ten words are said by synthetic
speakers: *old* ones are variants of its American voice; a *new* one is another language's voice, which reads the words
with an accent, in a variant that no old speaker has. Speed, pitch, loudness of the noise and position differ in every
utterance. Features are 10 MFCC of 49 frames (30 ms every 20 ms, 40 mel bands), each coefficient with the mean and the
spread of the base speakers taken out, in eighths, as int8. All randomness comes from the speaker's name.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import wave
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
_NAMES = (
    "adam Alex Andrea Andy antonio AnxiousAndy aunty belinda benjamin boris caleb croak david Demonic Denis "
    "Diogo ed edward edward2 Gene Gene2 grandma grandpa gustave Henrique Hugo iven iven2 iven3 iven4 Jacky "
    "john kaukovalta klatt klatt3 Lee linda marcelo Marco Mario max Michael michel miguel mike Mr Nguyen "
    "norbert pablo paul pedro quincy RicishayMax RicishayMax2 rob robert sandro shelby steph2 Storm travis "
    "Tweaky victor zac"
)
VARIANTS = tuple(_NAMES.split())
_MIXED = tuple(np.random.default_rng(0).permutation(VARIANTS).tolist())
BASE, OLD_DEVELOPMENT, OLD_REPORT = _MIXED[:44], _MIXED[44:54], _MIXED[54:]
"""Variants of the American voice: those that the model is trained on, and others, by which is judged what it still
knows of old speakers, while something is chosen and in the report."""
DEVELOPMENT = ("fr+f2", "de+m3", "it+Alicia", "es+m7", "pl+f4", "en-029+m2", "en-gb-scotland+f3", "hi+m4")
"""New speakers by which model, rates, batch and epochs of this example were chosen."""
REPORT = ("pt-br+f1", "nl+m1", "sv+f5", "ro+m5", "tr+m6", "cs+Annie", "da+anika", "en-gb-x-rp+steph")
"""New speakers by which nothing was chosen: the results that the README reports are theirs."""
OWN, JUDGED, DEVELOPMENT_JUDGED = 5, 10, 6
"""Utterances of a word by a new speaker: to train on, and to judge by (fewer of the development speakers)."""
POOL = 20
"""Of the base speakers' utterances of a word, kept in features.npz: for replay and for the ranges of int8."""
UTTERANCES, OLD_JUDGED = 4, 2
"""Of a word by a base speaker, for pre-training; by another old speaker, to judge by."""

FRAMES, COEFFICIENTS, BANDS = 49, 10, 40
STEPS = 8
"""Stored numbers are standard deviations times this."""
Array = NDArray[Any]


def spoken(voice: str, word: str, speed: int, pitch: int) -> tuple[Array, int]:
    """(samples in -1 to 1 without silence around them, rate in Hz)."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", file.name, word]
        subprocess.run(command, check=True, timeout=30)
        with wave.open(file.name) as sound:
            rate = sound.getframerate()
            samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float64) / 32768
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    if not len(loud):
        raise SystemExit(f"espeak-ng has no sound for {word!r} by {voice}")
    return samples[loud[0] : loud[-1] + 1], rate


def second(samples: Array, rate: int, rng: np.random.Generator) -> Array:
    """One second with the word in it, shifted, in white noise 10 to 25 dB below it."""
    length = rate + rate // 100
    samples = samples[:length]
    free = length - len(samples)
    first = int(np.clip(free / 2 + rng.uniform(-0.1, 0.1) * rate, 0, free))
    level = np.sqrt(np.square(samples).mean()) * 10 ** (-rng.uniform(10, 25) / 20)
    heard = rng.normal(0, level, length)
    heard[first : first + len(samples)] += samples
    return heard


def bands(rate: int, width: int) -> Array:
    """Triangular filters, evenly spaced in mel from 20 Hz to 8 kHz: (BANDS, bins of a spectrum of `width`)."""
    low, high = (1127 * np.log1p(hertz / 700) for hertz in (20, 8000))
    edges = 700 * np.expm1(np.linspace(low, high, BANDS + 2) / 1127)
    bins = np.fft.rfftfreq(width, 1 / rate)
    up = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.clip(np.minimum(up, down), 0, None)


def coefficients(heard: Array, rate: int) -> Array:
    """MFCC (FRAMES, COEFFICIENTS): a type II cosine transform of the log energies of mel bands."""
    frame, hop, width = rate * 30 // 1000, rate * 20 // 1000, 1024
    frames = np.stack([heard[hop * i : hop * i + frame] for i in range(FRAMES)]) * np.hanning(frame)
    power = np.square(np.abs(np.fft.rfft(frames, width)))
    logs = np.log(power @ bands(rate, width).T + 1e-6)
    angles = np.pi / BANDS * np.outer(np.arange(COEFFICIENTS), np.arange(BANDS) + 0.5)
    return logs @ np.cos(angles).T


def utterances(voice: str, count: int, part: str = "") -> tuple[Array, Array]:
    """(MFCC (10 * count, FRAMES, COEFFICIENTS), labels): so many of each word."""
    rng = np.random.default_rng(zlib.crc32(f"{voice} {part}".encode()))
    found = list[Array]()
    for word in WORDS:
        for _ in range(count):
            samples, rate = spoken(voice, word, int(rng.integers(120, 201)), int(rng.integers(20, 81)))
            found.append(coefficients(second(samples, rate, rng), rate))
    return np.stack(found), np.repeat(np.arange(len(WORDS), dtype=np.int32), count)


def all_of(voices: tuple[str, ...], count: int, part: str = "") -> tuple[Array, Array]:
    """Of all these speakers, one after the other."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda voice: utterances(voice, count, part), voices))
    return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])


class Spread:
    """What the base speakers' coefficients are: mean and standard deviation of each."""

    def __init__(self, base: Array) -> None:
        self.mean, self.spread = base.mean(axis=(0, 1)), base.std(axis=(0, 1))

    def stored(self, x: Array) -> Array:
        """As int8, -32 to 31."""
        return np.clip(np.rint((x - self.mean) / self.spread * STEPS), -32, 31).astype(np.int8)


def main() -> None:
    """Make both files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE, help="folder of features.npz (default: this one)")
    parser.add_argument("--base", type=Path, default=HERE / "out" / "base.npz", help="file for pretrain.py")
    given = parser.parse_args()
    base, labels = all_of(tuple(f"en-us+{name}" for name in BASE), UTTERANCES)
    spread = Spread(base)
    given.base.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.base, x=spread.stored(base), y=labels)
    order = np.random.default_rng(5).permutation(len(labels))
    pool = np.sort(np.concatenate([order[labels[order] == word][:POOL] for word in range(len(WORDS))]))
    arrays: dict[str, Array] = {"pool_x": spread.stored(base[pool]), "pool_y": labels[pool]}
    for part, names in (("old_development", OLD_DEVELOPMENT), ("old_report", OLD_REPORT)):
        x, y = all_of(tuple(f"en-us+{name}" for name in names), OLD_JUDGED)
        arrays |= {f"{part}_x": spread.stored(x), f"{part}_y": y}
    for speakers, judged in ((DEVELOPMENT, DEVELOPMENT_JUDGED), (REPORT, JUDGED)):
        for voice in speakers:
            for part, count in (("own", OWN), ("test", judged)):
                x, y = all_of((voice,), count, part)
                arrays |= {f"{voice}/{part}_x": spread.stored(x), f"{voice}/{part}_y": y}
    np.savez_compressed(given.out / "features.npz", **arrays)
    print(f"wrote {given.base}: {len(labels)} utterances; {given.out / 'features.npz'}: {len(arrays) // 2} parts")


if __name__ == "__main__":
    main()
