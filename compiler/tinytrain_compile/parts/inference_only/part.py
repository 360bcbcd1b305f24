"""A project that does not train: it keeps what an inference reads of a checkpoint (ADR 41)."""

from __future__ import annotations

from tinytrain_compile.parts.part import Part


class InferenceOnly(Part):
    """`m_load` and `m_infer` alone."""

    name, has_fragments = "inference_only", True


PART = InferenceOnly
