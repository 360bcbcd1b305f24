"""A step that is computed in slices: the times of its parts by the target's figures (ADR 37)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.ir.stages import Inference
from tinytrain_compile.ir.summary import SlicedStep, Summary
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.layout import bytes_text, grouped, plural, share


class Slices(Part):
    """`m_step_begin` and `m_step_slice`."""

    flag = "--slices on"
    name, row, has_fragments = "slices", "slices", True

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the parts of the step with their cycles."""
        fields = [*code.model["first_fields"], "m->next_part = 0;"]
        return {"slices": code.slices, "open_call": "next_part", "first_fields": fields}

    def together(self, codes: Sequence[PlanCode]) -> None:
        """Add the cycles of a step and of its longest part, the most of any plan."""
        for code in codes:
            code.model |= {
                "step_cycles": max(sum(part.cycles for part in each.slices) for each in codes),
                "longest_cycles": max(part.cycles for each in codes for part in each.slices),
            }

    def pieces(self, summary: Summary) -> list[str]:
        """Count the parts of a step between which it may pause, and name the longest, which no budget shortens."""
        found = self.json(summary)
        if found is None:
            return []
        longest, whole = found["longest"], found["step_cycles"]
        cycles = f"{grouped(longest['cycles'])} of {grouped(whole)} cycles by the model"
        return [
            plural(found["parts"], "part"),
            f"longest {share(longest['cycles'], whole)}: {cycles}, {longest['layer']}",
            *([f"m_infer_open: {bytes_text(found['infer_bytes'])} of the arena"] if found["infer_bytes"] else []),
        ]

    def json(self, summary: Summary) -> dict[str, Any] | None:
        """Return the number of parts, the cycles of all by the target's figures, and the longest one.

        longest: its node, that node's layer in the file, its cycles, and the number of parts of that node. infer_bytes:
        of the arena, for m_infer_open.
        """
        found = summary.fact(SlicedStep)
        if found is None:  # a dry run writes no C
            return None
        longest = max(found.parts, key=lambda part: part.cycles)
        node = next(node for node in summary.plan.order if node.name == longest.node)
        return {
            "parts": len(found.parts),
            "step_cycles": sum(part.cycles for part in found.parts),
            "longest": {
                "node": node.name,
                "layer": node.origin or node.name,
                "cycles": longest.cycles,
                "parts_of_node": sum(part.node == node.name for part in found.parts),
            },
            "infer_bytes": _bytes_of(summary.plan.open),
        }


def _bytes_of(beside: Inference | None) -> int:
    """Return the bytes of a pass without what lies in front of it."""
    if beside is None:
        return 0
    header = next(buffer.size_bytes for buffer in beside.plan.buffers if buffer.kind == "header")
    return beside.plan.arena_bytes - header


PART = Slices
