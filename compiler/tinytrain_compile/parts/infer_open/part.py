"""The C of m_infer_open: a forward pass in memory of its own, which may run while a step is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.parts.part import Part


class InferOpen(Part):
    """`m_infer_open`. Its bytes are in the row of slices."""

    name, has_fragments = "infer_open", True
    flag, one_input = "--slices infer", True
    not_with = ("memories", "input_lines", "plans", "micro_batch", "lock", "dropout=on")

    def prepare(self, code: PlanCode) -> None:
        """Note that the check program shall call it."""
        code.interface = replace(code.interface, infers_open=True)

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the calls of the pass, and where its input and output are."""
        passed, sequencer = code.plan.open, code.sequencer
        assert passed is not None, "the planner adds the pass"
        sections = sequencer.sections("infer_open", passed.plan.order)
        given, output = passed.graph.inputs[0], passed.graph.outputs[0]
        return {
            "sections": [*code.model["sections"], *sections],
            "apart": {
                "calls": [section.call for section in sections],
                "input": sequencer.pointer(given.name),
                "float_bytes": given.size_bytes if given.dtype == "float32" else 0,
                "output": sequencer.pointer(output.name),
            },
        }


PART = InferOpen
