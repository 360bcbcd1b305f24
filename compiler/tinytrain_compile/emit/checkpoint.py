"""Contents of a checkpoint: tensors in order, the numbers permitted in each, and the hash of the model."""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.fused_update import taken_apart
from tinytrain_compile.ops.int8.rescale import SHIFT_MOST
from tinytrain_compile.ops.names import operands

HEAD_BYTES, CRC_BYTES = 16, 4
"""Bytes of a checkpoint before the state (format, model hash, size) and after it (CRC-32)."""
_HASH_FORMAT = 2
"""Version in every hash: increased if the meaning of the same tensors changes."""

ANOTHER_BUILD = "is of another model or another build"
"""Beginning of the fault of a sound checkpoint that belongs to another build."""
_FORMAT = b"TTC2"
_DTYPES = {"float32": "f4", "int32": "i4", "int16": "i2", "int8": "i1", "uint8": "u1", "bits": "u1"}
_KINDS = {"float32": "FINITE", "int8": "SYMMETRIC"}
_RANGES = {"SYMMETRIC": (-127, 127), "SHIFTS": (-SHIFT_MOST, SHIFT_MOST)}


def stored(train: TrainGraph) -> tuple[Value, ...]:
    """Return the state in the order of the stream: the learning rate, then by name, whatever the order of updates."""
    rate = train.learning_rate.name
    return tuple(sorted(train.graph.state, key=lambda value: (value.name != rate, value.name)))


def pieces(train: TrainGraph) -> Iterator[tuple[Value, int]]:
    """Yield the tensors of a checkpoint that are kept, in its order, each with the number of skipped bytes before
    it."""
    kept = {value.name for value in train.graph.state}
    skipped = 0
    for value in stored(train.training_step):
        if value.name in kept:
            yield value, skipped
            skipped = 0
        else:
            skipped += value.size_bytes


def behind(train: TrainGraph) -> int:
    """Return the bytes after the last tensor that is kept."""
    whole = sum(value.size_bytes for value in train.training_step.graph.state)
    return whole - sum(value.size_bytes + skipped for value, skipped in pieces(train))


def model_hash(train: TrainGraph) -> str:
    """Return 64 bits in hexadecimal, equal for builds whose state has the same meaning (see `TrainGraph.identity`)."""
    layout = [(value.name, value.shape, value.dtype) for value in stored(train)]
    return hashlib.sha256(repr((_HASH_FORMAT, train.identity, layout)).encode()).hexdigest()[:16]


def checkpoint_bytes(train: TrainGraph) -> int:
    """Return the bytes of a whole checkpoint."""
    return HEAD_BYTES + sum(value.size_bytes for value in train.graph.state) + CRC_BYTES


def checkpoint_of(train: TrainGraph, state: Mapping[str, Array]) -> bytes:
    """Return the bytes that m_save writes for a state (docs/checkpoint-format.md)."""
    tensors = [np.asarray(state[value.name]).astype(f"<{_DTYPES[value.dtype]}") for value in stored(train)]
    data = b"".join(tensor.tobytes() for tensor in tensors)
    head = _FORMAT + struct.pack("<QI", int(model_hash(train), 16), len(data))
    return head + data + struct.pack("<I", zlib.crc32(head + data))


def checkpoint_fault(data: bytes, train: TrainGraph) -> tuple[str, str]:
    """Return (why a build rejects a checkpoint, what to do). train: the training step of the build."""
    body = sum(value.size_bytes for value in train.graph.state)
    if data[:4] != _FORMAT:
        return _other_file(data)
    if len(data) < HEAD_BYTES:
        return f"ends after {len(data)} bytes", "copy it again"
    known, size = struct.unpack("<QI", data[4:HEAD_BYTES])
    if known != int(model_hash(train), 16):
        what = ANOTHER_BUILD
        if size != body:
            what += f": it has {size:,} B of state, this build {body:,} B"
            return what, "use the model file, --update, --optimizer and --quant of the build that saved it"
        way = "use the model file of the build that saved it"
        if train.integer:
            way += ", and the same --calib file: its samples decide the scales of int8 numbers"
        else:
            way += ", and the same --loss, --optimizer and --update"
        return f"{what}: its tensors have the same sizes, but another meaning", way
    whole = HEAD_BYTES + size + CRC_BYTES
    if len(data) < whole:
        return f"ends after {len(data):,} of {whole:,} bytes", "copy it again"
    if struct.unpack("<I", data[whole - CRC_BYTES : whole])[0] != zlib.crc32(data[: whole - CRC_BYTES]):
        return "is damaged: its checksum does not match", "copy it again, or use an earlier one"
    return "holds numbers that no training makes", "save it again on the device, or use an earlier one"


def _other_file(data: bytes) -> tuple[str, str]:
    """Return what bytes are that are no checkpoint, and what to do."""
    if data and data == data[:1] * len(data):
        return f"is memory that m_save has not written: every byte is 0x{data[0]:02X}", "read it where m_save wrote"
    if re.match(rb":[0-9A-F]{10}|S[0-9][0-9A-F]{6}", data):
        return "is text of a hex file", "convert it: objcopy -I ihex (or srec) -O binary FILE.hex FILE.bin"
    if re.match(rb"54\s*54\s*43\s*32[\s0-9A-Fa-f]", data):  # TTC2
        return "is text of hex digits", "make bytes of it in Python: open('FILE.bin', 'wb').write(bytes.fromhex(text))"
    if data.startswith(b"VFRDM"):  # TTC2
        return "is text in base64", "make bytes of it: base64 -d FILE.txt > FILE.bin"
    if re.match(rb"\x08[\x03-\x0f]", data):  # ONNX begins with its ir_version
        return "is a model, not a checkpoint", "give the bytes that m_save wrote, or a file of twin.save"
    if data.startswith(b"PK\x03\x04"):
        way = "give a file of m_save or twin.save; weights of state_dict: twin.load_state_dict(dict(np.load(FILE)))"
        return "is an .npz, not a checkpoint", way
    what = "is not a checkpoint: it does not begin with TTC2" if data else "is empty"
    return what, "give the bytes that m_save wrote, or a file of twin.save"


def contents(train: TrainGraph) -> dict[str, str]:
    """Map each tensor of the state to its permitted contents, a kind of tt_state.h; "ANY" if every pattern of bits is
    valid.

    The limits are those that the operators keep to, so that no state can take a sum or a shift out of its range. A
    tensor that starts outside of them (a file may have weights of -128) may hold anything.
    """
    kinds = {value.name: _KINDS.get(value.dtype, "ANY") for value in train.graph.state}
    for node in (train.before_remat or train.graph).nodes:
        for part in taken_apart(node):
            kinds.update({name: kind for name, kind in _told(part).items() if name in kinds})
    kinds[train.learning_rate.name] = "NOT_NEGATIVE"
    first = train.graph.constants
    return {name: kind if _holds(kind, first[name]) else "ANY" for name, kind in kinds.items()}


def _told(node: Node) -> dict[str, str]:
    """Return the kinds of the state that an operator overwrites; for parameters, those of their types."""
    owned = op_def(node.op).owned
    if owned is None:
        return {}
    states = {name: kind for name, kind in owned.holds.items() if kind not in ("PARAMETER", "SUM")}
    return {value.name: states[name] for name, value in operands(node).items() if name in states}


def _holds(kind: str, data: Array) -> bool:
    if kind not in _RANGES:
        return True
    low, high = _RANGES[kind]
    return int(np.min(data)) >= low and int(np.max(data)) <= high
