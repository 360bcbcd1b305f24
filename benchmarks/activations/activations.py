"""Print what low-rank copies keep, need and cost, by plan alone (docs/results-activations.md); also accuracy, count.

Ranks are measured on handwritten digits of scikit-learn, enlarged to the network's input, for an error of 10 % of each
gradient. Kept bytes and multiply-accumulates are those of the trained layers' inputs and of a whole step; arenas are of
quick plans: of exact inputs as they are, with second runs (`runs`) and row by row (`streams`), of copies as they are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.activations.activation_accuracy import main as accuracy
from benchmarks.activations.activation_counts import main as count
from benchmarks.activations.activation_nets import KINDS, options_of, samples
from testing.planning.kept_inputs import kept_bytes
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target.loader import load_target


@dataclass(frozen=True)
class Row:
    """One way to keep activations. kept_bytes: of the inputs of trained layers; state_bytes: of subspaces; error: the
    largest of a gradient; ps: of a step on a Cortex-M7 by the compiler's model of time."""

    kept_bytes: int
    state_bytes: int
    macs: int
    arena_bytes: int
    error: float
    ps: int


def macs_of(train: TrainGraph) -> int:
    """Multiply-accumulates of a step."""
    return sum(op_def(node.op).macs(node) for node in train.graph.nodes if node.phase == "step")


def row_of(planner: Planner, update: str, size: int) -> Row:
    """Plan an update with what the planner's options say. A planner measures the ranks of a layer once."""
    chosen = resolve_update(planner.model.graph, update)
    train = planner.train(chosen, size)
    planned = planner.planned(chosen, train, quick=True)
    state = sum(item.state_bytes for item in train.low_rank)
    error = max((item.error or 0.0 for item in train.low_rank), default=0.0)
    macs, cost = macs_of(planned.train), planned.choice.cost
    return Row(kept_bytes(train), state, macs, planned.plan.arena_bytes, error, cost.ps)


def main() -> int:
    """Print a table; of accuracy, or of bytes (count), if the first argument says so."""
    if sys.argv[1:2] == ["accuracy"]:
        accuracy(sys.argv[2:])
        return 0
    if sys.argv[1:2] == ["count"]:
        return count(sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="mcunet-5fps-10c,mbv2-w0.35-10c")
    parser.add_argument("--updates", default="last:6,all")
    parser.add_argument("--sizes", default="1,4,8", help="micro-batches")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--quant", default="fp32", help="fp32, or int8: of the quantised files of the same networks")
    chosen = parser.parse_args()
    titles = f"{'activations':<12}{'kept':>12}{'state':>10}{'MAC':>14}{'arena':>12}{'model ms':>10}"
    print(f"{'network':<18} {'update':<6} {'batch':>5} {titles}")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models.split(","):
            sizes = [int(size) for size in chosen.sizes.split(",")]
            options = options_of(name, chosen.quant, Path(folder))
            _network(options, chosen.updates.split(","), sizes, chosen.kinds.split(","))
    return 0


def _network(options: CompileOptions, updates: list[str], sizes: list[int], kinds: list[str]) -> None:
    model, name = stored(imported(options), options), options.model.stem
    for size in sizes:
        data = samples(options.out.parent, model.graph.inputs[0].shape, max(24, 2 * size))
        base = replace(options, batch=size, micro_batch=size, data=data)
        base = base if options.quant == "fp32" else replace(base, calib=data)
        for kind in kinds:
            planner = Planner(model, replace(base, **KINDS[kind]), load_target("cortex-m7"), Externals())
            for update in updates:
                row = row_of(planner, update, size)
                figures = f"{row.kept_bytes:>12,}{row.state_bytes:>10,}{row.macs:>14,}{row.arena_bytes:>12,}"
                errors = f"   dW off by {row.error:.1%} at most" if row.error else ""
                print(f"{name:<18} {update:<8} {size:>3} {kind:<12}{figures}{row.ps / 1e9:>10.1f}{errors}", flush=True)
