"""A project that does not train: it keeps only the part of a checkpoint that an inference reads (ADR 41)."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.trained import inference_json


class InferenceOnly(Part):
    """Only `m_load` and `m_infer`."""

    name, row, has_fragments = "inference_only", "inference_only", True
    flag = "--inference-only"
    not_with = ("lock", "features=on", "slices", "runtime", "max_step_ps", "count", "cycles")
    why = ", which is for builds that train"
    named_update = "needs the layers that the other build trains, and --update auto chooses them by its arena"

    def json(self, summary: Summary) -> dict[str, Any] | None:
        """Return data on the state in a checkpoint that an inference keeps."""
        return inference_json(summary.train)


PART = InferenceOnly
