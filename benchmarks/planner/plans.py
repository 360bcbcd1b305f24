"""Measure the flash of one image with two plans of MCUNet's int8 step against two projects.

The scheme that trains 49 kB, for a Cortex-M7. Each project is verified in QEMU, and its objects for the target
are measured. Prints the table of docs/results-memory.md. Exits 1 where one image is no smaller than two projects.

usage: python -m benchmarks plans
"""

from __future__ import annotations

import tinytrain_compile as tt
from testing.places import SHARED

NAME, TARGET, ARENAS = "mcunet-5fps", "cortex-m7", ("94KB", "176KB")


def flash(**ways: str) -> tuple[list[int], int, int]:
    """Arenas of the plans, code and constants, of a project with these options, in bytes."""
    report = tt.compile(
        SHARED / "models" / f"{NAME}-qdq.onnx",
        classes=10,
        quant="int8",
        update=str(SHARED / "schemes" / f"{NAME}-49kb.toml"),
        verify="qemu",
        target=TARGET,
        **ways,
    ).report
    arenas = [plan["arena_bytes"] for plan in report["plans"]] or [report["memory"]["arena_bytes"]]
    return arenas, report["flash"]["code_bytes"], report["flash"]["const_bytes"]


def line(what: str, arenas: list[int], code: int, const: int) -> str:
    """A row of the table."""
    place = " or ".join(f"{size:,} B" for size in arenas)
    return f"| {what} | {place} | {code:,} B | {const:,} B | {code + const:,} B |"


def main() -> int:
    """Print the table."""
    print("| project | arena | code | constants | flash |\n|---|---:|---:|---:|---:|", flush=True)
    alone = [flash(arena=arena) for arena in ARENAS]
    for arena, found in zip(ARENAS, alone, strict=True):
        print(line(f"`--arena {arena}`", *found), flush=True)
    both = sum(code for _, code, _ in alone), sum(const for _, _, const in alone)
    print(line("both projects in one firmware", [], *both))
    arenas, code, const = flash(plans=",".join(ARENAS))
    print(line(f"`--plans {','.join(ARENAS)}`", arenas, code, const), flush=True)
    return int(code + const >= sum(both))
