"""Print orders and arenas of real training graphs, with bounds and proofs.

Bytes and answers depend on the input only (counted work, fixed seeds); seconds are what this machine took.
All bytes are transient: the arena less what m_save writes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from testing.places import SHARED
from testing.planning.plan_graphs import training_graph
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.ir.types import Attrs, Graph, Node, TensorType, Value
from tinytrain_compile.ops.base import NonDifferentiable, OpDef, op_def, register
from tinytrain_compile.ops.owned import Owned
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.model import MemoryModel, build_model, program_order
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order.exact import Optimum
from tinytrain_compile.plan.order.order import peak_bound
from tinytrain_compile.plan.order.ranks import rank_order
from tinytrain_compile.plan.place.placement import build_packing, fit, rectangles, sequences
from tinytrain_compile.plan.planner import persistent_buffers, plan_memory, thorough_orders
from tinytrain_compile.plan.remat.search import floor_bytes
from tinytrain_compile.plan.remat.stage import Rematerialiser, plan_with_remat, share_of
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target.loader import load_target

SCHEMES = {
    "mcunet-5fps": ("b13_*,b14_*,*/Gemm", ("mcunet-5fps-49kb", "mcunet-5fps-99kb")),
    "mbv2-w0.35": ("b16_*,b17_*,*/Gemm", ("mbv2-w0.35-99kb",)),
    "proxyless-w0.3": ("b19_*,b20_*,*/Gemm", ("proxyless-w0.3-98kb",)),
}
"""Model -> its last two blocks as a glob list, and its published schemes."""

GENERATED = "generated, 1,000 nodes"
"""A graph that is there for its size; --remat min takes too long on it for a table."""

SOLVER_UNITS = 4.0
"""Deterministic time that CP-SAT may spend on proving what the search has proven."""

UPDATES = ("SgdUpdate", "QUpdate", "QBiasUpdate")
GRADIENTS = ("ConvGradWeight", "GemmGradWeight", "Reduce")


# ---- gradients fused into updates, or materialised ------------------------------------------------------------------


@dataclass(frozen=True)
class _FusedAttrs(Attrs):
    scratch_bytes: int = 0
    macs: int = 0
    made: TensorType | None = None
    """What a gradient is; None for an update, which makes what it overwrites."""


def _attrs_of(node: Node, made: TensorType | None = None) -> _FusedAttrs:
    """What stays of an operator that is replaced: its working memory and its work."""
    return _FusedAttrs(op_def(node.op).scratch(node), op_def(node.op).macs(node), made)


def _infer(inputs: tuple[Value, ...], attrs: _FusedAttrs) -> tuple[TensorType, ...]:
    return (attrs.made or inputs[0].type,)


def _never(*_arguments: object) -> tuple[()]:
    raise AssertionError("these operators are planned and never run")


for _name, _inputs, _output in (("PlannedGradient", ("x*",), "y"), ("PlannedUpdate", ("w", "x*"), "w")):
    register(
        OpDef(
            _name,
            "What a planner sees of a gradient or an update.",
            _infer,
            _never,
            NonDifferentiable("planned only"),
            _FusedAttrs,
            inputs=_inputs,
            outputs=(_output,),
            scratch=lambda node: node.attrs.scratch_bytes,
            macs=lambda node: node.attrs.macs,
            owned=Owned({_output: "ANY"}, "float") if _output in _inputs else None,
        )
    )


def fused(graph: Graph) -> Graph:
    """Every float gradient that only an update reads, computed inside that update: it never exists as a tensor."""
    makers = {node.outputs[0].name: node for node in graph.nodes if node.op in GRADIENTS}
    uses = [value.name for node in graph.nodes for value in node.inputs]
    gone: set[str] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        maker = makers.get(node.inputs[1].name) if node.op == "SgdUpdate" else None
        if maker is not None and uses.count(node.inputs[1].name) == 1:
            gone.add(maker.name)
            operands = (node.inputs[0], *maker.inputs, *node.inputs[2:])
            node = replace(node, op="PlannedUpdate", inputs=operands, attrs=_attrs_of(maker))
        nodes.append(node)
    return replace(graph, nodes=tuple(node for node in nodes if node.name not in gone))


def materialised(graph: Graph) -> Graph:
    """Every integer gradient whole, as int32 sums, before its update."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op in ("QUpdate", "QBiasUpdate"):
            count = 3 if node.op == "QUpdate" else 2
            gradient = Value(f"{node.name}.whole_gradient", node.inputs[0].shape, "int32")
            name = f"{node.name}.gradient"
            attrs = replace(_attrs_of(node, gradient.type), scratch_bytes=0)
            operands = node.inputs[1:count]
            nodes.append(
                replace(node, name=name, op="PlannedGradient", inputs=operands, outputs=(gradient,), attrs=attrs)
            )
            operands = (node.inputs[0], gradient, *node.inputs[count:])
            node = replace(node, op="PlannedUpdate", inputs=operands, attrs=_FusedAttrs())
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


