"""What tests of `finetune` share: samples of the digits example, and one search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from testing.places import ROOT
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.ir.learning import Finding
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.finetune import finetune
from tinytrain_compile.options.effort import FinetuneEffort

DIGITS = ROOT / "examples" / "digits"
SHORT = FinetuneEffort(epochs=6, seeds=2, clips=(0.0,), jobs=1)


def silent(_what: str, _share: float) -> None:
    return None


def some(count: int, first: int = 0) -> tuple[Array, Array]:
    with np.load(DIGITS / "data.npz") as data:
        return data["x"][first : first + count], data["y"][first : first + count]


def write_own(folder: Path) -> Path:
    """A hundred samples of the user's."""
    x, y = some(100)
    np.savez(folder / "own.npz", x=x, y=y)
    return folder / "own.npz"


def found_by(own: Path, effort: FinetuneEffort = SHORT, name: str = "finetune.toml", **options: Any) -> Finding:
    asked = {"update": "head", "data": own, **options}
    return finetune(options_from(DIGITS / "digits.onnx", asked), effort, own.with_name(name), silent)
