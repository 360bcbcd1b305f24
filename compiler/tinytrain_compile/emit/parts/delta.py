"""What training has changed, as a message: its tensors and their places, and what m_delta.c knows of them."""

from __future__ import annotations

from typing import cast

import numpy as np

from tinytrain_compile.emit.c_text import Names, comment_text
from tinytrain_compile.emit.checkpoint import CRC_BYTES, HEAD_BYTES, model_hash, stored
from tinytrain_compile.ir.runtime_parts import DeltaSlot, DeltaTable, DeltaType
from tinytrain_compile.ir.stages import TrainGraph

_NUMBER = 2
"""Bytes of an exponent, and of a number."""
_TYPES = {"float32": "float32", "int8": "steps", "int32": "int32"}


def delta_table(train: TrainGraph) -> DeltaTable:
    """The trained subset in the order of a checkpoint: parameters alone, no optimizer, no noise."""
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


def delta_data(train: TrainGraph, tables: Names) -> dict[str, object]:
    """For the templates. Of every tensor: its place in `state_slots`, that of its fractions, what flash has of both."""
    table, constants = delta_table(train), train.graph.constants
    places = {value.name: place for place, value in enumerate(stored(train))}

    def in_flash(name: str) -> str:
        return tables.of(name) if name and bool(np.any(constants[name])) else "NULL"

    rows: list[dict[str, object]] = []
    for slot in table.slots:
        unit = train.trained[slot.name].unit
        fraction = unit.fraction if unit is not None else ""
        rows.append(
            {
                "name": comment_text(slot.name),
                "place": places[slot.name],
                "fraction": f"{places[fraction]}u" if fraction else "NO_SLOT",
                "count": slot.count,
                "kind": slot.type.upper(),
                "first": in_flash(slot.name),
                "first_fraction": in_flash(fraction),
            }
        )
    state = next((node.inputs[0].name for node in train.graph.nodes if node.op == "NoiseTick"), None)
    first = 0 if state is None else int(constants[state].reshape(-1)[0]) & 0xFFFFFFFF
    kinds = {slot.type for slot in table.slots}
    return {
        "slots": rows,
        "bytes": table.size_bytes,
        "noise": None if state is None else places[state],
        "first_noise": first,
        "real": "float32" in kinds,
        "whole": bool(kinds - {"float32"}),
        "steps": "steps" in kinds,
        "coarse": any(slot.type == "steps" and not slot.fine for slot in table.slots),
        "fine": any(slot.fine for slot in table.slots),
        "int32": "int32" in kinds,
    }
