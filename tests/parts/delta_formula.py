"""What deltas have to be, in exact fractions, from nothing but checkpoints and docs/fleet.md."""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction

import numpy as np

from tinytrain_compile.emit.checkpoint import stored
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.parts.delta.part import delta_table
from tinytrain_compile.parts.delta.twin import Deltas


def tensors(graph: TrainGraph, checkpoint: bytes) -> dict[str, list[Fraction]]:
    """Every tensor of a checkpoint, exactly."""
    found, at = dict[str, list[Fraction]](), 16
    for value in stored(graph):
        data = np.frombuffer(checkpoint, value.dtype, value.elements, at)
        found[value.name] = [Fraction(number) for number in data.tolist()]
        at += data.nbytes
    assert at + 4 == len(checkpoint)
    return found


def counted(graph: TrainGraph, state: dict[str, list[Fraction]]) -> dict[str, list[Fraction]]:
    """What a delta counts of a state: numbers, units of biases, 1/256 steps."""
    found = dict[str, list[Fraction]]()
    for name, part in sorted(graph.trained.items()):
        numbers = state[name]
        if graph.graph.constants[name].dtype == np.int8:
            fine = state[part.unit.fraction] if part.unit and part.unit.fraction else [Fraction(0)] * len(numbers)
            numbers = [256 * whole + fraction for whole, fraction in zip(numbers, fine, strict=True)]
        found[name] = numbers
    return found


def is_real(graph: TrainGraph, name: str) -> bool:
    return graph.graph.constants[name].dtype == np.float32


def nearest(number: Fraction, real: bool) -> int:
    """Ties to even for real numbers (as round has it), else away from zero."""
    if real:
        return round(number)
    return int(abs(number) + Fraction(1, 2)) * (-1 if number < 0 else 1)


def expected(graph: TrainGraph, now: bytes, first: bytes, hash_text: str) -> bytes:
    """The message that m_delta_get has to write."""
    states = [counted(graph, tensors(graph, checkpoint)) for checkpoint in (now, first)]
    body = b""
    for name in states[0]:
        real = is_real(graph, name)
        changes = [a - b for a, b in zip(*(state[name] for state in states), strict=True)]
        if real:
            changes = [Fraction(float(np.float32(change))) for change in changes]
        exponent = (-100 if any(changes) else 0) if real else 0
        while max(abs(nearest(change / Fraction(2) ** exponent, real)) for change in changes) > 32767:
            exponent += 1
        body += struct.pack("<h", exponent)
        body += struct.pack(f"<{len(changes)}h", *(nearest(c / Fraction(2) ** exponent, real) for c in changes))
    body += b"\0" * (len(body) % 4)
    body = b"TTD1" + bytes.fromhex(hash_text)[::-1] + struct.pack("<I", len(body)) + body
    return body + struct.pack("<I", zlib.crc32(body))


def assert_applied(graph: TrainGraph, after: bytes, before: bytes, first: bytes, message: bytes) -> None:
    """A parameter is what flash has plus the message's change, rounded as stated; nothing else has moved."""
    table = delta_table(graph)
    changes = Deltas(table).read(message)
    now, was = tensors(graph, after), tensors(graph, before)
    whole, begun = counted(graph, now), counted(graph, tensors(graph, first))
    touched = set(graph.trained)
    for slot in table.slots:
        unit = graph.trained[slot.name].unit
        touched |= {unit.fraction} if unit is not None and unit.fraction else set()
        wanted = [b + Fraction(c) for b, c in zip(begun[slot.name], changes[slot.name].tolist(), strict=True)]
        if slot.type == "float32":
            assert whole[slot.name] == [Fraction(float(np.float32(float(value)))) for value in wanted]
        elif slot.type == "int32":
            assert whole[slot.name] == wanted
        elif slot.fine:
            assert whole[slot.name] == [min(max(value, -32640), 32639) for value in wanted]
        else:
            limited = [min(max(value, -127 * 256), 127 * 256) for value in wanted]
            assert all(abs(a - b) < 256 for a, b in zip(whole[slot.name], limited, strict=True))
            assert all(a == b for a, b in zip(whole[slot.name], limited, strict=True) if b % 256 == 0)
    assert {key: value for key, value in now.items() if key not in touched} == {
        key: value for key, value in was.items() if key not in touched
    }
