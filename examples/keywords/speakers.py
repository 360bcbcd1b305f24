"""The parts of features.npz by speaker; called as a program, it writes what `finetune` and a compilation read.

python examples/keywords/speakers.py --speaker nl+m1 -o own.npz --calib calib.npz
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from make_data import REPORT, STEPS
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
ORDER = 7
"""Seed of the order in which a new speaker says the words."""
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Part:
    """Features (N, 49, 10) as they are stored, and which word each is."""

    x: Array
    y: Array

    @property
    def real(self) -> Array:
        """As the network takes them: (N, 1, 49, 10)."""
        return (self.x / np.float32(STEPS)).astype(np.float32)[:, None]

    @property
    def records(self) -> bytes:
        """As the firmware reads them: the features and the word of each sample, one byte each."""
        return np.hstack([self.x.reshape(len(self.x), -1), self.y[:, None].astype(np.int8)]).tobytes()


@dataclass(frozen=True, eq=False)
class Parts:
    """own, test: of a new speaker, to train on and to judge by. pool, old: of speakers that the model was trained on,
    for replay and for ranges, and of others with their voice, by which is judged what is still known of them."""

    own: Part
    test: Part
    pool: Part
    old: Part

    @property
    def for_finetune(self) -> Mapping[str, Array]:
        """Arrays as docs/finetune.md names them. Old samples: the pool, and as many of the others."""
        old_x, old_y = (np.concatenate([getattr(self.pool, k), getattr(self.old, k)]) for k in ("real", "y"))
        return {
            "x": self.own.real,
            "y": self.own.y,
            "x_test": self.test.real,
            "y_test": self.test.y,
            "x_old": old_x,
            "y_old": old_y,
        }

    @property
    def files(self) -> dict[str, bytes]:
        """What main.c reads, by name."""
        parts = {"own": self.own, "test": self.test, "pool": self.pool, "old": self.old}
        return {f"{name}.bin": part.records for name, part in parts.items()}


def parts_of(speaker: str) -> Parts:
    """Of one of make_data.DEVELOPMENT or make_data.REPORT; own words and those of the pool are mixed."""
    rng = np.random.default_rng(ORDER)
    with np.load(HERE / "features.npz") as data:
        if f"{speaker}/own_x" not in data:
            known = sorted(name.partition("/")[0] for name in data if name.endswith("/own_x"))
            raise SystemExit(f"no speaker {speaker!r}: {', '.join(known)}")
        old = "old_report" if speaker in REPORT else "old_development"
        names = (f"{speaker}/own", f"{speaker}/test", "pool", old)
        own, test, pool, judged = (Part(data[f"{name}_x"], data[f"{name}_y"]) for name in names)
    mixed = [Part(part.x[order], part.y[order]) for part in (own, pool) for order in [rng.permutation(len(part.y))]]
    return Parts(mixed[0], test, mixed[1], judged)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--speaker", default=REPORT[0], help=f"(default: {REPORT[0]})")
    parser.add_argument("-o", "--out", type=Path, default=Path("own.npz"), help="own samples (default: own.npz)")
    parser.add_argument("--calib", type=Path, default=Path("calib.npz"), help="for ranges (default: calib.npz)")
    given = parser.parse_args()
    parts = parts_of(given.speaker)
    np.savez_compressed(given.out, **parts.for_finetune)
    np.savez_compressed(given.calib, x=parts.pool.real)
    counts = ", ".join(f"{name} {len(array)}" for name, array in parts.for_finetune.items())
    print(f"wrote {given.out}: {counts}; {given.calib}: x {len(parts.pool.x)}")


if __name__ == "__main__":
    main()
