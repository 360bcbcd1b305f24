"""Count what it costs that a device chooses channels itself, against a plan for the first channels (5 minutes).

For schemes of the digits example, in which other layers are trained below those of chosen channels or not: instructions
of a training step and of an inference in QEMU, and bytes of the arena. Bar: 5 % of a step.

usage: python -m benchmarks chosen [TARGET ...]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from testing.places import ROOT
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Result
from tinytrain_compile.options.compile_options import CompileOptions

DIGITS = ROOT / "examples/digits"
INT8: dict[str, Any] = {"quant": "int8", "calib": DIGITS / "calib.npz"}
CASES: tuple[tuple[str, dict[str, int | str], dict[str, Any]], ...] = (
    ("float32, half of conv3", {"conv3": 8, "classifier": "all"}, {"quant": "fp32"}),
    ("float32, a quarter of conv3", {"conv3": 4, "classifier": "all"}, {"quant": "fp32"}),
    ("int8, half of conv3", {"conv3": 8, "classifier": "all"}, INT8),
    ("int8, conv2, half of conv3", {"conv2": "all", "conv3": 8, "classifier": "all"}, INT8),
    ("int8, quarters of conv2 and conv3", {"conv2": 4, "conv3": 4, "classifier": "all"}, INT8),
    ("int8, conv3, half of the head", {"conv3": "all", "classifier": 5}, {**INT8, "head": "int8"}),
)
TARGETS = ("cortex-m7", "cortex-m0plus", "cortex-m4", "cortex-m55")
BAR = 5.0


def scheme(layers: dict[str, int | str], chosen: bool) -> str:
    """A scheme file of these layers: all of their weights, or so many channels."""
    entries = list[str]()
    for name, weight in layers.items():
        of_device = 'chosen = "device"\n' if chosen and weight != "all" else ""
        count = f'"{weight}"' if weight == "all" else weight
        entries.append(f'[[update]]\nlayer = "{name}"\nbias = true\nweight = {count}\n{of_device}')
    return "\n".join(entries)


def measured(layers: dict[str, int | str], chosen: bool, target: str, more: dict[str, Any]) -> tuple[int, int, int]:
    """Instructions of a step and of an inference, bytes of the arena."""
    with tempfile.TemporaryDirectory() as folder:
        update = Path(folder) / "update.toml"
        update.write_text(scheme(layers, chosen))
        named: dict[str, Any] = {**more, "update": str(update), "target": target, "count": True, "verify_steps": 3}
        made = make_project(CompileOptions(DIGITS / "digits.onnx", **named, given=frozenset(named)))
    assert not isinstance(made, Result)
    counts = made.summary.verify.counts
    assert counts is not None
    return sum(counts.step.values()), sum(counts.infer.values()), made.summary.plan.arena_bytes


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", default=TARGETS)
    worst = 0.0
    print(f"{'':38}{'target':15}{'step':>11}{'chosen':>11}{'more':>8}{'inference':>10}{'arena':>8}")
    for target in parser.parse_args().target:
        for name, layers, more in CASES:
            first, chosen = (measured(layers, each, target, more) for each in (False, True))
            step, infer = (100 * (chosen[i] / first[i] - 1) for i in (0, 1))
            worst = max(worst, step)
            figures = f"{first[0]:>11,}{chosen[0]:>11,}{step:>+7.1f}%{infer:>+9.1f}%{chosen[2] - first[2]:>+8,}"
            print(f"{name:38}{target:15}{figures}", flush=True)
    print(f"at most {worst:+.1f} % of a step, bar {BAR:.0f} %: {'met' if worst <= BAR else 'missed'}")
