"""The learning rate of every update on the desk: equal to m_schedule.c, to the bit (docs/training-loop.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinytrain_compile.ops.scalar_math import sin


@dataclass(frozen=True)
class Schedule:
    """`m_schedule_t`: the learning rate of every update, computed in float32 with the same operations as the C."""

    kind: Literal["constant", "step", "cosine"]
    rate: float
    warm_up: int = 0
    every: int = 1
    factor: float = 1.0
    last: float = 0.0

    def rate_of(self, update: int) -> float:
        """Compute the rate of an update, numbered from 0 (`m_schedule_rate`)."""
        rate, last = np.float32(self.rate), np.float32(self.last)
        if update < self.warm_up:
            return float(rate * (np.float32(update + 1) / np.float32(self.warm_up)))
        done = update - self.warm_up
        if self.kind == "step":
            return float(rate * _power(np.float32(self.factor), done // self.every))
        if self.kind == "cosine":
            part = _half_cosine(done, self.every) if done < self.every else np.float32(0.0)
            return float(part * rate + (np.float32(1.0) - part) * last)
        return float(rate)


def _power(factor: np.float32, n: int) -> np.float32:
    result = np.float32(1.0)
    while n:
        result = result * factor if n % 2 else result
        factor, n = factor * factor, n // 2
    return result


def _half_cosine(done: int, whole: int) -> np.float32:
    """Compute (1 + cos(pi done / whole)) / 2 from the sine of half the angle, or of the rest to a right angle."""
    left = whole - done
    sine = sin(np.asarray([np.float32(min(done, left)) / np.float32(whole) * np.float32(1.57079637)], np.float32))[0]
    return np.float32(1.0) - sine * sine if done < left else sine * sine
