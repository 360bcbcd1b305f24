"""Deltas of the trained subset (`--runtime delta`): whether a build can have them, and their slot table as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from tinytrain_compile.driver.checks.prefix import prefix_of
from tinytrain_compile.emit import delta_table
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import OF_WEIGHTS
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.options.compile_options import CompileOptions

PART = "delta"


def check_delta(train: TrainGraph, options: CompileOptions) -> None:
    """E0101 for parts of the weights, where numbers of two states count different things."""
    for name in OF_WEIGHTS:
        if name in options.runtime.names:
            refuse_shifted(train, f"--runtime {name}")


def refuse_shifted(train: TrainGraph, where: str) -> None:
    """E0101 for what reads weights of several states, where channels change their scale."""
    if any(part.unit is not None and part.unit.shift for part in train.trained.values()):
        what = "is not possible with --rescale on, whose weights count in steps that change on the device"
        raise CompileError("E0101", where, what, "leave one of the two out")


def delta_files(train: TrainGraph, options: CompileOptions) -> Mapping[str, str]:
    """m_delta.json: where each tensor is in a delta."""
    if PART not in options.runtime.names:
        return {}
    return {f"{prefix_of(options)}_delta.json": json.dumps(asdict(delta_table(train)), indent=1) + "\n"}
