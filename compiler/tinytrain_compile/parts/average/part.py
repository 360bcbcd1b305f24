"""The mean of trained weights over several states in C: the values of m_average.c's template."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.parts.part import Part, trained_slots

_NUMBER = 4
"""Bytes of a mean (a float32), and of the CRC after all of them."""


class Average(Part):
    """`m_average.h`."""

    name, row, files = "average", "runtime", ("average.h", "average.c")
    has_fragments = True
    of_weights = True
    uncounted = "in flash or RAM of yours"

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return for every trained tensor its place in `state_slots` and that of its fractions."""
        elements = sum(v.elements for v in code.train.graph.state if v.name in code.train.trained)
        average = {
            "slots": trained_slots(code.train),
            "bytes": _NUMBER * (1 + elements),
            "window": self.asked.average_window,
        }
        prefix = code.interface.prefix
        lend = {"lend": f"{prefix}_lend", "take_back": f"{prefix}_take_back"}
        return {"average": average, "shares_weights": True, **lend}


PART = Average
