"""Graphs with streams that nobody would choose: for tests that they compute the same."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.plan.streams.rewrite import stream_node, with_lines, with_readers_beside, with_streams
from tinytrain_compile.plan.streams.search import runs_of


def random_streams(train: TrainGraph, seed: int) -> tuple[Graph, list[Node]]:
    """The graph with its runs of layers cut into streams at random places, and these streams."""
    return _cut(train.graph, train.loss.name, seed)


def random_lines(train: TrainGraph, seed: int) -> tuple[Graph, Graph, list[Node]]:
    """(the graph whose image comes row by row, the same with random streams, these); the graph where no stream can."""
    lined = with_lines(train.graph)
    run = next(runs_of(lined), range(1, 1))
    base = lined if run.start == 0 else train.graph
    return (base, *_cut(base, train.loss.name, seed))


def _cut(whole: Graph, loss: str, seed: int) -> tuple[Graph, list[Node]]:
    random = np.random.default_rng([seed, 43])
    graph, streams = with_readers_beside(whole), list[Node]()
    for run in runs_of(graph):
        start = run.start
        while start < run.stop:
            stop = min(run.stop, start + int(random.integers(1, 8)))
            stop = max(stop, start + 1 + takes_lines(graph.nodes[start]))
            if stop - start > 1:
                node = stream_node(graph, graph.nodes[start:stop], f"stream_{start}", (loss,))
                if node is not None:
                    streams.append(node)
            start = stop
    return with_streams(whole, streams), streams
