"""Run MCUNet's int8 step in slices, in QEMU: the longest one, what they cost, equal bytes.

The scheme that trains 49 kB, for a Cortex-M7 or another core, with and without streams. Instructions of the second step
are counted: of a whole step, of one whose every slice is a single part, and with a budget of 2 % of a step by the
target's figures. Then what the model says of a slice against what was counted, what a project that can pause costs a
whole step, and the longest part of digits by the model. Exits 1 where bytes differ, slices cost more than 1 %, or the
longest is above 3 % of the step.

usage: python -m benchmarks slices [--target CORE]
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from testing.places import ROOT, SHARED
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import compile_project, link_project
from tinytrain_compile.verify.count import Call, functions_of, prepare_count, read_calls
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.symbols import read_object
from tinytrain_compile.verify.tools import find_tools

NAME, STEPS, BAR, COST_BAR = "mcunet-5fps", 2, 0.03, 0.01
SMALL = 0.002
"""Of slices that take less than this share of a step by the model, a ratio says little."""


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


def compiled(target: str, stream: str, slices: str = "on") -> Project:
    """The network with ten classes. target, stream, slices: as the options."""
    options = CompileOptions(
        SHARED / "models" / f"{NAME}-qdq.onnx",
        classes=10,
        quant="int8",
        update=str(SHARED / "schemes" / f"{NAME}-49kb.toml"),
        stream=stream,  # type: ignore[arg-type]
        slices=slices,  # type: ignore[arg-type]
        verify="none",
        target=target,
    )
    made = make_project(options)
    assert isinstance(made, Project)
    return made


@dataclass(frozen=True)
class Counted:
    """The calls of slices.c in QEMU, the checkpoints that it wrote, and bytes of the model's code."""

    calls: list[Call]
    states: list[bytes]
    code_bytes: int


def counted(made: Project, name: str, folder: Path) -> Counted:
    """Build and run it; a project without slices has whole steps alone."""
    prefix, target = made.bundle.interface.prefix, load_target(name)
    tools = find_tools(target)
    program = (ROOT / "testing" / "slices" / "slices.c").read_text(encoding="utf-8")
    program = re.sub(r"\bM_", f"{prefix.upper()}_", re.sub(r"\bm_", f"{prefix}_", program))
    bundle = replace(made.bundle, files={**made.bundle.files, "verify/slices.c": program})
    objects = compile_project(bundle, target, "qemu", tools, folder, ("verify/slices.c", "verify/startup.c"))
    built = link_project(objects, target, tools)
    functions = functions_of(built.image, objects.model_objects, prefix)
    plugin = prepare_count(functions, tools, built.image.parent)
    x = np.random.default_rng(0).integers(-128, 128, made.bundle.interface.input_elements).astype(np.int8)
    found = run_image(built, target, tools, x.tobytes() + bytes([3, 0, 0, 0]), 1200, plugin)
    size = int(macro(str(made.bundle.files[f"{prefix}_train.h"]), "CHECKPOINT_BYTES"))
    states = [found[at : at + size] for at in range(0, len(found), size)]
    code = sum(read_object(path).code_bytes for path in objects.model_objects)
    return Counted(read_calls(built.image.parent, functions), states, code)


def whole_step(calls: list[Call], prefix: str) -> int:
    """Instructions of the second step that was not cut."""
    return [sum(c.instructions.values()) for c in calls if c.name == f"{prefix}_train_step"][STEPS - 1]


def rows(calls: list[Call], prefix: str) -> list[Row]:
    """The second step of each way."""
    whole = whole_step(calls, prefix)
    steps = list[list[int]]()
    for call in calls:
        if call.name == f"{prefix}_step_begin":
            steps.append([])
        if call.name in (f"{prefix}_step_begin", f"{prefix}_step_slice"):
            steps[-1].append(sum(call.instructions.values()))
    merged = [(begin + first, *others) for begin, first, *others in steps]
    ways = ("every part a slice", "budget 2 % of the step")
    return [Row(way, merged[STEPS * i + STEPS - 1], whole) for i, way in enumerate(ways)]


