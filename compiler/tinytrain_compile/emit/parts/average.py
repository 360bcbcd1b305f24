"""The mean of trained weights over several states (`--runtime average`): what m_average.c knows of them."""

from __future__ import annotations

from tinytrain_compile.emit.c_text import comment_text
from tinytrain_compile.emit.checkpoint import stored
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.stages import TrainGraph

_KINDS = {"float32": "FLOAT32", "int8": "STEPS", "int32": "INT32"}
_NUMBER = 4
"""Bytes of a mean, a float32, and of the CRC behind all of them."""


def average_data(train: TrainGraph, parts: RuntimeParts) -> dict[str, object] | None:
    """For the templates; None without the part. Of every trained tensor: its place in `state_slots`, its fractions'."""
    if "average" not in parts.names:
        return None
    values = [value for value in stored(train) if value.name in train.trained]
    places = {value.name: place for place, value in enumerate(stored(train))}
    rows: list[dict[str, object]] = []
    for value in values:
        unit = train.trained[value.name].unit
        fraction = unit.fraction if unit is not None else ""
        rows.append(
            {
                "name": comment_text(value.name),
                "place": places[value.name],
                "fraction": f"{places[fraction]}u" if fraction else "NO_SLOT",
                "count": value.elements,
                "kind": _KINDS[value.dtype],
            }
        )
    size = _NUMBER * (1 + sum(value.elements for value in values))
    return {"slots": rows, "bytes": size, "window": parts.average_window}
