"""A project that does not train: it keeps what an inference reads of a checkpoint (ADR 41)."""

from __future__ import annotations

from tinytrain_compile.parts.part import Part


class InferenceOnly(Part):
    """`m_load` and `m_infer` alone."""

    name, has_fragments = "inference_only", True
    flag = "--inference-only"
    not_with = ("lock", "features=on", "slices=on", "runtime", "max_step_ps", "count", "cycles")
    why = "is of training, and "
    named_update = "has to know what the build that trains updates, which with --update auto follows from its arena"


PART = InferenceOnly
