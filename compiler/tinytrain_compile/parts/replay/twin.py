"""The reservoir of past samples on the desk: equal to m_replay.c, to the bit (docs/training-loop.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Sample = TypeVar("Sample")

_WORD, _ODD = 0xFFFFFFFF, 0x9E3779B1
"""32 bits; the prime next to 2**32 over the golden ratio, as in replay.c.j2: draws are far apart (fixed_point.py)."""


def mixed(word: int) -> int:
    """Mix as tt_mix does: every bit of a 32-bit word changes about half of the result's (MurmurHash3's last step)."""
    word ^= word >> 16
    word = word * 0x85EBCA6B & _WORD
    word ^= word >> 13
    word = word * 0xC2B2AE35 & _WORD
    return word ^ word >> 16


@dataclass
class Reservoir(Generic[Sample]):
    """`m_replay_t`: every sample offered so far is equally likely to be in a full one.

    This is algorithm R (Vitter, Random Sampling with a Reservoir, 1985): the n-th sample takes the place of a random
    one of the n, if that is in the reservoir. samples: contents, by slot.
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
        """Set the number of old samples per number of new ones (`m_replay_mix`)."""
        self.fresh, self.old, self._owed = fresh, old, 0

    def due(self) -> bool:
        """Tell whether the next sample to train on is an old one (`m_replay_due`)."""
        if not self.samples:
            return False
        if self._owed >= self.fresh:
            self._owed -= self.fresh
            return True
        self._owed += self.old
        return False

    def add(self, sample: Sample) -> None:
        """Offer a sample (`m_replay_add`)."""
        self.seen = min(self.seen + 1, _WORD)
        if len(self.samples) < self.capacity:
            self.samples.append(sample)
            return
        slot = self._below(self.seen)
        if slot < self.capacity:
            self.samples[slot] = sample

    def draw(self) -> Sample:
        """Draw one of the samples (`m_replay_draw`). IndexError if there is none."""
        if not self.samples:
            raise IndexError("the reservoir is empty")
        return self.samples[self._below(len(self.samples))]

    def _below(self, count: int) -> int:
        bits = mixed((self.seed + self.drawn * _ODD) & _WORD)
        self.drawn += 1
        return bits * count >> 32
