"""What `--update auto` trains in how much memory: three networks and some small ones (`make bench-auto`).

Plans alone, with int8 for the networks (ten classes) as the command line makes them for a Cortex-M7. First hand-made
schemes, each at the arena that its own plan needs: `auto` must gain at least as much by the same table of gains, and
reach at least three quarters as deep. Then arenas in steps: what fits is planned in full, so it fits.

usage: python -m benchmarks.auto [schemes | published] [NETWORK ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.places import SHARED
from tinytrain_compile.driver.candidates import AUTO, Planner
from tinytrain_compile.driver.external_kernels import Externals
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pareto import point_of
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.ir.cost import ParetoPoint
from tinytrain_compile.sparse import PRIOR
from tinytrain_compile.target import load_target

NETWORKS = ("mcunet-5fps", "mbv2-w0.35", "proxyless-w0.3")
ARENAS = (64, 80, 96, 128, 192, 256, 320, 512)
SCHEMES = {"mcunet-5fps": ("49kb", "99kb"), "mbv2-w0.35": ("49kb", "99kb"), "proxyless-w0.3": ("49kb", "98kb")}
SMALL = {
    "digits": (Path("examples/digits/digits.onnx"), (10, 14, 18, 24)),
    "kws_dscnn": (SHARED / "zoo/keras/kws_dscnn.onnx", (64, 96, 128, 192)),
    "ecg_cnn1d": (SHARED / "zoo/torch-ts/ecg_cnn1d.onnx", (20, 22, 26, 34)),
    "tied_ae": (SHARED / "zoo/torch-ts/tied_ae.onnx", (1.25, 1.5, 1.75, 2.25)),
}
"""Float32: file, and four arenas in kilobytes."""
DEEP = 0.75
"""How deep, as a share of a hand-made scheme's depth."""


@dataclass(frozen=True)
class Case:
    """A model, its options, and what its planners share."""

    name: str
    options: CompileOptions

    def planner(self, **changes: Any) -> Planner:
        """For --update and --arena of a row."""
        options = CompileOptions(**{**vars(self.options), **changes})
        return Planner(stored(imported(options), options), options, load_target("cortex-m7"), Externals())


def network(name: str) -> Case:
    """One of NETWORKS, int8 with ten classes."""
    return Case(name, CompileOptions(SHARED / "models" / f"{name}-qdq.onnx", classes=10, quant="int8"))


def text_of(point: ParetoPoint | None, seconds: float) -> str:
    """A row: arena used, gain, bound, layers, depth, parameters, CPU seconds."""
    if point is None:
        return f"nothing fits{'':46}{seconds:6.1f}"
    chosen = point.label.startswith(AUTO)
    sure = "" if not chosen else "proven" if point.gain >= point.best_gain else f"{point.best_gain:.0f}"
    counts = f"{point.layers:4} {point.depth:4} {point.parameters:9,}"
    return f"{point.arena_bytes:9,} {point.gain:8.1f} {sure:>8} {counts} {seconds:6.1f}  {point.label}"


def timed(planner: Planner) -> tuple[ParetoPoint | None, float]:
    """What is chosen, and CPU seconds."""
    begin = time.process_time()
    point = point_of(planner, PRIOR)
    return point, time.process_time() - begin


def schemes(names: list[str]) -> Iterator[tuple[str, bool]]:
    """Hand-made schemes against auto at their arenas, and whether auto is as good and as deep as it must be."""
    for name in names:
        for kind in SCHEMES[name]:
            path = str(SHARED / "schemes" / f"{name}-{kind}.toml")
            hand, spent = timed(network(name).planner(update=path))
            assert hand is not None
            yield f"{name:15} {kind:>9} {text_of(hand, spent)}", True
            auto, spent = timed(network(name).planner(update="auto", arena_bytes=hand.arena_bytes))
            met = auto is not None and auto.gain >= hand.gain and auto.depth >= DEEP * hand.depth
            yield f"{'':15} {'auto':>9} {text_of(auto, spent)}", met


def sweep(names: list[str]) -> Iterator[str]:
    """Arenas in steps."""
    for name in names:
        path, sizes = SMALL.get(name, (None, ARENAS))
        case = network(name) if path is None else Case(name, CompileOptions(path, quant="fp32"))
        for size in sizes:
            point, spent = timed(case.planner(update="auto", arena_bytes=int(size * 1024)))
            yield f"{name:15} {size:6} KB {text_of(point, spent)}"


def published(names: list[str]) -> Iterator[tuple[str, bool]]:
    """Two published rules against auto."""
    from benchmarks.published import against  # it needs this module

    yield from against(names)


def main() -> int:
    """Print the tables; 1 if a hand-made scheme is better."""
    asked = sys.argv[1:]
    names = [name for name in asked if name not in ("schemes", "published")] or [*NETWORKS, *SMALL]
    print(f"{'network':15} {'--arena':>9} {'used':>9} {'gain':>8} {'at most':>8} lay. deep {'params':>9}  CPU s")
    missed = 0
    networks = [name for name in names if name in SCHEMES]
    for text, met in published(networks) if "published" in asked else schemes(networks):
        print(text if met else f"{text}   MISSED", flush=True)
        missed += not met
    for text in sweep(names) if not {"schemes", "published"} & {*asked} else ():
        print(text, flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
