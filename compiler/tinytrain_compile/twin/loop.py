"""The parts of the loop around the step on the desk: what --runtime makes in C, to the bit (docs/training-loop.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np

from tinytrain_compile.ops.scalar_math import sin

Sample = TypeVar("Sample")

_WORD = 0xFFFFFFFF
_ODD = 0x9E3779B1


def mixed(word: int) -> int:
    """tt_mix: every bit of a 32-bit word changes about half of the result's (MurmurHash3's last step)."""
    word ^= word >> 16
    word = word * 0x85EBCA6B & _WORD
    word ^= word >> 13
    word = word * 0xC2B2AE35 & _WORD
    return word ^ word >> 16


@dataclass
class Reservoir(Generic[Sample]):
    """`m_replay_t`: in a full one every sample that was ever offered is with the same probability.

    That is algorithm R (Vitter, Random Sampling with a Reservoir, 1985): the n-th sample takes the place of a random
    one of the n, if that is in the reservoir. samples: what is held, by slot.
    """

    capacity: int
    seed: int = 0
    fresh: int = 1
    old: int = 1
    seen: int = 0
    drawn: int = 0
    samples: list[Sample] = field(default_factory=list[Sample])
    _owed: int = 0

    def mix(self, fresh: int, old: int) -> None:
        """`m_replay_mix`: so many old samples for so many new ones."""
        self.fresh, self.old, self._owed = fresh, old, 0

    def due(self) -> bool:
        """`m_replay_due`: whether the next sample to train on is an old one."""
        if not self.samples:
            return False
        if self._owed >= self.fresh:
            self._owed -= self.fresh
            return True
        self._owed += self.old
        return False

    def add(self, sample: Sample) -> None:
        """`m_replay_add`: offers a sample."""
        self.seen = min(self.seen + 1, _WORD)
        if len(self.samples) < self.capacity:
            self.samples.append(sample)
            return
        slot = self._below(self.seen)
        if slot < self.capacity:
            self.samples[slot] = sample

    def draw(self) -> Sample:
        """`m_replay_draw`: one of the samples; IndexError where there is none."""
        if not self.samples:
            raise IndexError("the reservoir is empty")
        return self.samples[self._below(len(self.samples))]

    def _below(self, count: int) -> int:
        bits = mixed((self.seed + self.drawn * _ODD) & _WORD)
        self.drawn += 1
        return bits * count >> 32


def _float(value: float) -> np.float32:
    return np.float32(value)


@dataclass(frozen=True)
class Schedule:
    """`m_schedule_t`: the learning rate of every update, operation by operation as the C computes it in float32."""

    kind: Literal["constant", "step", "cosine"]
    rate: float
    warm_up: int = 0
    every: int = 1
    factor: float = 1.0
    last: float = 0.0

    def rate_of(self, update: int) -> float:
        """`m_schedule_rate`: of an update, numbered from 0."""
        rate, last = _float(self.rate), _float(self.last)
        if update < self.warm_up:
            return float(rate * (_float(update + 1) / _float(self.warm_up)))
        done = update - self.warm_up
        if self.kind == "step":
            return float(rate * _power(_float(self.factor), done // self.every))
        if self.kind == "cosine":
            part = _half_cosine(done, self.every) if done < self.every else _float(0.0)
            return float(part * rate + (_float(1.0) - part) * last)
        return float(rate)


def _power(factor: np.float32, n: int) -> np.float32:
    result = _float(1.0)
    while n:
        result = result * factor if n % 2 else result
        factor, n = factor * factor, n // 2
    return result


def _half_cosine(done: int, whole: int) -> np.float32:
    """(1 + cos(pi done / whole)) / 2 by the sine of half the angle, or of what is left to a right angle."""
    left = whole - done
    sine = sin(np.asarray([_float(min(done, left)) / _float(whole) * _float(1.57079637)], np.float32))[0]
    return _float(1.0) - sine * sine if done < left else sine * sine


@dataclass
class Running:
    """`m_running_t`: a mean of all values; from the `window`-th on each new one counts 1 / window."""

    window: int
    count: int = 0
    mean: float = 0.0

    def add(self, value: float) -> None:
        """`m_running_add`."""
        self.count = min(self.count + 1, self.window)
        mean = _float(self.mean)
        self.mean = float(mean + (_float(value) - mean) / _float(self.count))


@dataclass
class Stop:
    """`m_stop_t`: stops where `patience` values, one after the other, are no better than the best by `least`."""

    larger: bool
    least: float
    patience: int
    best: float = 0.0
    count: int = 0
    since: int = 0

    def add(self, value: float) -> Literal["better", "not better", "stop"]:
        """`m_stop_add`."""
        gain = _float(value) - _float(self.best) if self.larger else _float(self.best) - _float(value)
        self.count += 1
        if self.count == 1 or gain > _float(self.least):
            self.best, self.since = float(_float(value)), 0
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
        """`m_spread_add`."""
        mean, squares = _float(self.mean), _float(self.squares)
        off = _float(value) - mean
        self.count += 1
        mean = mean + off / _float(self.count)
        self.mean, self.squares = float(mean), float(squares + off * (_float(value) - mean))

    def threshold(self, k: float) -> float:
        """`m_spread_threshold`: mean + k sigma."""
        if self.count == 0:
            return 0.0
        sigma = np.sqrt(_float(self.squares) / _float(self.count))  # tt_sqrtf rounds correctly, as this does
        return float(_float(self.mean) + _float(k) * sigma)


def percentile(values: Iterable[float], per_mille: int) -> float:
    """`m_percentile`: the smallest value that at least so many of a thousand do not exceed."""
    ranked = sorted(float(_float(value)) for value in values)
    return ranked[max((len(ranked) * per_mille + 999) // 1000 - 1, 0)]


@dataclass
class Vote:
    """`m_vote_t`: the majority of the last classes; of several the one that came last."""

    length: int
    last: list[int] = field(default_factory=list[int])

    def add(self, value: int) -> int:
        """`m_vote_add`: the winner."""
        self.last = [value, *self.last][: self.length]
        return max(self.last, key=self.last.count)
