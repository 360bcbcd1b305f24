"""What a medium holds, read from its bytes as docs/power-cuts.md describes them: another reader than the C."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

_WHOLE, _CHANGES = b"TTW1", b"TTC1"
_HEAD, _BLOCK = struct.Struct("<4sIII"), 32


@dataclass(frozen=True)
class Saved:
    """A state: its number, and the bytes of its checkpoint."""

    sequence: int
    checkpoint: bytes


@dataclass(frozen=True)
class Layout:
    """How a medium is divided. model_hash: M_MODEL_HASH."""

    slots: int
    slot_bytes: int
    unit: int
    model_hash: int

    def units(self, size: int) -> int:
        return -(-size // self.unit) * self.unit


def states_in(medium: bytes, layout: Layout) -> list[Saved]:
    """The state of every slot that holds one, the newest first (numbers that do not go round)."""
    slots = (medium[i * layout.slot_bytes : (i + 1) * layout.slot_bytes] for i in range(layout.slots))
    found = [saved for slot in slots if (saved := _state(slot, layout)) is not None]
    return sorted(found, key=lambda saved: -saved.sequence)


def _state(slot: bytes, layout: Layout) -> Saved | None:
    at, link, state = 0, zlib.crc32(struct.pack("<Q", layout.model_hash)), None
    while at + _HEAD.size < len(slot):
        kind, sequence, size, _wear = _HEAD.unpack_from(slot, at)
        end = at + layout.units(_HEAD.size + size)
        if kind != (_WHOLE if state is None else _CHANGES) or end + 4 > len(slot):
            break
        link = zlib.crc32(slot[at : at + _HEAD.size + size], link)
        if slot[end : end + 4] != struct.pack("<I", link):
            break
        body = slot[at + _HEAD.size : at + _HEAD.size + size]
        state = Saved(sequence, body if state is None else _changed(state.checkpoint, body))
        at = end + layout.units(4)
    return state


def _changed(checkpoint: bytes, changes: bytes) -> bytes:
    new, at = bytearray(checkpoint), 0
    while at < len(changes):
        start = struct.unpack_from("<I", changes, at)[0] * _BLOCK
        size = min(_BLOCK, len(new) - start)
        new[start : start + size] = changes[at + 4 : at + 4 + size]
        at += 4 + size
    return bytes(new)
