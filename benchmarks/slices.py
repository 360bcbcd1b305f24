"""make bench-slices: MCUNet's int8 step in slices, in QEMU: how long they are, what they cost, and the same bytes.

The scheme that trains 49 kB, for a Cortex-M7, with and without streams. Instructions of the second step are counted: of
a whole step, of one whose every slice is a single part, and with a budget of 2 % of a step by the target's figures.
Exits 1 where bytes differ, slices cost more than 1 %, or the longest is above 3 % of the step.

usage: python -m benchmarks.slices
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from testing.places import ROOT, SHARED
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pipeline import Project, make_project
from tinytrain_compile.target import load_target
from tinytrain_compile.verify import find_tools
from tinytrain_compile.verify.build import compile_project, link_project
from tinytrain_compile.verify.count import Call, functions_of, prepare_count, read_calls
from tinytrain_compile.verify.run import run_image

NAME, TARGET, STEPS, BAR, COST_BAR = "mcunet-5fps", "cortex-m7", 2, 0.03, 0.01


@dataclass(frozen=True)
class Row:
    """slices: instructions of each, of one step; whole: of the step that was not cut."""

    what: str
    slices: tuple[int, ...]
    whole: int

    @property
    def cost(self) -> float:
        """What slices add, as a share of the step."""
        return sum(self.slices) / self.whole - 1

    @property
    def longest(self) -> float:
        """The longest slice as a share of the step."""
        return max(self.slices) / self.whole

    @property
    def met(self) -> bool:
        """Whether both bars are."""
        return self.longest <= BAR and self.cost <= COST_BAR

    def __str__(self) -> str:
        return (
            f"{self.what:36} {len(self.slices):4} slices, longest {max(self.slices):11,} of {self.whole:12,} "
            f"instructions: {self.longest:6.1%} (bar {BAR:.0%}), cost {self.cost:+.3%} (bar {COST_BAR:.0%}): "
            f"{'met' if self.met else 'MISSED'}"
        )


def compiled(stream: str) -> Project:
    """The network with ten classes. stream: as the option."""
    options = CompileOptions(
        SHARED / "models" / f"{NAME}-qdq.onnx",
        classes=10,
        quant="int8",
        update=str(SHARED / "schemes" / f"{NAME}-49kb.toml"),
        stream=stream,  # type: ignore[arg-type]
        slices="on",
        verify="none",
        target=TARGET,
    )
    made = make_project(options)
    assert isinstance(made, Project)
    return made


def counted(made: Project, folder: Path) -> tuple[list[Call], list[bytes]]:
    """The calls of slices.c in QEMU, and the checkpoints that it wrote."""
    prefix, target, tools = made.bundle.interface.prefix, load_target(TARGET), find_tools()
    program = (ROOT / "testing" / "slices" / "slices.c").read_text(encoding="utf-8")
    program = re.sub(r"\bM_", f"{prefix.upper()}_", re.sub(r"\bm_", f"{prefix}_", program))
    bundle = replace(made.bundle, files={**made.bundle.files, "verify/slices.c": program})
    objects = compile_project(bundle, target, "qemu", tools, folder, ("verify/slices.c", "verify/startup.c"))
    built = link_project(objects, target, tools)
    functions = functions_of(built.image, objects.model_objects, prefix)
    plugin = prepare_count(functions, tools, built.image.parent)
    x = np.random.default_rng(0).integers(-128, 128, made.bundle.interface.input_elements).astype(np.int8)
    found = run_image(built, target, tools, x.tobytes() + bytes([3, 0, 0, 0]), 1200, plugin)
    size = len(found) // 4
    return read_calls(built.image.parent, functions), [found[i * size : (i + 1) * size] for i in range(4)]


def rows(calls: list[Call], prefix: str) -> list[Row]:
    """The second step of each way."""
    whole = [sum(c.instructions.values()) for c in calls if c.name == f"{prefix}_train_step"][STEPS - 1]
    steps = list[list[int]]()
    for call in calls:
        if call.name == f"{prefix}_step_begin":
            steps.append([])
        if call.name in (f"{prefix}_step_begin", f"{prefix}_step_slice"):
            steps[-1].append(sum(call.instructions.values()))
    merged = [(begin + first, *others) for begin, first, *others in steps]
    ways = ("every part a slice", "budget 2 % of the step")
    return [Row(way, merged[STEPS * i + STEPS - 1], whole) for i, way in enumerate(ways)]


def main() -> int:
    """Print the table; 1 where a bar is missed."""
    failed = False
    for stream in ("off", "auto"):
        made = compiled(stream)
        header = made.bundle.files[f"{made.bundle.interface.prefix}_train.h"]
        longest, step = (int(re.search(rf"_{n} (\d+)u", header)[1]) for n in ("SLICE_LONGEST", "STEP_CYCLES"))  # type: ignore[index]
        with tempfile.TemporaryDirectory() as name:
            calls, states = counted(made, Path(name))
        same = "equal" if len(set(states)) == 1 else "DIFFER"
        print(
            f"--stream {stream}: arena {made.bundle.interface.arena_bytes:,} B; bytes {same}; by the target's figures"
        )
        print(f"    the longest part has {longest:,} of {step:,} cycles ({longest / step:.1%})")
        found = rows(calls, made.bundle.interface.prefix)
        print("\n".join(f"    {row}" for row in found), flush=True)
        failed = failed or len(set(states)) != 1 or not all(row.met for row in found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
