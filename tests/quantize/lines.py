"""Small int8 networks whose image comes row by row: as the command line makes them, without it."""

from __future__ import annotations

from functools import cache

from testing.networks.chains import random_chain
from tests.e2e import chain
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.trial import with_exponents_of
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.streams.rewrite import stream_node, with_lines, with_streams
from tinytrain_compile.plan.streams.search import runs_of, streamed
from tinytrain_compile.target.loader import load_target

SEEDS = (1, 2, 3, 4, 5, 8)
"""Chains whose first layers have kernels of rows."""


@cache
def train_of(seed: int, batch: int = 1) -> TrainGraph:
    """The last layers of a random chain; error exponents are compiled in."""
    train = nets.int8_train(random_chain(seed), "last:3", learning_rate=0.05, batch=batch)
    return with_exponents_of(train, random_samples(train, 2 * batch, 1))


@cache
def float_train(seed: int) -> TrainGraph:
    """The same of a float chain."""
    return chain.train_graph(random_chain(seed), "last:3", learning_rate=0.05)


def options(train: TrainGraph) -> PlanOptions:
    """Quick plans at what AddressSanitizer can tell apart."""
    return PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,))


def lined(train: TrainGraph) -> Graph:
    """The graph with its image row by row, and streams where they pay."""
    return streamed(with_lines(train.graph), options(train))


def longest(train: TrainGraph, layers: int, as_bytes: bool = False) -> Graph:
    """The same with one stream of so many layers, if there are so many."""
    graph = with_lines(train.graph, as_bytes)
    run = next(runs_of(graph))
    stop = min(run.stop, run.start + 1 + layers)
    node = stream_node(graph, graph.nodes[run.start : stop], "lines", (train.loss.name,))
    assert run.start == 0 and node is not None
    return with_streams(graph, [node])


def project(train: TrainGraph, graph: Graph, core: str = "cortex-m7", name: str = "net") -> chain.Project:
    """Planned quickly, lowered for a core, and emitted."""
    target = load_target(core)
    plan = plan_memory(graph, options(train))
    context = kernel_context(target.features, not train.integer)
    kernels = lower_nodes(plan.order, LowerOptions(name, context), cache=chain.KERNELS)
    return chain.emitted(train, plan, kernels, 8, name, fma=target.features.fma and not train.integer)
