"""Networks, arenas and schemes that `--update auto` is tried on, and what it chooses for one of them."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.record import Record
from testing.networks.models import Network
from testing.places import SHARED
from tinytrain_compile.driver.candidate import AUTO
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.driver.search.choose import choose
from tinytrain_compile.driver.search.model import build_update_model
from tinytrain_compile.driver.search.pareto import point_with
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import ParetoPoint
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.selection import Selection, select
from tinytrain_compile.sparse import PRIOR, entries_of_plan, layer_ways, scheme_text
from tinytrain_compile.target.loader import load_target

NETWORKS = ("mcunet-5fps", "mbv2-w0.35", "proxyless-w0.3")
ARENAS = (64, 80, 96, 128, 192, 256, 320, 512)
SCHEMES = {"mcunet-5fps": ("49kb", "99kb"), "mbv2-w0.35": ("49kb", "99kb"), "proxyless-w0.3": ("49kb", "98kb")}
SMALL = {
    "digits": (Path("examples/digits/digits.onnx"), (10, 14, 18, 24)),
    "kws_dscnn": (SHARED / "zoo/keras/kws_dscnn.onnx", (64, 96, 128, 192)),
    "ecg_cnn1d": (SHARED / "zoo/torch-ts/ecg_cnn1d.onnx", (20, 22, 26, 34)),
    "tied_ae": (SHARED / "zoo/torch-ts/tied_ae.onnx", (0.25, 0.5, 2, 2.25)),
}
"""Float32: file, and four arenas in kilobytes."""
DENSE = {"dense-400": 400, "dense-1800": 1800}
"""Layers of 16 with a Relu behind each, in float32: training graphs of 2,200 and 9,900 nodes."""
DENSE_ARENAS = (256,)
TARGET = "cortex-m7"
REFUSALS = 200
"""Updates whose own bound is looked at to prove that nothing fits, at most."""
DEEP = 0.75
"""Depth, as a share of a hand-made scheme's depth."""


@dataclass(frozen=True)
class Case:
    """A model, its options, and what its planners share."""

    name: str
    options: CompileOptions

    def planner(self, **changes: Any) -> Planner:
        """For --update and --arena of a row."""
        options = CompileOptions(**{**vars(self.options), **changes})
        return Planner(stored(imported(options), options), options, load_target(TARGET), Externals())


def text_of(point: ParetoPoint | None, seconds: float, impossible: bool = False) -> str:
    """A row: arena used, gain, bound, layers, depth, parameters, CPU seconds. impossible: whether nothing can fit."""
    if point is None:
        return f"{'proven: nothing fits' if impossible else 'nothing found':58}{seconds:6.1f}"
    chosen = point.label.startswith(AUTO)
    sure = "" if not chosen else "proven" if point.gain >= point.best_gain else f"{point.best_gain:.0f}"
    counts = f"{point.layers:4} {point.depth:4} {point.parameters:9,}"
    return f"{point.arena_bytes:9,} {point.gain:8.1f} {sure:>8} {counts} {seconds:6.1f}  {point.label}"


@dataclass(frozen=True)
class Outcome:
    """What was chosen (None: nothing was found that fits), CPU seconds, its scheme file, whether nothing can fit."""

    point: ParetoPoint | None
    seconds: float
    scheme: str = ""
    impossible: bool = False

    @property
    def text(self) -> str:
        """A row."""
        return text_of(self.point, self.seconds, self.impossible)


def timed(planner: Planner) -> Outcome:
    """Return the choice."""
    begin = time.process_time()
    try:
        candidate = choose(planner)
    except CompileError:
        return Outcome(None, time.process_time() - begin, impossible=nothing_fits(planner))
    point = point_with(planner, candidate, PRIOR)
    spent = time.process_time() - begin
    if point is None:
        return Outcome(None, spent, impossible=nothing_fits(planner))
    return Outcome(point, spent, scheme_text(entries_of_plan(planner.model.graph, candidate.update), candidate.label))


def nothing_fits(planner: Planner) -> bool:
    """Whether no update at all keeps to --arena: each is above what no plan is below, by the model's floor or, where
    few are not, by the bound of its own graph."""
    model = build_update_model(planner, layer_ways(planner.model.graph, PRIOR))
    rows, refused = [replace(model.floor, limit=planner.options.arena_bytes or 0)], list[Selection]()
    while len(refused) < REFUSALS:
        answer = select(model.gains, rows, refused, above=0, exact=True)
        if answer.selection is None:
            return answer.best_gain == 0
        if not planner.impossible(planner.named(model.update(answer.selection, f"refused {len(refused)}"))):
            return False
        refused.append(answer.selection)
    return False


def dense(name: str) -> Path:
    """The file of one of DENSE."""
    path = Path(tempfile.gettempdir()) / f"{name}.onnx"
    net, value = Network("dense", "float[1, 16] x", "float[1, 4] y", seed=3), "x"
    for layer in range(DENSE[name]):
        value = net.relu(net.dense(f"fc{layer}", value, 16, 16))
    net.node("tail", f"y = Identity ({net.dense('out', value, 16, 4)})")
    path.write_bytes(net.model().SerializeToString())
    return path


def case_of(name: str) -> Case:
    """One of NETWORKS, int8 with ten classes, or of SMALL or DENSE."""
    if name in DENSE:
        return Case(name, CompileOptions(dense(name), quant="fp32"))
    if name in SMALL:
        return Case(name, CompileOptions(SMALL[name][0], quant="fp32"))
    return Case(name, CompileOptions(SHARED / "models" / f"{name}-qdq.onnx", classes=10, quant="int8"))


def chosen(name: str, **options: Any) -> Outcome:
    """What a command makes of a model with these options."""
    return timed(case_of(name).planner(**options))


def automatic(name: str, arena: int, record: Record) -> Outcome:
    """What auto makes of a model in an arena."""
    return record.once((name, "auto", str(arena)), partial(chosen, name, update="auto", arena_bytes=arena))
