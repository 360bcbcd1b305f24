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
class _Class:
    """`m_replay_class_t`."""

    offered: int = 0
    held: int = 0
    last: int = 0


@dataclass
class Reservoir(Generic[Sample]):
    """`m_replay_t`: balances classes, and keeps within each every sample with about the same probability.

    If it is full, a new sample takes the place of a random one of the largest class. A sample of a class that is as
    large, but for one, is judged within its class: the n-th that is offered takes the place of a random one of the n,
    if that is kept (algorithm R: Vitter, Random Sampling with a Reservoir, 1985). This follows Chrysakis and Moens,
    Online Continual Learning from Imbalanced Data, 2020. samples: contents, by slot; labels: their classes.
    """

    capacity: int
    seed: int = 0
    fresh: int = 1
    old: int = 1
    drawn: int = 0
    turns: int = 0
    samples: list[Sample] = field(default_factory=list[Sample])
    labels: list[int] = field(default_factory=list[int])
    _owed: int = 0
    _classes: dict[int, _Class] = field(default_factory=dict[int, _Class])

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

    def add(self, sample: Sample, label: int = 0) -> None:
        """Offer a sample (`m_replay_add`). label: its class, negative if it does not count; 0 if labels are values."""
        its = self._classes.setdefault(label, _Class())
        its.offered = min(its.offered + 1, _WORD)
        self.turns = its.last = self.turns + 1
        if len(self.samples) < self.capacity:
            self.samples.append(sample)
            self.labels.append(label)
        else:
            most = max(sorted(self._classes, key=_place), key=lambda one: self._classes[one].held)
            is_large = its.held > 0 and its.held + 1 >= self._classes[most].held
            leaves = label if is_large else most
            number = self._below(its.offered if is_large else self._classes[most].held)
            if number >= self._classes[leaves].held:
                return
            slot = self._slots(leaves)[number]
            self.samples[slot], self.labels[slot] = sample, label
            self._classes[leaves].held -= 1
        its.held += 1

    def draw(self) -> Sample:
        """Draw one of the samples of the class that was trained longest ago (`m_replay_draw`).

        IndexError if there is none.
        """
        if not self.samples:
            raise IndexError("the reservoir is empty")
        held = [label for label, one in self._classes.items() if one.held]
        label = min(held, key=lambda one: self._classes[one].last)
        slot = self._slots(label)[self._below(self._classes[label].held)]
        self.turns = self._classes[label].last = self.turns + 1
        return self.samples[slot]

    def _slots(self, label: int) -> list[int]:
        return [slot for slot, one in enumerate(self.labels) if one == label]

    def _below(self, count: int) -> int:
        bits = mixed((self.seed + self.drawn * _ODD) & _WORD)
        self.drawn += 1
        return bits * count >> 32


def _place(label: int) -> int:
    """Return the place of a class in C, where labels that do not count come last."""
    return label if label >= 0 else _WORD