def modelled(parts: list[int], budget: int) -> list[int]:
    """Cycles of every slice by the model, as m_step_slice takes them: parts that fit, and at least one."""
    slices, left = [0], budget
    for index, cycles in enumerate(parts):
        if index and cycles > left:
            slices, left = [*slices, 0], budget
        slices[-1] += cycles
        left -= min(cycles, left)
    return slices


def model_rows(found: list[Row], source: str, step: int) -> Iterator[str]:
    """Of slices that are not small: their share of the step as counted, over their share by the model."""
    table = re.search(r"part_cycles\[\d+\] = \{(.*?)\}", source, re.DOTALL)
    assert table is not None
    parts = [int(number) for number in re.findall(r"\d+", table[1])]
    for row, budget in zip(found, (0, step // 50), strict=True):
        model = modelled(parts, budget)
        ratios = [
            counted / row.whole / (cycles / step)
            for counted, cycles in zip(row.slices, model, strict=True)
            if cycles >= SMALL * step
        ]
        low, high = np.percentile(ratios, (5, 95))
        yield (
            f"{row.what:36} {len(ratios):4} slices from {SMALL:.1%} on: nine of ten {low:.2f} to {high:.2f}, "
            f"all {min(ratios):.2f} to {max(ratios):.2f} times the share that the model gives them"
        )


def run_one(target: str, stream: str) -> bool:
    """Print one network's rows; whether bytes are equal and bars met."""
    made, plain = compiled(target, stream), compiled(target, stream, "off")
    prefix, files = made.bundle.interface.prefix, made.bundle.files
    longest, step = (int(macro(str(files[f"{prefix}_train.h"]), name)) for name in ("SLICE_LONGEST", "STEP_CYCLES"))
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        sliced, whole = counted(made, target, Path(name)), counted(plain, target, Path(other))
    same = len({*sliced.states, *whole.states}) == 1
    print(f"--stream {stream}: arena {made.bundle.interface.arena_bytes:,} B; bytes {'equal' if same else 'DIFFER'}")
    print(f"    by the target's figures the longest part has {longest:,} of {step:,} cycles ({longest / step:.1%})")
    found = rows(sliced.calls, prefix)
    print("\n".join(f"    {row}" for row in found))
    print("\n".join(f"    {row}" for row in model_rows(found, str(files[f"{prefix}_train.c"]), step)))
    before, after = whole_step(whole.calls, prefix), whole_step(sliced.calls, prefix)
    print(
        f"    --slices on, a whole step: {before:,} -> {after:,} instructions ({after / before - 1:+.3%}), "
        f"code {whole.code_bytes:,} -> {sliced.code_bytes:,} B",
        flush=True,
    )
    return same and all(row.met for row in found)


def macro(header: str, name: str) -> str:
    """The number of a macro."""
    found = re.search(rf"_{name} (\d+)u", header)
    assert found is not None
    return found[1]


def digits_row(target: str, quant: str, folder: Path) -> str:
    """The longest part of digits, all of it trained, by the model alone."""
    place = ROOT / "examples" / "digits"
    with np.load(place / "data.npz") as data:
        np.savez(folder / "calib.npz", x=data["x"], y=data["y"])
    calib = folder / "calib.npz" if quant == "int8" else None
    options = CompileOptions(
        place / "digits.onnx",
        update="all",
        quant=quant,  # type: ignore[arg-type]
        calib=calib,
        slices="on",
        verify="none",
        target=target,
    )
    made = make_project(options)
    assert isinstance(made, Project)
    header = str(made.bundle.files["digits_train.h"])
    return (
        f"digits, {quant}: longest part {int(macro(header, 'SLICE_LONGEST')) / int(macro(header, 'STEP_CYCLES')):.1%}"
    )


def main() -> int:
    """Print the tables; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cortex-m7", help="another core; the bars are those of the Cortex-M7")
    target = parser.parse_args().target
    met = [run_one(target, stream) for stream in ("off", "auto")]
    with tempfile.TemporaryDirectory() as name:
        print(
            "; ".join(digits_row(target, quant, Path(name)) for quant in ("fp32", "int8")), "(by the target's figures)"
        )
    return int(not all(met))
