"""A model file that export has written, with its notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinytrain_compile.ir.types import Array


@dataclass(frozen=True, eq=False)
class WrittenFile:
    """A model file, and the file beside it with its external data (b"": it has none).

    notes: what else has changed. learned: the real numbers that were to be written; those beyond the range of a scale
    that the file keeps are at its ends.
    """

    model: bytes
    data: bytes
    notes: tuple[str, ...]
    learned: Mapping[str, Array]
