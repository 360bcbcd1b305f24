"""Concats and Slices as views: which ones can be, that nothing else changes, and that the judge sees a wrong place."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.plan.arena_run import infer, truth_of
from tinytrain_compile.ir import Graph, GraphBuilder, Value, check_graph
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops import infer as infer_types
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.shape import ConcatAttrs, ReshapeAttrs, SliceAttrs
from tinytrain_compile.plan import PlanOptions, plan_graph, plan_memory
from tinytrain_compile.plan.parts import candidates, with_views

QUICK = PlanOptions(effort="quick")


def cut(builder: GraphBuilder, value: Value, start: int, size: int, name: str = "") -> Value:
    return builder.emit("Slice", (value,), SliceAttrs((0, start), (1, 1), (1, size)), name=name or None)


def graph_of(builder: GraphBuilder, x: Value, *outputs: Value) -> Graph:
    graph = Graph("g", tuple(builder.nodes), (x,), outputs, builder.constants)
    check_graph(graph, infer_types)
    return graph


def start() -> tuple[GraphBuilder, Value]:
    builder = new_builder()
    return builder, Value(builder.unique("x"), (1, 8))


def views_of(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes if node.op in ("Join", "Part")}


def results_agree(graph: Graph, planned: Graph, plan: MemoryPlan) -> None:
    feeds = {"x": np.random.default_rng(3).standard_normal(graph.inputs[0].shape).astype(np.float32)}
    truth = truth_of(graph, feeds)
    for value, got in zip(graph.outputs, infer(planned, plan, feeds), strict=True):
        np.testing.assert_array_equal(got, truth[value.name].reshape(got.shape))


def random_pieces(seed: int) -> Graph:
    """Joins of joins, cuts of cuts, in-place chains, views between, inputs twice: all of one row, floats."""
    draw = random.Random(seed)
    builder, x = start()
    pool = [x]
    for _ in range(draw.randint(4, 14)):
        value, other = draw.choice(pool[-4:]), draw.choice(pool)
        kind, size = draw.randrange(5), value.shape[1]
        if kind == 0 and size + other.shape[1] <= 64:
            pool.append(builder.emit("Concat", draw.sample([value, other], 2), ConcatAttrs(1)))
        elif kind == 1 and size >= 4:
            at = draw.choice([0, 2, size // 2])
            pool.append(cut(builder, value, at, draw.choice([2, size - at])))
        elif kind == 2:
            pool.append(builder.emit("Reshape", (value,), ReshapeAttrs((1, size))))
        elif kind == 3 and size == other.shape[1]:
            pool.append(builder.emit("Mul", (value, other)))
        else:
            pool.append(builder.emit(draw.choice(["Neg", "Exp"]), (value,)))
    sums = [builder.emit("Tanh", (value,)) for value in draw.sample(pool[1:], 2)]
    return graph_of(builder, x, *sums, *draw.sample(pool[1:], draw.randrange(2)))


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_random_pieces_compute_the_same_where_they_lie(effort: str) -> None:
    viewed = smaller = 0
    for seed in range(250 if effort == "quick" else 60):
        graph = random_pieces(seed)
        options = PlanOptions(effort=effort, deterministic_time=0.3)
        planned = plan_graph(graph, options)
        results_agree(graph, planned.graph, planned.plan)
        every = with_views(graph, candidates(graph, 8))
        results_agree(graph, every, plan_memory(every, QUICK))
        copied = plan_memory(graph, replace(options, effort="quick"))
        assert planned.plan.arena_bytes <= copied.arena_bytes
        if effort == "full":
            assert planned.plan.arena_bytes <= plan_graph(graph, replace(options, effort="quick")).plan.arena_bytes
        viewed += len(views_of(planned.graph))
        smaller += planned.plan.arena_bytes < copied.arena_bytes
    assert viewed >= (200 if effort == "quick" else 60)
    assert smaller >= (40 if effort == "quick" else 8)
