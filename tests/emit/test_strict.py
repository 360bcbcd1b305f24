"""C in three standards, callers in C++17, without a warning: parts of the loop with the options that change the API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.places import ROOT
from tests.emit.test_generated_c import build, needs_gcc
from tinytrain_compile.emit.example import MOST_LINES

pytestmark = needs_gcc
DIGITS = ROOT / "examples" / "digits"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
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
SHORT = [
    *((name, "fp32") for name in ("all parts", "features", "inference", "inference by rows", "values")),
    ("two memories", "int8"),
]
"""What CI runs: the largest API, and the cheapest of the others."""
LONG = [(name, quant) for name in CASES for quant in ("fp32", "int8") if (name, quant) not in SHORT]


@pytest.mark.parametrize(("name", "quant"), [*SHORT, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONG)])
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
    tt.compile(DIGITS / "digits.onnx", verify="none", name="m", **options).save(tmp_path / "out")
    check(tmp_path / "out")


def check(folder: Path) -> None:
    """All C files, the example, the headers that users include, and a program in C++ that uses all of these headers."""
    for standard in ("gnu11", "c11", "c17"):
        build(
            ["gcc", f"-std={standard}", *WARNINGS, "-fsyntax-only", "-I.", *c_files(folder), "example/main.c"], folder
        )
    assert len((folder / "example" / "main.c").read_text().splitlines()) <= MOST_LINES
    headers = [path for path in sorted(folder.glob("m_*.h")) if path.name not in ("m_internal.h", "m_plans.h")]
    (folder / "caller.cpp").write_text(caller(headers))
    build(["gcc", "-c", *c_files(folder)], folder)
    objects = sorted(path.name for path in folder.glob("*.o"))
    build(["g++", "-std=c++17", *WARNINGS, "caller.cpp", *objects, "-lm", "-o", "caller"], folder)


def c_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.c"))


def caller(headers: Sequence[Path]) -> str:
    """A program that uses every macro of these headers, and calls every function with zeros; it is not run."""
    text = "\n".join(path.read_text() for path in headers)
    names = sorted(set(re.findall(r"^(?!typedef)[a-z][\w *]*?\b(m_\w+)\(", text, re.MULTILINE)))
    uses = [f"    static_cast<void>(called(&{name}));" for name in names]
    macros = dict(re.findall(r"^#define (M_\w+(?:\(\w+\))?) +(.+)$", text, re.MULTILINE))
    for number, (macro, value) in enumerate(macros.items()):
        name = re.sub(r"\(\w+\)", "(1u)", macro)
        if macro.endswith("_TYPE"):
            uses.append(f"    [[maybe_unused]] {name} zero_{number}{{}};")
        elif value.startswith("__attribute__"):
            uses.append(f"    {name} static unsigned char place_{number}[1]; static_cast<void>(place_{number});")
        else:
            kind, many = ("uint32_t", "[]") if value.startswith("{") else ("auto", "")
            uses.append(f"    [[maybe_unused]] const {kind} value_{number}{many} = {name};")
    assert len(names) >= 6 and len(macros) >= 19
    lines = [f'#include "{path.name}"' for path in headers]
    call = "template <typename R, typename... A> R called(R (*function)(A...)) { return function(A{}...); }"
    return "\n".join([*lines, f"namespace {{ {call} }}", "int main()", "{", *uses, "    return 0;", "}", ""])
