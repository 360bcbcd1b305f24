"""What lower/ hands to emit/: C functions, and which one each node calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kernel:
    """One C function. Parameters, in order: inputs, outputs that are no input's alias, scratch if it takes any."""

    name: str
    source: str
    declaration: str
    scratch_dtype: str = ""
    """Element type of its scratch parameter; "" if it has none."""
    small: bool = False
    """Made for small code: compiled with -Os, and may take a table of numbers as its last parameter."""


@dataclass(frozen=True)
class KernelSet:
    """All distinct kernels, and which one each node calls: node name -> kernel name ("" for a view).

    numbers: node -> the table that its call passes to a shared kernel; tables: by C name.
    """

    kernels: tuple[Kernel, ...]
    calls: Mapping[str, str]
    numbers: Mapping[str, str] = field(default_factory=dict[str, str])
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
