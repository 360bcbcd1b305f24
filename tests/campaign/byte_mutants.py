"""Mutants of files on the level of bytes, and of the protobuf wire format (whose lengths stay right)."""

from __future__ import annotations

from random import Random

VARINTS = (0, 1, 2, 7, 10, 11, 127, 128, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
LENGTHS = (1, 2, 3, 8, 64, 512)


def byte_mutant(data: bytes, source: Random) -> bytes:
    """Flipped bits, changed bytes, cut or repeated pieces."""
    result = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4))):
        place = source.randrange(len(result) + 1)
        kind = source.randrange(6)
        if kind == 0 and place < len(result):
            result[place] ^= 1 << source.randrange(8)
        elif kind == 1 and place < len(result):
            result[place] = source.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del result[place : place + source.choice(LENGTHS)]
        elif kind == 3:
            result[place:place] = result[place : place + source.choice(LENGTHS)]
        elif kind == 4:
            result[place:place] = source.randbytes(source.choice((1, 2, 4)))
        elif source.randrange(4) == 0:
            del result[max(place, 1) :]
    return bytes(result)


def splice(one: bytes, other: bytes, source: Random) -> bytes:
    """The head of one file and the tail of another, or a piece of the other inside the one."""
    cut, start = source.randrange(len(one) + 1), source.randrange(len(other) + 1)
    if source.randrange(2):
        return one[:cut] + other[start:]
    return one[:cut] + other[start : start + source.choice(LENGTHS)] + one[cut:]


Field = tuple[int, int, bytes]
"""(number, wire type, payload: a varint's or a fixed number's bytes, or what a length stands before)"""


def wire_mutant(data: bytes, source: Random) -> bytes:
    """One to three fields of a protobuf changed, lost, repeated or exchanged, somewhere in the tree of messages."""
    for _ in range(source.choice((1, 1, 2, 3))):
        data = _mutated(data, source, depth=0)
    return data


def _mutated(data: bytes, source: Random, depth: int) -> bytes:
    fields = read_fields(data)
    if not fields:
        return byte_mutant(data, source) if data else source.randbytes(3)
    place = source.randrange(len(fields))
    number, wire, payload = fields[place]
    if wire == 2 and depth < 8 and source.randrange(5):
        fields[place] = (number, wire, _mutated(payload, source, depth + 1))
        return write_fields(fields)
    kind = source.randrange(6)
    if kind == 0:
        del fields[place]
    elif kind == 1:
        fields.insert(source.randrange(len(fields) + 1), fields[place])
    elif kind == 2:
        other = source.randrange(len(fields))
        fields[place], fields[other] = fields[other], fields[place]
    elif kind == 3:
        fields[place] = (source.randrange(1, 30), wire, payload)
    elif wire == 0:
        fields[place] = (number, wire, varint(source.choice(VARINTS)))
    else:
        fields[place] = (number, wire, byte_mutant(payload, source) if wire == 2 else source.randbytes(len(payload)))
    return write_fields(fields)


def read_fields(data: bytes) -> list[Field]:
    """The fields of a message; empty if the bytes are none."""
    fields: list[Field] = []
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        number, wire = key >> 3, key & 7
        if place < 0 or not number or wire not in (0, 1, 2, 5):
            return []
        if wire == 0:
            value, end = _read_varint(data, place)
            payload = varint(value)
        else:
            size, place = _read_varint(data, place) if wire == 2 else (8 if wire == 1 else 4, place)
            end = place + size
            payload = data[place:end]
        if end < 0 or place < 0 or end > len(data):
            return []
        fields.append((number, wire, payload))
        place = end
    return fields


def write_fields(fields: list[Field]) -> bytes:
    """The message of these fields."""
    parts = [varint(n << 3 | w) + (varint(len(payload)) if w == 2 else b"") + payload for n, w, payload in fields]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """A number from 0 to 2^64 - 1."""
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes(result) + bytes((value,))


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The number, and where it ends; -1 if it does not."""
    value = shift = 0
    while 0 <= place < len(data) and shift < 70:
        value |= (data[place] & 127) << shift
        place += 1
        if data[place - 1] < 128:
            return value & 2**64 - 1, place
        shift += 7
    return 0, -1
