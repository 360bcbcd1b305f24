"""Concats and Slices as views: which ones can be, that nothing else changes, and that the judge sees a wrong place."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from tests.plan.arena_run import infer, truth_of
from tests.plan.random_tasks import optimum
from tinytrain_compile.ir.buffers import offsets_of
from tinytrain_compile.ir.graph import GraphBuilder, check_graph
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops import infer as infer_types
from tinytrain_compile.ops import new_builder, op_def
from tinytrain_compile.ops.shape import ConcatAttrs, ReshapeAttrs, SliceAttrs
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.model import build_model, program_order
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.order.exact import Optimum, smallest_peak
from tinytrain_compile.plan.order.order import cut_bound, peak, peak_bound
from tinytrain_compile.plan.order.ranks import rank_order
from tinytrain_compile.plan.planner import arena_bound, plan_graph, plan_memory
from tinytrain_compile.plan.views import candidates, with_views
from tinytrain_compile.report.text import proof

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
    return {node.name for node in graph.nodes if node.op in ("ConcatView", "SliceView")}


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


def smallest_by_views(graph: Graph, options: PlanOptions) -> int:
    """The arena with the best of all sets of views."""
    pieces = [node.name for node in graph.nodes if op_def(node.op).as_view]
    sets = itertools.chain(*(itertools.combinations(pieces, count) for count in range(len(pieces) + 1)))
    graphs = {with_views(graph, candidates(graph, 8, copied)) for copied in sets}
    return min(plan_memory(one, options).arena_bytes for one in graphs)


def test_no_views_need_less_than_the_bound_says() -> None:
    """Which a proof of --update auto rests on. A node that reads a map and a slice of it needs no bytes for both."""
    builder, x = start()
    half = cut(builder, x, 0, 4)
    both = builder.emit("Concat", (half, x), ConcatAttrs(1))
    graph = graph_of(builder, x, builder.emit("Tanh", (both,)), builder.emit("Neg", (half,)))
    known = [graph, *(random_pieces(seed) for seed in range(60))]
    for one in known:
        if sum(op_def(node.op).as_view is not None for node in one.nodes) <= 4:
            assert arena_bound(one, QUICK, once=False) <= smallest_by_views(one, QUICK)


def test_optimal_is_said_of_the_steps_of_a_plan() -> None:
    """No order of them needs less, by an engine of its own; but other views may."""
    options, proven, others = PlanOptions(deterministic_time=0.3), 0, 0
    for seed in range(40):
        graph = random_pieces(seed)
        planned = plan_graph(graph, options)
        model = build_model(planned.graph, options)
        if planned.plan.order_proven and planned.plan.gap_bytes == 0 and len(model.nodes) <= 8:
            least = optimum(model.tasks)
            below = planned.plan.persistent_bytes + options.reserved(options.header_bytes)
            assert planned.plan.arena_bytes == below + least
            assert proof(planned.plan) == "OPTIMAL for these steps"
            proven += 1
    for seed in (17, 27):
        graph = random_pieces(seed)
        plan = plan_graph(graph, options).plan
        others += "OPTIMAL" in proof(plan) and smallest_by_views(graph, options) < plan.arena_bytes
    assert proven >= 5 and others >= 1


def test_what_may_not_be_a_view() -> None:
    builder, x = start()
    a, b = builder.emit("Neg", (x,)), builder.emit("Exp", (x,))
    odd = cut(builder, a, 1, 4, "misaligned")
    back = builder.emit("Slice", (a,), SliceAttrs((0, 7), (1, -1), (1, 8)), name="backwards")
    apart = builder.emit("Slice", (a,), SliceAttrs((0, 0), (1, 2), (1, 4)), name="strided")
    twice = builder.emit("Concat", (a, a), ConcatAttrs(1), name="twice")
    first = builder.emit("Concat", (a, b), ConcatAttrs(1), name="first")
    other = builder.emit("Concat", (b, a), ConcatAttrs(1), name="elsewhere")
    flash = builder.emit("Concat", (a, builder.constant("k", np.ones((1, 8), np.float32))), ConcatAttrs(1), name="k")
    rows = builder.emit("Concat", (first, other), ConcatAttrs(0), name="rows")
    columns = builder.emit("Concat", (rows, rows), ConcatAttrs(1), name="columns")
    head = cut(builder, x, 0, 2, "of the input")
    graph = graph_of(builder, x, odd, back, apart, twice, flash, columns, head)
    assert candidates(graph, 8) == ("first", "rows", "of the input")
    assert candidates(graph, 8, ("first",)) == ("elsewhere", "rows", "of the input")
    assert candidates(graph, 4) == ("misaligned", "first", "rows", "of the input")


def test_contiguous_means_next_to_each_other_in_memory() -> None:
    """Rows of one image, channels of one pixel; not channels of several pixels, not rows of two images."""
    shapes = {(1, 4, 4, 8): (1,), (1, 1, 4, 8): (1, 2), (1, 1, 1, 8): (1, 2, 3), (2, 4, 4, 8): (0,), (1, 8): (0, 1)}
    for shape, axes in shapes.items():
        builder = new_builder()
        x = Value(builder.unique("x"), shape)
        a, b = builder.emit("Neg", (x,)), builder.emit("Exp", (x,))
        for axis in range(len(shape)):
            joined = builder.emit("Concat", (a, b), ConcatAttrs(axis))
            starts = op_def("Concat").placed.starts(builder.nodes[-1])
            first = next((i for i, dim in enumerate(shape) if dim > 1), 0)
            assert (starts is not None) == (axis <= first), (shape, axis)
            sizes = tuple(1 + (dim - 1) // 2 if i == axis else dim for i, dim in enumerate(shape))
            builder.emit("Slice", (joined,), SliceAttrs((0,) * len(shape), (1,) * len(shape), sizes))
            if joined.shape[axis] > 1 and axis in axes and shape[0] == 1:
                assert op_def("Slice").placed.starts(builder.nodes[-1]) == (0,)


def joined_branches() -> Graph:
    """x -> exp -> a; x -> tanh -> neg -> b; a and b joined; the second half cut out, and made anew in its place."""
    builder, x = start()
    a = builder.emit("Exp", (x,), name="a")
    before = builder.emit("Tanh", (x,), name="before")
    b = builder.emit("Neg", (before,), name="b")
    whole = builder.emit("Concat", (a, b), ConcatAttrs(1), name="whole")
    half = cut(builder, whole, 8, 8, "half")
    after = builder.emit("Neg", (half,), name="after")
    total = builder.emit("Mul", (after, cut(builder, whole, 0, 8, "other")), name="total")
    return graph_of(builder, x, total)


def viewed_plan() -> tuple[Graph, MemoryPlan]:
    graph = joined_branches()
    viewed = with_views(graph, candidates(graph, 8))
    return viewed, plan_memory(viewed, QUICK)


def test_in_place_chains_go_through_parts() -> None:
    _, plan = viewed_plan()
    at = plan.offsets
    assert at["a"] == at["whole"] == at["other"]
    assert at["before"] == at["b"] == at["half"] == at["after"] == at["whole"] + 32
    home = next(buffer for buffer in plan.buffers if "whole" in buffer.values)
    assert home.size_bytes == 64
    assert dict(home.within)["half"] == 32
    assert offsets_of(plan.buffers) == dict(at)


@pytest.mark.parametrize(
    ("name", "by", "verdict"),
    [
        ("whole", 8, "view broken"),
        ("half", -8, "view broken"),
        ("b", -32, "view broken"),
        ("after", -8, "overlap"),
        ("after", -32, "overlap"),
    ],
)
def test_a_wrong_place_is_seen(name: str, by: int, verdict: str) -> None:
    graph, plan = viewed_plan()
    offsets = {**plan.offsets, name: plan.offsets[name] + by}
    with pytest.raises(PlanError) as caught:
        validate_plan(graph, replace(plan, offsets=offsets), QUICK)
    assert caught.value.verdict == verdict


def test_a_part_that_is_overwritten_before_its_whole_is_read_is_seen() -> None:
    """`after` lies over the second half of `whole`: wrong as soon as somebody reads that half later."""
    graph, plan = viewed_plan()
    early, late = (next(n for n in plan.order if n.name == name) for name in ("after", "total"))
    half = early.inputs[0]
    reader = replace(late, inputs=(late.inputs[0], half))
    nodes = tuple(reader if node.name == "total" else node for node in graph.nodes)
    order = tuple(reader if node.name == "total" else node for node in plan.order)
    with pytest.raises(PlanError) as caught:
        validate_plan(replace(graph, nodes=nodes), replace(plan, order=order), QUICK)
    assert caught.value.verdict == "write after read"


def test_a_view_of_what_cannot_lie_there_is_no_plan() -> None:
    builder, x = start()
    a = builder.emit("Neg", (x,))
    twice = builder.emit("Concat", (a, a), ConcatAttrs(1), name="twice")
    with pytest.raises(PlanError) as caught:
        plan_memory(with_views(graph_of(builder, x, twice), ("twice",)), QUICK)
    assert caught.value.verdict == "no view"


def test_orders_of_graphs_with_parts_are_proven_by_two_engines() -> None:
    """Storages with several writers: the search and CP-SAT agree with every order tried."""
    pairs = compared = 0
    for seed in range(60):
        graph = random_pieces(seed)
        views = candidates(graph, 8)
        if not views or len(graph.nodes) > 9:
            continue
        model = build_model(with_views(graph, views), QUICK)
        best = optimum(model.tasks)
        start_order = program_order(model.tasks)
        bound = cut_bound(model.tasks, start_order, peak_bound(model.tasks))
        assert bound <= best
        assert smallest_peak(model.tasks, start_order, bound, 1_000_000).peak == best
        worst = Optimum(tuple(start_order), peak(model.tasks, start_order), bound)
        assert rank_order(model.tasks, worst, 20.0, 0).peak == best
        pairs += any(len(model.tasks.touchers[pair.output]) > 2 for found in model.tasks.inplace for pair in found)
        compared += 1
    assert compared >= 15
    assert pairs >= 5
