"""A project that does not train: it keeps what an inference reads of a checkpoint (ADR 41)."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.trained import inference_json


class InferenceOnly(Part):
    """`m_load` and `m_infer` alone."""

    name, row, has_fragments = "inference_only", "inference_only", True
    flag = "--inference-only"
    not_with = ("lock", "features=on", "slices=on", "runtime", "max_step_ps", "count", "cycles")
    why = "is of training, and "
    named_update = "needs the layers that the other build trains, and --update auto chooses them by its arena"

    def json(self, summary: Summary) -> dict[str, Any] | None:
        """Return what an inference keeps of the state in a checkpoint."""
        return inference_json(summary.train)


PART = InferenceOnly
