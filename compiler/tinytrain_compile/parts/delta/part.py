"""Changes by training as a message in C: its tensors, their places, and their data for m_delta.c."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import cast

import numpy as np

from tinytrain_compile.emit.c_text import Names
from tinytrain_compile.emit.checkpoint import CRC_BYTES, HEAD_BYTES, model_hash, stored
from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.ir.buffers import RuntimeBuffer
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.parts.delta.twin import DeltaSlot, DeltaTable, DeltaType
from tinytrain_compile.parts.part import Part, trained_slots

_NUMBER = 2
"""Bytes of an exponent, and of a number."""
_TYPES = {"float32": "float32", "int8": "steps", "int32": "int32"}


def delta_table(train: TrainGraph) -> DeltaTable:
    """Return the trained subset in the order of a checkpoint: only parameters, no optimizer state, no noise."""
    slots, offset = list[DeltaSlot](), HEAD_BYTES
    for value in stored(train):
        part = train.trained.get(value.name)
        if part is None:
            continue
        fine = part.unit is not None and bool(part.unit.fraction)
        kind = cast("DeltaType", _TYPES[value.dtype])
        slots.append(DeltaSlot(value.name, part.parameter, kind, value.elements, offset, fine))
        offset += _NUMBER * (1 + value.elements)
    return DeltaTable(model_hash(train), offset + offset % 4 + CRC_BYTES, tuple(slots))


class Delta(Part):
    """`m_delta.h`."""

    name, row, files = "delta", "runtime", ("delta.h", "delta.c")
    of_weights = True

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Tell m_delta.c about the trained tensors."""
        return {"delta": _data(code.train, code.tables), "shares_weights": True}

    def buffer(self, train: TrainGraph, feature_bytes: int) -> RuntimeBuffer:
        """Return the RAM of a message."""
        size, definition = delta_table(train.training_step).size_bytes, "unsigned char message[{P}_DELTA_BYTES]"
        return RuntimeBuffer(self.name, "message (delta)", size, definition)

    def reports(self, train: TrainGraph, prefix: str) -> Mapping[str, str]:
        """Return m_delta.json: where each tensor is in a delta."""
        return {f"{prefix}_delta.json": json.dumps(asdict(delta_table(train)), indent=1) + "\n"}


def _data(train: TrainGraph, tables: Names) -> dict[str, object]:
    """Return, for every tensor, its place in `state_slots`, that of its fractions, and the tables of both in flash."""
    table, constants = delta_table(train), train.graph.constants

    def in_flash(name: object) -> str:
        return tables.of(str(name)) if name and bool(np.any(constants[str(name)])) else "NULL"

    rows = [
        {**row, "first": in_flash(row["value"]), "first_fraction": in_flash(row["fraction_value"])}
        for row in trained_slots(train)
    ]
    state = next((node.inputs[0].name for node in train.graph.nodes if node.op == "NoiseTick"), None)
    first = 0 if state is None else int(constants[state].reshape(-1)[0]) & 0xFFFFFFFF
    kinds = {slot.type for slot in table.slots}
    return {
        "slots": rows,
        "bytes": table.size_bytes,
        "noise": next((place for place, value in enumerate(stored(train)) if value.name == state), None),
        "first_noise": first,
        "real": "float32" in kinds,
        "whole": bool(kinds - {"float32"}),
        "steps": "steps" in kinds,
        "coarse": any(slot.type == "steps" and not slot.fine for slot in table.slots),
        "fine": any(slot.fine for slot in table.slots),
        "int32": "int32" in kinds,
    }


PART = Delta
