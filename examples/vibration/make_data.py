"""What the sensor on a bearing sees: synthetic vibration of shafts, sound and with faults, as spectra.

A machine has its own speed, harmonics, gear, two resonances and noise, and works in three states (speed, load). Its
resonances drift as it grows warm, and a new one's sensor is mounted otherwise than in the factory. Faults are small.
A window of 1,024 samples at 4,096 Hz becomes the log of the power in 48 bands, each with the mean and the spread of the
base machines taken out, in eighths, as int8. All randomness comes from the number of the machine: the same number gives
the same samples.

    python examples/vibration/make_data.py --machine 200 -o own.npz
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE_HZ, WINDOW, BANDS, STEPS = 4096, 1024, 48, 8
"""Stored numbers are standard deviations times STEPS."""
STATES = ((0.8, 0.5), (1.0, 1.0), (1.2, 1.5))
"""Speed and load, of the machine's own."""
FAULTS = ("bearing", "imbalance", "misalignment", "gear")
BASE = tuple(range(24))
"""Machines of the factory."""
DEVELOPMENT = tuple(range(100, 108))
"""New machines by which generator, network, rate and epochs were chosen."""
REPORT = tuple(range(200, 216))
"""New machines by which nothing was chosen."""
OWN, SOUND, FAULTY = 300, 300, 240
"""Windows of a new machine: sound ones to learn from, then sound ones and as many of each fault to judge by."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Machine:
    """speed in Hz; harmonics: amplitudes of the first six; resonances in Hz, with their width; noise: its amplitude;
    tilt: log gain of the highest band against the lowest, by how the sensor is mounted."""

    speed: float
    harmonics: Array
    teeth: int
    gear: float
    resonances: Array
    widths: Array
    noise: float
    tilt: float


def machine(number: int) -> Machine:
    """The machine of a number."""
    rng = np.random.default_rng([7, number])
    return Machine(
        speed=rng.uniform(20, 30),
        harmonics=np.array([1.0, 0.5, 0.3, 0.2, 0.1, 0.1]) * np.exp(rng.normal(0, 0.4, 6)),
        teeth=int(rng.integers(17, 29)),
        gear=0.3 * float(np.exp(rng.normal(0, 0.4))),
        resonances=np.array([rng.uniform(700, 1000), rng.uniform(1300, 1800)]),
        widths=rng.uniform(40, 120, 2),
        noise=0.5 * float(np.exp(rng.normal(0, 0.3))),
        tilt=float(rng.normal(0, 0.3 if number in BASE else 1.0)),
    )


def window(one: Machine, rng: np.random.Generator, warmth: float, fault: str = "") -> Array:
    """The log power of a window in BANDS bands. warmth: 0 to 1, moves the resonances by up to 4 %."""
    speed, load = STATES[int(rng.integers(len(STATES)))]
    turn = one.speed * speed * (1 + 0.01 * rng.standard_normal())
    time, size = np.arange(WINDOW) / RATE_HZ, rng.uniform(0.5, 1.5)
    gains = np.ones(6)
    gains[0] += 4 * size * (fault == "imbalance")
    gains[1] += 4 * size * (fault == "misalignment")
    signal = np.zeros(WINDOW)
    for k, (own, gain) in enumerate(zip(one.harmonics, gains, strict=True), 1):
        signal += load * own * gain * np.sin(2 * np.pi * (k * turn * time + rng.uniform()))
    depth = 0.1 + 1.5 * size * (fault == "gear")
    mesh = 1 + depth * np.sin(2 * np.pi * (turn * time + rng.uniform()))
    signal += load * one.gear * mesh * np.sin(2 * np.pi * (one.teeth * turn * time + rng.uniform()))
    driven = one.noise * rng.standard_normal(WINDOW)
    if fault == "bearing":
        hits = np.arange(rng.uniform(), WINDOW * 3.57 * turn / RATE_HZ)
        driven[np.minimum((hits * RATE_HZ / (3.57 * turn)).astype(int), WINDOW - 1)] += 6 * size * one.noise
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE_HZ)
    centres = one.resonances * (1 + 0.04 * warmth)
    through = 0.3 + sum(2 / (1 + ((bins - f) / w) ** 2) for f, w in zip(centres, one.widths, strict=True))
    power = np.abs(np.fft.rfft(signal * np.hanning(WINDOW)) + np.fft.rfft(driven * np.hanning(WINDOW)) * through) ** 2
    bands = np.array([part.sum() for part in np.array_split(power[1:], BANDS)])
    return np.log(bands + 1e-3) + one.tilt * np.linspace(-0.5, 0.5, BANDS)


@cache
def known() -> Array:
    """Log powers of the base machines, by which bands are scaled and the factory sets its threshold."""
    return np.concatenate([raw(number, "base", 40) for number in BASE])


def raw(number: int, part: str, count: int, fault: str = "", warmth: tuple[float, float] = (0, 1)) -> Array:
    """(count, BANDS) log powers of a machine, in the order of time: it warms from one end of `warmth` to the other."""
    rng = np.random.default_rng([11, number, *part.encode(), *fault.encode()])
    return np.stack([window(machine(number), rng, warm, fault) for warm in np.linspace(*warmth, count)])


def stored(logs: Array) -> Array:
    """As int8, in eighths of the base machines' spread."""
    mean, spread = known().mean(axis=0), known().std(axis=0)
    return np.clip(np.rint((logs - mean) / spread * STEPS), -127, 127).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Parts:
    """Of a new machine, as stored: own to learn from, then what it is judged by; y: 1 for a fault."""

    own: Array
    x: Array
    y: Array


def parts_of(number: int) -> Parts:
    """The machine is judged when it is a little warmer than while it learned."""
    sound = raw(number, "sound", SOUND, warmth=(0.3, 1.2))
    faulty = [raw(number, "faulty", FAULTY // len(FAULTS), fault, (0.3, 1.2)) for fault in FAULTS]
    y = np.repeat([0, 1], [SOUND, FAULTY]).astype(np.int32)
    own = stored(raw(number, "own", OWN))
    mixed = np.random.default_rng([13, number]).permutation(OWN)
    return Parts(own[mixed], stored(np.concatenate([sound, *faulty])), y)


def real(x: Array) -> Array:
    """As the network takes them."""
    return (x / np.float32(STEPS)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machine", type=int, default=REPORT[0], help=f"(default: {REPORT[0]})")
    parser.add_argument("-o", "--out", type=Path, default=Path("own.npz"), help="(default: own.npz)")
    given = parser.parse_args()
    parts = parts_of(given.machine)
    np.savez_compressed(given.out, x=real(parts.own), x_test=real(parts.x), y_test=parts.y)
    print(f"wrote {given.out}: x {len(parts.own)}, x_test {len(parts.x)} ({int(parts.y.sum())} with a fault)")


if __name__ == "__main__":
    main()
