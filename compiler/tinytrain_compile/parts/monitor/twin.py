"""Monitor on the desk: equal to m_monitor.c, to the bit (docs/training-loop.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np


@dataclass
class Running:
    """`m_running_t`: a mean of all values; from the `window`-th on each new one counts 1 / window."""

    window: int
    count: int = 0
    mean: float = 0.0

    def add(self, value: float) -> None:
        """Take a value (`m_running_add`)."""
        self.count = min(self.count + 1, self.window)
        mean = np.float32(self.mean)
        self.mean = float(mean + (np.float32(value) - mean) / np.float32(self.count))


SLOW_STEPS, LEVEL_STEPS, FAST_STEPS = 200, 100, 25
"""Window of a level, steps after which it counts, and the window that notices a collapse."""
SLOW_SHARE, FAST_SHARE = 0.85, 0.75
"""Trust above that of guessing, as a share of the untrained model's, below which a model is worse
(`python -m benchmarks divergence`)."""
_ALL = 4_000_000


@dataclass
class Watch:
    """`m_watch_t`: compares the losses of training steps with those of the untrained model.

    classes: of the label, 0 if it is not a class. scale: 1 for a cross-entropy; for another loss, what the untrained
    model typically has.
    """

    classes: int
    scale: float = 1.0
    untrained: Running = field(default_factory=lambda: Running(_ALL))
    slow: Running = field(default_factory=lambda: Running(SLOW_STEPS))
    fast: Running = field(default_factory=lambda: Running(FAST_STEPS))

    def add_untrained(self, loss: float) -> None:
        """Take a loss of the untrained model (`m_watch_untrained`)."""
        self.untrained.add(self._trust(loss))

    def add(self, loss: float) -> Literal["healthy", "worse"]:
        """Take the loss of a training step, infinite if it failed; and judge (`m_watch_add`)."""
        if not self.untrained.count:
            return "healthy"
        trust = self._trust(loss)
        self.slow.add(trust)
        self.fast.add(trust)
        gain = self._gain(self.untrained)
        sunk = self.slow.count >= LEVEL_STEPS and self._gain(self.slow) < np.float32(SLOW_SHARE) * gain
        fell = self.fast.count >= FAST_STEPS and self._gain(self.fast) < np.float32(FAST_SHARE) * gain
        return "worse" if sunk or fell else "healthy"

    def _gain(self, running: Running) -> np.float32:
        """Subtract what guessing a class would give."""
        guessing = np.float32(1) / np.float32(self.classes) if self.classes else np.float32(0)
        return np.float32(running.mean) - guessing

    def _trust(self, loss: float) -> float:
        """Compute about exp(-loss): of a cross-entropy, the probability of the right class."""
        if not np.isfinite(loss):
            return 0.0
        one, half = np.float32(1), np.float32(0.5)
        off = max(np.float32(loss), np.float32(0)) / np.float32(self.scale)
        with np.errstate(over="ignore"):
            return float(one / (one + off + half * off * off))


@dataclass
class Stop:
    """`m_stop_t`: stops after `patience` successive values that are not better than the best by `least`."""

    larger: bool
    least: float
    patience: int
    best: float = 0.0
    count: int = 0
    since: int = 0

    def add(self, value: float) -> Literal["better", "not better", "stop"]:
        """Take a value, and judge (`m_stop_add`)."""
        gain = np.float32(value) - np.float32(self.best) if self.larger else np.float32(self.best) - np.float32(value)
        self.count += 1
        if self.count == 1 or gain > np.float32(self.least):
            self.best, self.since = float(np.float32(value)), 0
            return "better"
        self.since += 1
        return "stop" if self.since >= self.patience else "not better"


@dataclass
class Spread:
    """`m_spread_t`: mean and spread of values by Welford's recurrence (Technometrics 4, 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Take a value (`m_spread_add`)."""
        mean, squares = np.float32(self.mean), np.float32(self.squares)
        off = np.float32(value) - mean
        self.count += 1
        mean = mean + off / np.float32(self.count)
        self.mean, self.squares = float(mean), float(squares + off * (np.float32(value) - mean))

    def threshold(self, k: float) -> float:
        """Compute mean + k sigma (`m_spread_threshold`)."""
        if self.count == 0:
            return 0.0
        sigma = np.sqrt(np.float32(self.squares) / np.float32(self.count))  # tt_sqrtf rounds correctly, like this
        return float(np.float32(self.mean) + np.float32(k) * sigma)


def percentile(values: Iterable[float], per_mille: int) -> float:
    """Find the smallest value that at least `per_mille` of a thousand do not exceed (`m_percentile`)."""
    ranked = sorted(float(np.float32(value)) for value in values)
    return ranked[max((len(ranked) * per_mille + 999) // 1000 - 1, 0)]


@dataclass
class Vote:
    """`m_vote_t`: the majority of the last classes; if several tie, the latest one."""

    length: int
    last: list[int] = field(default_factory=list[int])

    def add(self, value: int) -> int:
        """Take a class, and return the winner (`m_vote_add`)."""
        self.last = [value, *self.last][: self.length]
        return max(self.last, key=self.last.count)
