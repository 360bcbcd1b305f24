"""Split the training steps of seven networks by kinds of kernels: instructions, and instructions a MAC.

    python -m benchmarks steps [--target cortex-m55] [--only cct]

The networks of `../shared/kernels3` in float32 and int8, every layer trained in an arena of 2 MB (`--update all`).
Counted in QEMU: one step after the first.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

from testing.compile_once import compile_once
from testing.places import SHARED

NETWORKS = ("dscnn", "har", "resnet8", "cct", "tcn_dil", "lstm", "mlp")
TARGETS = ("cortex-m7", "cortex-m4", "cortex-m55")
KINDS = ("forward", "data gradient", "weight gradient", "update", "rest", "step")
FOLDER = SHARED / "kernels3"


def kind_of(kernel: dict[str, Any]) -> str:
    """Name what a row of the report's kernels computes; "rest" is every layer without a product, forward or back."""
    op: str = kernel["op"]
    if not kernel["macs"]:
        return "update" if "Update" in op else "rest"
    if "GradInput" in op:
        return "data gradient"
    return "weight gradient" if "Grad" in op or "Update" in op else "forward"


def step_by_kind(name: str, quant: str, target: str) -> dict[str, tuple[int, int]]:
    """Instructions and MACs of a step by kind; "rest" has what the kernels leave of "step"."""
    int8 = ("--quant", "int8", "--calib", str(FOLDER / f"{name}.npz")) if quant == "int8" else ()
    flags = ("--update", "all", "--arena", "2MB", "--count", *int8)
    work = compile_once(FOLDER / f"{name}.onnx", flags, "qemu", target)[1]["work"]
    found = defaultdict[str, list[int]](lambda: [0, 0])
    for kernel in work["kernels"]:
        of_kind = found[kind_of(kernel)]
        of_kind[0] += kernel["instructions"]
        of_kind[1] += kernel["macs"]
    whole = work["train_step_instructions"]
    found["rest"][0] += whole - sum(instructions for instructions, _ in found.values())
    found["step"] = [whole, work["forward_macs"] + work["backward_macs"]]
    return {kind: (found[kind][0], found[kind][1]) for kind in KINDS}


def cell(instructions: int, macs: int) -> str:
    """Format instructions, and in brackets instructions a MAC."""
    return f"{instructions:,}" + (f" ({instructions / macs:.2f})" if macs else "")


def main() -> None:
    """Print a table per target: a row per network and format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--only", choices=NETWORKS)
    chosen = parser.parse_args()
    for target in (chosen.target,) if chosen.target else TARGETS:
        print(f"\n| {target} | {' | '.join(KINDS)} | int8 / float32 |\n|---|{'---|' * (len(KINDS) + 1)}")
        for name in (chosen.only,) if chosen.only else NETWORKS:
            steps: list[int] = []
            for quant in ("float32", "int8"):
                found = step_by_kind(name, quant, target)
                steps.append(found["step"][0])
                ratio = f"{steps[1] / steps[0]:.2f}" if quant == "int8" else ""
                cells = (cell(*found[kind]) for kind in KINDS)
                print(f"| {name} {quant} | {' | '.join(cells)} | {ratio} |", flush=True)
