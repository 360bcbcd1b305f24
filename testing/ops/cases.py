"""Every operator's random cases, by family; importing this fills the table."""

from __future__ import annotations

from testing.ops import (
    case_channels,
    case_choice,
    case_clip,
    case_dropout,
    case_embedding,
    case_fused,
    case_groups,
    case_linear,
    case_pointwise,
    case_qloss,
    case_qpointwise,
    case_qpool,
    case_qtargets,
    case_quantised,
    case_qupdate,
    case_resize,
    case_stream,
    case_structure,
    case_subspace,
)
from testing.ops.case import GENERATORS, Bits, Case, cases_of, make

__all__ = [
    "GENERATORS",
    "Bits",
    "Case",
    "case_channels",
    "case_choice",
    "case_clip",
    "case_dropout",
    "case_embedding",
    "case_fused",
    "case_groups",
    "case_linear",
    "case_pointwise",
    "case_qloss",
    "case_qpointwise",
    "case_qpool",
    "case_qtargets",
    "case_quantised",
    "case_qupdate",
    "case_resize",
    "case_stream",
    "case_structure",
    "case_subspace",
    "cases_of",
    "make",
]
