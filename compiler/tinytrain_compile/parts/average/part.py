"""The mean of trained weights over several states in C: what m_average.c knows of them."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.emit.c_text import comment_text
from tinytrain_compile.emit.checkpoint import stored
from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.parts.part import Part

_KINDS = {"float32": "FLOAT32", "int8": "STEPS", "int32": "INT32"}
_NUMBER = 4
"""Bytes of a mean, a float32, and of the CRC behind all of them."""


class Average(Part):
    """`m_average.h`."""

    name, row, files = "average", "runtime", ("average.h", "average.c")
    of_weights = True
    uncounted = "in flash or RAM of yours"

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return for every trained tensor its place in `state_slots` and that of its fractions."""
        train, order = code.train, stored(code.train)
        places = {value.name: place for place, value in enumerate(order)}
        rows: list[dict[str, object]] = []
        for value in order:
            if value.name not in train.trained:
                continue
            unit = train.trained[value.name].unit
            fraction = unit.fraction if unit is not None else ""
            row: dict[str, object] = {
                "name": comment_text(value.name),
                "place": places[value.name],
                "fraction": f"{places[fraction]}u" if fraction else "NO_SLOT",
                "count": value.elements,
                "kind": _KINDS[value.dtype],
            }
            rows.append(row)
        size = _NUMBER * (1 + sum(value.elements for value in order if value.name in train.trained))
        lend = {"lend": f"{code.interface.prefix}_lend", "take_back": f"{code.interface.prefix}_take_back"}
        average = {"slots": rows, "bytes": size, "window": self.asked.average_window}
        return {"average": average, "shares_weights": True, **lend}


PART = Average
