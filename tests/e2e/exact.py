"""What int8 tests share: networks, channel schemes, and the check that every core computes what numpy does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.summary import VerifyReport

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "cnn": nets.cnn,
    "max pool": lambda: nets.cnn(pool="MaxPool"),
    "overlapping": lambda: nets.cnn(pool="MaxPool", window=nets.OVERLAPPING),
    "qdq": nets.quantised,
    "regions": nets.float_regions,
    "padded": lambda: nets.cnn(window=f"{nets.OVERLAPPING}, count_include_pad = 1"),
    "mlp": models.mlp,
    "weighted": lambda: nets.pixels([1.0, 0.25, 3.0], ignore=1),
    "encoder": lambda: models.transformer(tokens=4, width=8, heads=2),
}
STEPS = 10
DIFFERENT = ("cortex-m0plus", "cortex-m7", "cortex-m55")
"""Cores whose kernels differ: scalar, with DSP instructions, with vectors."""


Variant = tuple[str, dict[str, Any]]
"""(model, options)"""


def in_turn(variants: Sequence[Variant]) -> list[tuple[str, dict[str, Any], str]]:
    """Every variant with one of the three kinds of core: with all of them they would take minutes."""
    return [(*variant, DIFFERENT[index % len(DIFFERENT)]) for index, variant in enumerate(variants)]


def in_turn_or_slow(names: Iterable[str], groups: Sequence[Sequence[Any]]) -> list[Any]:
    """Parameters: every name with the options of one group, in turn; those of other groups only in `make slow`."""
    return [
        pytest.param(
            name, option, marks=() if index % len(groups) == which else pytest.mark.slow, id=f"{name}-{option}"
        )
        for index, name in enumerate(names)
        for which, group in enumerate(groups)
        for option in group
    ]


def check_on(train: TrainGraph, *boards: str, steps: int = STEPS) -> dict[str, VerifyReport]:
    """Verify on boards in QEMU, or on "host" alone."""
    lowered = chain.kernels_by_core(train)
    reports: dict[str, VerifyReport] = {}
    for board in boards:
        core = "cortex-m7" if board == "host" else board
        made = chain.project(train, core, lowered(core))
        reports[board] = chain.check(made, core, "host" if board == "host" else "qemu", steps)
    return reports


def check_exact(reports: dict[str, VerifyReport], steps: int = STEPS) -> None:
    """Passed on every board, no byte different from numpy, and everywhere the same losses."""
    for board, report in reports.items():
        assert (report.result, report.steps, report.max_error) == ("pass", steps, 0.0), board
        assert report.message.startswith("reference == host") and "   host bit-exact   " in report.message, board
        assert board == "host" or report.message.endswith("   QEMU bit-exact   PASS")
        assert len(report.losses) == steps
        assert np.isfinite(report.losses).all() and len(set(report.losses)) > steps // 2
    assert len({report.losses for report in reports.values()}) == 1, "one integer truth for all cores"


SCHEMES = {
    "out": ("out", [1, 4, 5]),
    "in": ("in", [0, 2, 5]),
    "leading out": ("out", 2),
    "leading in": ("in", 4),
}


def scheme(folder: Path, *names: str, head: bool = True) -> str:
    """A scheme file: point and last take channel slices, deep its own, the head everything."""
    text = ""
    for layer, name in zip(("point/Conv", "last/Conv"), names, strict=True):
        axis, channels = SCHEMES[name]
        text += f'[[update]]\nlayer = "{layer}"\nweight = {channels}\naxis = "{axis}"\nbias = true\n'
    text += '[[update]]\nlayer = "deep/Conv"\nweight = [0, 3]\n'
    if head:
        text += '[[update]]\nlayer = "fc/Gemm"\nweight = "all"\nbias = true\n'
    path = folder / "scheme.toml"
    path.write_text(text)
    return str(path)
