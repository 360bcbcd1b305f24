"""Graphs with streams that nobody would choose: for tests that they compute the same."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir import Graph, Node
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.plan.stream_rewrite import stream_node, with_streams, with_sums_beside
from tinytrain_compile.plan.stream_search import runs_of


def random_streams(train: TrainGraph, seed: int) -> tuple[Graph, list[Node]]:
    """The graph with its runs of layers cut into streams at random places, and these streams."""
    random = np.random.default_rng([seed, 43])
    graph, streams = with_sums_beside(train.graph), list[Node]()
    for run in runs_of(graph):
        start = run.start
        while start < run.stop:
            stop = min(run.stop, start + int(random.integers(1, 8)))
            if stop - start > 1:
                node = stream_node(graph, graph.nodes[start:stop], f"stream_{start}", (train.loss.name,))
                if node is not None:
                    streams.append(node)
            start = stop
    return with_streams(train.graph, streams), streams
