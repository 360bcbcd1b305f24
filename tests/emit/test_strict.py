"""C in three standards, headers in C++17, without a warning: parts of the loop with the options that change the API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.places import ROOT
from tests.emit.test_generated_c import build, needs_gcc

pytestmark = needs_gcc
DIGITS = ROOT / "examples" / "digits"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-fsyntax-only")
LOOP = "replay=20,monitor,schedule,store"
CASES: dict[str, dict[str, Any]] = {
    "all parts": {"update": "all", "runtime": f"{LOOP},delta", "slices": "on"},
    "batch": {"update": "all", "optimizer": "momentum", "batch": 4, "slices": "on"},
    "samples of a call": {"update": "all", "batch": 4, "micro_batch": 2, "slices": "on"},
    "features": {"update": "last:2", "features": "on", "slices": "on", "batch": 4},
    "rows": {"update": "last:2", "input_lines": True},
    "inference": {"update": "all", "inference_only": True, "runtime": ""},
    "inference by rows": {"update": "last:2", "inference_only": True, "input_lines": True, "runtime": ""},
    "clipped, small": {"update": "all", "clip_norm": 1.0, "code": "size", "slices": "on"},
    "chosen": {"update": "chosen.toml"},
    "two memories": {
        "update": "all",
        "arena": "9KB",
        "memory": {"dtcm": "40KB"},
        "target": "nucleo-f746zg",
        "slices": "on",
    },
    "values": {"update": "all", "loss": "mse", "slices": "on"},
    "plans of a batch": {
        "update": "all",
        "batch": 4,
        "micro_batch": "auto",
        "slices": "on",
        "plans": {"fp32": "58KB,120KB", "int8": "41KB,60KB"},
    },
}
LONG = [(name, quant) for name in CASES for quant in ("fp32", "int8") if (name, quant) != ("all parts", "fp32")]


@pytest.mark.parametrize(
    ("name", "quant"), [("all parts", "fp32"), *(pytest.param(*one, marks=pytest.mark.slow) for one in LONG)]
)
def test_no_warning(name: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"runtime": LOOP, **CASES[name]}
    if not options["runtime"]:
        del options["runtime"]
    if "plans" in options:
        options["plans"] = options["plans"][quant]
    if quant == "int8":
        with np.load(DIGITS / "data.npz") as data:
            labels = data["y"]
            np.savez("calib.npz", x=data["x"], y=np.eye(10, dtype=np.float32)[labels] if "loss" in options else labels)
        options |= {"quant": "int8", "calib": "calib.npz"}
    Path("chosen.toml").write_text('[[update]]\nlayer = "conv3"\nbias = true\nweight = 8\nchosen = "device"\n')
    tt.compile(DIGITS / "digits.onnx", verify="none", name="m", **options).save(tmp_path / "out")
    check(tmp_path / "out")


def check(folder: Path) -> None:
    """All C files, and the headers that users include."""

    def silent(compiler: Sequence[str], files: Sequence[str]) -> None:
        build([*compiler, *WARNINGS, *files], folder)

    for standard in ("gnu11", "c11", "c17"):
        silent(("gcc", f"-std={standard}"), sorted(path.name for path in folder.glob("*.c")))
    own = {"m_internal.h", "m_plans.h"}
    headers = sorted(path.name for path in folder.glob("m_*.h") if path.name not in own)
    lines = [f'#include "{name}"' for name in headers]
    (folder / "headers.cpp").write_text("\n".join([*lines, "int main() { return 0; }", ""]))
    silent(("g++", "-std=c++17"), ["headers.cpp"])
