"""A step that is computed in slices: how long its parts take by the target's figures (ADR 37)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.parts.part import Part


class Slices(Part):
    """`m_step_begin` and `m_step_slice`."""

    name, has_fragments = "slices", True

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the parts of the step with their cycles."""
        fields = [*code.model["first_fields"], "m->next_part = 0;"]
        return {"slices": code.slices, "open_call": "next_part", "first_fields": fields}

    def together(self, codes: Sequence[PlanCode]) -> None:
        """Say the cycles of a step and of its longest part, the most of any plan."""
        for code in codes:
            code.model |= {
                "step_cycles": max(sum(part.cycles for part in each.slices) for each in codes),
                "longest_cycles": max(part.cycles for each in codes for part in each.slices),
            }


PART = Slices
