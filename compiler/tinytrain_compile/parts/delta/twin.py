"""Deltas on the desk: conversion between messages of m_delta_get and arrays, using only the slot table
(docs/fleet.md)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import read_file

_FORMAT, _LARGEST = 0x31445454, 32767
"""FORMAT ("TTD1") and LARGEST (a number is an int16) of delta.c.j2."""
_REAL_RANGE, _WHOLE_RANGE = (-100, 113), (0, 16)
"""Ranges of exponents, for real numbers and for integers."""

DeltaType = Literal["float32", "steps", "int32"]
"""Unit of a number of a delta: real numbers; 1/256 step of an int8 weight; units of an int32 bias."""


@dataclass(frozen=True)
class DeltaSlot:
    """A trained tensor in a delta (docs/fleet.md): an int16 exponent, followed by `count` int16 numbers.

    offset: of the exponent, in bytes from the start of the delta. parameter: the tensor's name in the imported graph.
    fine: whether an int8 weight has a fraction on the device (else it keeps whole steps).
    """

    name: str
    parameter: str
    type: DeltaType
    count: int
    offset: int
    fine: bool = False


@dataclass(frozen=True)
class DeltaTable:
    """A delta of a build: its tensors, its size, and the hash of the model that it belongs to (hexadecimal)."""

    model_hash: str
    size_bytes: int
    slots: tuple[DeltaSlot, ...]


Changes = Mapping[str, NDArray[np.float64]]
"""Change of each tensor, flat, by its name: real numbers, 1/256 steps of int8 weights, units of biases."""


@dataclass(frozen=True)
class Deltas:
    """Reads and writes deltas of one model."""

    table: DeltaTable

    @classmethod
    def load(cls, path: Path | str) -> Deltas:
        """Load the file m_delta.json of an output folder. Raises CompileError E0105 for anything else."""
        try:
            content: dict[str, Any] = json.loads(read_file(Path(path)))
            slots = tuple(DeltaSlot(**slot) for slot in content.pop("slots"))
            return cls(DeltaTable(slots=slots, **content))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else None
            what = "no table of a delta" + (f" ({why})" if why else "")
            raise CompileError("E0105", str(path), what, "give the m_delta.json of an output") from problem

    def read(self, message: bytes) -> Changes:
        """Read what a message says. Raises CompileError E0105 for one of another model, or a damaged one."""
        body, crc = message[:-4], message[-4:]
        known = len(message) == self.table.size_bytes and body[:16] == self._head()
        if not known or zlib.crc32(body) != int.from_bytes(crc, "little"):
            raise CompileError("E0105", "delta", "of another model, or damaged", "give what m_delta_get has written")
        for slot in self.table.slots:
            (exponent,), (low, high) = np.frombuffer(body, "<i2", 1, slot.offset), _range(slot)
            if not low <= exponent <= high:
                what = f"{slot.name} has the exponent {exponent}, not one from {low} to {high}"
                raise CompileError("E0105", "delta", what, "leave this device out: no build writes that")
        return {slot.name: _numbers(slot, body) for slot in self.table.slots}

    def write(self, changes: Changes) -> bytes:
        """Write the message of such changes, each rounded as the device rounds them. Raises ValueError for others."""
        body = bytearray(self._head().ljust(self.table.size_bytes - 4, b"\0"))
        for slot in self.table.slots:
            change = np.asarray(changes[slot.name], np.float64).reshape(-1)
            if change.size != slot.count or not np.isfinite(change).all():
                raise ValueError(f"{slot.name}: {slot.count} finite numbers are needed")
            body[slot.offset : slot.offset + 2 * (1 + slot.count)] = _packed(slot, change)
        return bytes(body) + zlib.crc32(body).to_bytes(4, "little")

    def mean(self, messages: Iterable[bytes], weights: Iterable[float] | None = None) -> bytes:
        """Write the message of the mean change; weights: of each device, for instance its samples (None: all alike)."""
        read = [self.read(message) for message in messages]
        share = None if weights is None else list(weights)
        return self.write(
            {
                slot.name: np.average(np.stack([change[slot.name] for change in read]), axis=0, weights=share)
                for slot in self.table.slots
            }
        )

    def _head(self) -> bytes:
        content = self.table.size_bytes - 20
        words = (
            _FORMAT.to_bytes(4, "little"),
            bytes.fromhex(self.table.model_hash)[::-1],
            content.to_bytes(4, "little"),
        )
        return b"".join(words)


def _range(slot: DeltaSlot) -> tuple[int, int]:
    """Return the range of exponents that a device accepts."""
    return _REAL_RANGE if slot.type == "float32" else _WHOLE_RANGE


def _numbers(slot: DeltaSlot, body: bytes) -> NDArray[np.float64]:
    exponent, *_ = np.frombuffer(body, "<i2", 1, slot.offset)
    return np.ldexp(np.frombuffer(body, "<i2", slot.count, slot.offset + 2).astype(np.float64), int(exponent))


def _packed(slot: DeltaSlot, change: NDArray[np.float64]) -> bytes:
    """Pack changes by the smallest exponent that the largest fits; ties to even if real, else away from zero."""
    real = slot.type == "float32"
    low, high = _range(slot)
    peak = float(np.abs(change).max(initial=0))
    exponent = int(np.clip(np.frexp(peak)[1] - 15, low, high)) if peak else 0

    def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
        scaled = np.ldexp(values, -exponent)
        return np.rint(scaled) if real else np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)

    while exponent < high and rounded(np.asarray([peak]))[0] > _LARGEST:
        exponent += 1
    numbers = np.clip(rounded(change), -_LARGEST, _LARGEST).astype("<i2")
    return np.asarray([exponent], "<i2").tobytes() + numbers.tobytes()