# ---- figures --------------------------------------------------------------------------------------------------------


def eager_order(model: MemoryModel) -> list[int]:
    """Program order with each update as soon as its gradient is there and the old weight has been read."""
    tasks = model.tasks
    when = [float(task) for task in range(len(model.nodes))] + [-1.0, float(len(model.nodes))]
    for task in program_order(tasks):
        if task < len(model.nodes) and model.nodes[task].op in (*UPDATES, "PlannedUpdate", "PlannedGradient"):
            when[task] = max(when[before] for before in tasks.before[task]) + 1e-3
    return sorted(range(len(when)), key=lambda task: (when[task], task))


def by_size(model: MemoryModel, order: Sequence[int]) -> int:
    """Movable bytes of an order, buffers placed first-fit in falling size."""
    packing = build_packing(rectangles(model, order))
    return fit(packing, sequences(packing)[0]).height * packing.unit_bytes


class Meter:
    """CP-SAT's deterministic time, summed over all solves while it is switched on."""

    def __init__(self) -> None:
        self.units = 0.0
        self._solve = cp_model.CpSolver.solve

    def __enter__(self) -> Meter:
        def metered(solver: cp_model.CpSolver, *arguments: object) -> object:
            status = self._solve(solver, *arguments)  # type: ignore[arg-type]
            self.units += solver.response_proto.deterministic_time
            return status

        cp_model.CpSolver.solve = metered  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_error: object) -> None:
        cp_model.CpSolver.solve = self._solve  # type: ignore[method-assign]


def with_remat(graph: Graph, options: PlanOptions) -> str:
    """`--remat min`: transient bytes, what no decision of this order is below, extra work, solver's units, seconds."""
    begin = time.monotonic()
    with Meter() as meter:
        without = plan_memory(graph, options)
        meter.units = 0.0
        found = plan_with_remat(graph, options, "min")
    seconds = time.monotonic() - begin
    task = Rematerialiser(graph, without, options)
    bound = min(floor_bytes(task.problem) + task.below, found.plan.arena_bytes) - without.persistent_bytes
    placed = found.plan.arena_bytes - found.plan.persistent_bytes
    return f"{placed:10,} {bound:10,} {share_of(found.graph, found.plan):6.1%} {meter.units:6.2f} {seconds:6.1f}"


def cross_check(model: MemoryModel, found: Optimum) -> str:
    """Whether CP-SAT proves the order optimal, told no bound of the search's; stops the script if it finds a better."""
    ranked = rank_order(model.tasks, found._replace(bound=peak_bound(model.tasks)), SOLVER_UNITS, 0)
    if found.proven and ranked.peak < found.peak:
        sys.exit(f"CP-SAT found {ranked.peak} B below the proven {found.peak} B")
    return "agrees" if ranked.proven else "open"


