"""Journals on the desk: records, names of samples, and the chain, as m_journal.c computes them (docs/journal.md)."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array

HEAD, HEAD_WORDS = "journal", 9
"""Usual name of the tensor of the state with the number of updates and the head of the chain; its 32-bit words."""
KEY_BYTES = 32
"""Bytes of a key."""
_FIXED, _NAME, _LINK = struct.Struct("<5I"), 16, 8
"""Number, samples, rate, noise and loss; then a name of every sample, and the link."""


@dataclass(frozen=True)
class Record:
    """An update: its number from 1, the bits of rate and loss, the noise after it, and the names of its samples.

    link: the first bytes of the chain's value. content: all bytes before these.
    """

    number: int
    rate: int
    noise: int
    loss: int
    names: tuple[bytes, ...]
    link: bytes
    content: bytes


@dataclass(frozen=True)
class Layout:
    """Form of the records of a build. samples: of an update, at most."""

    samples: int

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return _FIXED.size + self.samples * _NAME + _LINK

    def record(self, data: bytes) -> Record:
        """Read one record. ValueError for a number of samples that no update has."""
        number, count, rate, noise, loss = _FIXED.unpack_from(data)
        if not 1 <= count <= self.samples:
            raise ValueError(f"{count} samples")
        names = tuple(data[at : at + _NAME] for at in range(_FIXED.size, _FIXED.size + count * _NAME, _NAME))
        return Record(number, rate, noise, loss, names, data[-_LINK:], data[:-_LINK])


@dataclass(frozen=True)
class Chain:
    """Links of the journal of a model. model_hash: hexadecimal, as a checkpoint has it. key: None for none."""

    model_hash: str
    key: bytes | None = None

    def after(self, head: bytes, content: bytes) -> bytes:
        """Return the head after a record, by the head before it."""
        message = head + model_bytes(self.model_hash) + content
        if self.key is None:
            return hashlib.sha256(message).digest()
        return hmac.digest(self.key, message, "sha256")


def model_bytes(model_hash: str) -> bytes:
    """Return the 8 bytes that stand for a model in the chain."""
    return bytes.fromhex(model_hash)[::-1]


def name_of(x: Array, y: Array | None) -> bytes:
    """Return the name of a sample. x: as the input slot holds it; y: its label, None if the loss reads none."""
    label = b"" if y is None else np.ascontiguousarray(y).tobytes()
    return hashlib.sha256(np.ascontiguousarray(x).tobytes() + label).digest()[:_NAME]


def head_of(state: Array) -> tuple[int, bytes]:
    """Return the number of updates and the head of the chain of a state's tensor."""
    data = np.ascontiguousarray(state).tobytes()
    return int.from_bytes(data[:4], "little"), data[4:]


def state_of(number: int, head: bytes) -> Array:
    """Return the tensor of the state with this number of updates and this head."""
    return np.frombuffer(number.to_bytes(4, "little") + head, np.int32)
