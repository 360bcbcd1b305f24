"""Shared by the benchmarks of low-rank activations: networks as options, ways to keep activations, samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits  # pyright: ignore[reportMissingTypeStubs]

from testing.places import SHARED
from tinytrain_compile.options.compile_options import CompileOptions

ERROR = 0.1
KINDS: dict[str, dict[str, Any]] = {
    "exact": {"activations": "exact", "remat": "off", "stream": "off"},
    "runs": {"activations": "exact", "remat": "min", "stream": "off"},
    "streams": {"activations": "exact", "remat": "off", "stream": "min"},
    "asi": {"activations": "asi", "remat": "off", "stream": "off"},
    "subspace": {"activations": "subspace", "remat": "off", "stream": "off"},
}
"""How inputs are kept, as options."""


def samples(folder: Path, shape: tuple[int, ...], count: int) -> Path:
    """Digits as images of the network's size, and their classes."""
    _, height, width, channels = shape
    digits: Any = load_digits()  # pyright: ignore[reportUnknownVariableType]
    images = digits.images[:count] / 8.0 - 1.0
    rows, columns = (np.arange(length) * 8 // length for length in (height, width))
    x = np.repeat(images[:, None, rows][:, :, :, columns], channels, axis=1)
    path = folder / "digits.npz"
    np.savez(path, x=x.astype(np.float32), y=digits.target[:count])
    return path


def options_of(name: str, quant: str, folder: Path) -> CompileOptions:
    """Of a network by the name of its float file; its quantised one where quant says so."""
    file = name if quant == "fp32" else {"mbv2-w0.35-10c": "mbv2-w0.35-qdq"}.get(name, f"{name}-qdq")
    path, classes = SHARED / "models" / f"{file}.onnx", None if file.endswith("10c-qdq") or quant == "fp32" else 10
    return CompileOptions(
        path,
        folder / "out",
        update="all",
        quant="fp32" if quant == "fp32" else "int8",
        rank_error=ERROR,
        classes=classes,
    )
