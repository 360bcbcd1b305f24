"""Compare what --update auto gains with low-rank copies and without them (docs/activations.md).

Several networks, each in arenas of which the smallest leaves room for little and the largest for nearly all. Gains are
of one table, the prior; errors of gradients are lost gain, and summed up again here from what was chosen. Exits 1 where
a plan is larger than its arena, or copies gain less than exact inputs.

usage: python -m benchmarks activations auto [--only TEXT] [--keep FILE]
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.activations.activation_nets import samples
from benchmarks.record import Record
from testing.places import ROOT, SHARED
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.driver.search.copies import choose_with_copies
from tinytrain_compile.driver.search.update import search_update
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse import PRIOR, gain_of_plan
from tinytrain_compile.sparse.gains import UNITS
from tinytrain_compile.target import load_target

SHAPE = 1, 128, 128, 3
"""Of the images of networks that have no samples of their own."""


@dataclass(frozen=True)
class Net:
    """size: samples in a step; arenas: in bytes; data: its own samples, else enlarged digits."""

    name: str
    path: Path
    size: int
    arenas: tuple[int, ...]
    quant: str = "fp32"
    data: Path | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def title(self) -> str:
        """Of its rows."""
        return f"{self.name}, {self.quant}, {self.size}"


DIGITS = ROOT / "examples" / "digits"
MODELS = SHARED / "models"
NETS = (
    Net("digits", DIGITS / "digits.onnx", 16, (90_000, 105_000, 120_000, 130_000), data=DIGITS / "data.npz"),
    Net("digits", DIGITS / "digits.onnx", 4, (28_000, 34_000, 40_000, 46_000), data=DIGITS / "data.npz"),
    Net("digits", DIGITS / "digits.onnx", 16, (40_000, 50_000, 60_000, 70_000), "int8", DIGITS / "data.npz"),
    Net("MCUNet", MODELS / "mcunet-5fps-qdq.onnx", 1, (288_000, 384_000), "int8", options=(("classes", 10),)),
    Net("MCUNet", MODELS / "mcunet-5fps-10c.onnx", 2, (2_600_000, 3_600_000)),
    Net("MobileNetV2", MODELS / "mbv2-w0.35-qdq.onnx", 1, (192_000, 320_000), "int8", options=(("classes", 10),)),
)


def planner_of(net: Net, arena: int, activations: str, folder: Path) -> Planner:
    """As the command has it, with copies or without; second runs and streams are off where a step takes several."""
    data = net.data or samples(folder, SHAPE, max(24, 2 * net.size))
    settings: dict[str, Any] = dict(net.options) | {"batch": net.size, "micro_batch": net.size}
    settings |= {"remat": "off", "stream": "off"} if net.size > 1 else {}
    settings |= {"calib": data} if net.quant == "int8" else {}
    settings |= {"quant": net.quant, "arena_bytes": arena, "activations": activations, "data": data, "update": "auto"}
    options = CompileOptions(net.path, folder / "out", **settings)
    return Planner(stored(imported(options), options), options, load_target("cortex-m7"), Externals())


def worth(planner: Planner, found: Candidate) -> float:
    """By the prior: the root of the parameters of each layer, less the error of its gradient times the root of its
    weight's elements."""
    sizes = {value.name: value.elements for value in planner.model.graph.parameters}
    lost = (
        how.error * math.sqrt(sizes[name])
        for name, how in found.update.activations.items()
        if how is not None and how.error is not None
    )
    return gain_of_plan(planner.model.graph, found.update, PRIOR) / UNITS - sum(lost)


def row(net: Net, arena: int) -> tuple[str, bool]:
    """The line of an arena, and whether it holds."""
    with tempfile.TemporaryDirectory() as folder:
        exact, auto = (planner_of(net, arena, how, Path(folder)) for how in ("exact", "auto"))
        before, after = search_update(exact, exact.layer_count), choose_with_copies(auto)
    fits = [auto.meets(one.plan.arena_bytes, one.choice.cost.ps) for one in (before, after)]
    gains = [worth(exact, one) if fit else 0.0 for one, fit in zip((before, after), fits, strict=True)]
    holds = gains[1] >= gains[0] - 1e-4 and fits[1] >= fits[0]
    kinds = [how.kind for how in after.update.activations.values() if how is not None]
    copies = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "none"
    cells = f"{arena:,} | {gains[0]:.1f} | {gains[1]:.1f} | {copies} | {'' if holds else 'BELOW'}"
    return f"| {net.title} | {cells} |", holds


def main(arguments: Sequence[str]) -> int:
    """Print; 1 where it does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks activations auto", description=__doc__)
    parser.add_argument("--only", default="", help="networks whose line begins so: 'digits, int8'")
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given, held = parser.parse_args(arguments), True
    record = Record(given.keep)
    print("| network, samples in a step | arena | gain, exact | gain, auto | copies | |\n|---|---|---|---|---|---|")
    for net in NETS:
        for arena in net.arenas if net.title.startswith(given.only) else ():
            line, holds = record.once((net.title, str(arena)), partial(row, net, arena))
            print(line, flush=True)
            held &= holds
    return 0 if held else 1