HEADER = (
    f"{'graph':54} {'nodes':>5} {'late B':>10} {'program B':>10} {'order B':>10} {'bound B':>10} {'proven':6} "
    f"{'CP-SAT':7} {'s':>6} {'placed B':>10} {'gap':>6} {'s':>6} "
    f"{'remat B':>10} {'bound B':>10} {'MACs':>6} {'units':>6} {'s':>6}"
)


def row(name: str, graph: Graph, keep: str, with_placement: bool) -> bool:
    """Print one line; True if the order is proven."""
    options = PlanOptions(keep=(keep,))
    model = build_model(graph, options)
    base = persistent_buffers(model, options)
    state = sum(value.size_bytes for value in graph.state)
    rest = max(buffer.offset + buffer.size_bytes for buffer in base) - state
    late, program = (by_size(model, order) + rest for order in (program_order(model.tasks), eager_order(model)))
    begin = time.monotonic()
    orders, bound = thorough_orders(model.tasks, peak_bound(model.tasks), options)
    seconds = time.monotonic() - begin
    found = Optimum(orders[0].order, orders[0].peak, bound)
    text = f"{name:54} {len(graph.nodes):5} {late:10,} {program:10,} {found.peak + rest:10,} {bound + rest:10,} "
    text += f"{'yes' if found.proven else 'no':6} {cross_check(model, found):7} {seconds:6.2f} "
    if with_placement:
        begin = time.monotonic()
        plan = plan_memory(graph, options)
        placed = plan.arena_bytes - plan.persistent_bytes
        text += f"{placed:10,} {plan.gap_bytes / placed:6.2%} {time.monotonic() - begin:6.2f} "
        text += with_remat(graph, options) if name != GENERATED else ""
    print(text, flush=True)
    return found.proven


def graphs(only: str) -> Iterator[tuple[str, Graph, str]]:
    """(name, graph, name of its loss) of every case whose name contains `only`."""
    for model, (blocks, schemes) in SCHEMES.items():
        specs = [("head", "head"), ("bias", "bias"), ("last 2 blocks", blocks), ("all", "all")]
        specs[2:2] = [(scheme, str(SHARED / "schemes" / f"{scheme}.toml")) for scheme in schemes]
        for quant, suffix in (("int8", "qdq"), ("fp32", "10c")):
            path, classes = SHARED / "models" / f"{model}-{suffix}.onnx", 10 if quant == "int8" else None
            options = CompileOptions(path, quant=quant, classes=classes)
            planner = Planner(stored(imported(options), options), options, load_target(options.target), Externals())
            for label, spec in specs:
                train = planner.train(resolve_update(planner.model.graph, spec))
                other = materialised(train.graph) if quant == "int8" else fused(train.graph)
                pair = (train.graph, other) if quant == "int8" else (other, train.graph)
                for kind, graph in zip(("fused", "whole"), pair, strict=True):
                    name = f"{model} {quant} {label} {kind}"
                    if only in name:
                        yield name, graph, train.loss.name
    if only in GENERATED:
        yield GENERATED, *training_graph(depth=4, blocks=99)


def main() -> None:
    """Print the table; without the models, say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="a part of the names of the rows wanted")
    parser.add_argument("--orders", action="store_true", help="leave out placement, which takes most of the time")
    wanted = parser.parse_args()
    if not (SHARED / "models").is_dir():
        print(f"skipped: no models in {SHARED / 'models'} (set TINYTRAIN_SHARED)")
        return
    print(HEADER)
    proven = [row(name, graph, loss, not wanted.orders) for name, graph, loss in graphs(wanted.only)]
    print(f"{sum(proven)} of {len(proven)} orders proven optimal")
    print("late: program order, updates after the backward pass; program: each update at its gradient; both by size")
    print("remat: --remat min; bound: of this order, whatever is computed twice; MACs: extra; units: of CP-SAT's time")
