"""The search of streams: what it leaves out may be left out, and how much work it takes.

The oracle of the cuts tries every stream of every run, as the search did before it had bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from tempfile import NamedTemporaryFile

import pytest

from testing.networks.chains import random_chain, random_shares
from testing.places import SHARED
from tests.e2e.marks import needs_shared
from tests.plan.test_views import random_pieces
from tests.quantize.nets import int8_train
from tinytrain_compile.driver.candidate import core_model
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.ladder import climb
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.shape import ReduceAttrs
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan import planner
from tinytrain_compile.plan.options import PlanOptions, Wish
from tinytrain_compile.plan.planner import Need, least_need, plan_graph, sure_load
from tinytrain_compile.plan.streams import search as stream_search
from tinytrain_compile.plan.streams.rewrite import inner_nodes, stream_node, with_readers_beside, with_streams
from tinytrain_compile.plan.streams.search import Cut, Cutter, StreamModel, needed_streams, proposed, runs_of
from tinytrain_compile.target.loader import load_target

QUICK = PlanOptions(effort="quick")
CHAINS = range(10)
LONGEST = 6
"""Layers in a stream, at most, while its cuts are compared with an enumeration: runs of these chains have up to 9."""
SHARES = 8
"""From this one on, layers are trained in part."""


@cache
def chain(seed: int) -> Graph:
    """A training graph of int8 layers that can be streams; every third trains biases alone."""
    model = random_chain(seed)
    if seed < SHARES:
        return int8_train(model, "last:3" if seed % 3 else "bias").graph
    with NamedTemporaryFile("w", suffix=".toml") as scheme:
        scheme.write(random_shares(model, seed))
        scheme.flush()
        return int8_train(model, scheme.name).graph


def runs(graph: Graph) -> Iterator[Sequence[Node]]:
    for run in runs_of(graph):
        yield graph.nodes[run.start : run.stop]


def tried_all(model: StreamModel, run: Sequence[Node], loads: Sequence[int], floor: int) -> Cut:
    """The best cut by trying all, in order; the first of equals."""
    best = [Cut(floor, 0, ())]
    for end in range(1, len(run) + 1):
        before = best[end - 1]
        found = Cut(max(before.load, loads[end - 1]), before.layers, before.streams)
        for start in range(max(0, end - LONGEST), end - 1):
            stream = model.stream(run[start:end]) if max(loads[start:end]) > floor else None
            if stream is not None:
                before, load = best[start], model.load(stream, run[start:end])
                cut = Cut(max(before.load, load), before.layers + end - start, (*before.streams, stream))
                found = min(found, cut, key=lambda cut: cut.price)
        best.append(found)
    return best[-1]


@pytest.mark.parametrize("seed", CHAINS)
def test_bounds_of_streams_leave_nothing_better_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut is the one that trying all streams gives, and takes fewer; no stream needs less than its bound."""
    monkeypatch.setattr(stream_search, "LONGEST", LONGEST)
    graph = with_readers_beside(chain(seed))
    plan = plan_graph(chain(seed), QUICK).plan
    model = StreamModel(graph, plan, QUICK)
    loads = model.loads
    for run in runs(graph):
        alone = [loads[node.name] for node in run]
        for floor in {0, *alone[::3], *alone[1::5]}:
            cutter = Cutter(model, lambda node: loads[node.name])
            assert cutter.best(run, floor) == tried_all(model, run, alone, floor)
        for start in range(len(run)):
            for end in range(start + 2, min(start + LONGEST, len(run)) + 1):
                stream = model.stream(run[start:end])
                assert stream is None or model.least(run[start:end]) <= model.load(stream, run[start:end])


def test_a_sum_written_over_its_operand_is_no_longer_there_beside_it() -> None:
    """Without streams both lie in one buffer, which the sum's reader needs; the stream's result covers its operand."""
    builder = new_builder()
    x = Value("x", (1, 8, 8, 16), "float32", "NHWC")
    waist = builder.emit("Clip", (x,), ClipAttrs(0.0))
    pads = PoolAttrs((3, 3), (1, 1), (1, 1, 1, 1), output_hw=(8, 8))
    inside = builder.emit("Clip", (builder.emit("MaxPool", (waist,), pads),), ClipAttrs(0.5))
    total = builder.emit("Add", (waist, inside))
    y = builder.emit("Reduce", (total,), ReduceAttrs((1, 2)))
    graph = Graph("sum", tuple(builder.nodes), (x,), (y,), builder.constants)
    plan = plan_graph(graph, QUICK).plan
    assert any({waist.name, total.name} <= set(buffer.values) for buffer in plan.buffers)
    layers, model = graph.nodes[1:4], StreamModel(graph, plan, QUICK)
    stream = model.stream(layers)
    assert stream is not None
    streamed = plan_graph(with_streams(graph, [stream]), QUICK).plan
    step = [node.name for node in streamed.order].index(stream.name)
    assert model.load(stream, layers) == load_of(streamed.buffers, len(streamed.order))[step] < 2 * waist.size_bytes


@pytest.mark.parametrize("seed", CHAINS)
def test_what_a_node_needs_by_itself_no_plan_is_below(seed: int) -> None:
    """A stream that a bound keeps is one that a plan keeps."""
    graph = chain(seed)
    streams = proposed(
        with_readers_beside(graph), plan_graph(graph, QUICK).plan, QUICK, list(runs_of(with_readers_beside(graph)))
    )
    for stream in streams:
        fewer = with_streams(graph, [other for other in streams if other != stream])
        assert (
            sure_load(graph, QUICK, {node.name for node in inner_nodes(stream)}) <= least_need(fewer, QUICK).arena_bytes
        )


@pytest.mark.parametrize("seed", CHAINS)
def test_a_stream_stands_behind_all_that_it_reads(seed: int) -> None:
    """Slices stand in the backward pass, and are read by sums that a stream of errors takes in."""
    graph = chain(seed)
    beside = with_readers_beside(graph)
    streams = [
        stream
        for run in runs(beside)
        for start in range(0, len(run) - 1, 2)
        if (stream := stream_node(beside, run[start : start + 3], "stream")) is not None
    ]
    assert streams
    for stream in streams:
        nodes = with_streams(graph, [stream]).nodes
        made = {value.name: index for index, node in enumerate(nodes) for value in node.outputs}
        late = [v.name for i, node in enumerate(nodes) for v in node.inputs if made.get(v.name, -1) >= i]
        assert late == []


def test_streams_that_lower_what_lives_at_once_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where places of quick plans have such gaps that their arenas tell nothing."""
    graph = chain(2)
    beside = with_readers_beside(graph)
    streams = proposed(beside, plan_graph(graph, QUICK).plan, QUICK, list(runs_of(beside)))
    peak = least_need(with_streams(graph, streams), QUICK).peak_bytes
    assert len(streams) > 1 and peak < least_need(graph, QUICK).peak_bytes

    def with_gaps(graph: Graph, options: PlanOptions, _most: int | None = None) -> Need:
        return replace(least_need(graph, options), arena_bytes=1 << 30)

    monkeypatch.setattr(stream_search, "least_need", with_gaps)
    found, _ = needed_streams(graph, streams, QUICK)
    assert least_need(found, QUICK).peak_bytes == peak
    roomy, _ = needed_streams(graph, streams, QUICK, room=1 << 30)
    assert roomy.nodes == graph.nodes


@pytest.mark.parametrize("seed", range(12))
def test_an_arena_that_nobody_judges_is_that_of_the_plan(seed: int) -> None:
    """With a limit it is exact up to that, and larger where the arena is."""
    graph = random_pieces(seed) if seed % 2 else chain(seed % len(CHAINS))
    exact = plan_graph(graph, QUICK).plan.arena_bytes
    assert least_need(graph, QUICK).arena_bytes == exact
    for most in (exact, exact + 8, exact - 8, exact // 2):
        found = least_need(graph, QUICK, most).arena_bytes
        assert found == exact if exact <= most else found > most


def counted_work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Plans that are judged, graphs whose orders are placed, streams that are looked at and built."""
    counts = dict[str, int](judged=0, placed=0, looked=0, built=0)

    def counting(where: object, name: str, what: str) -> None:
        original = getattr(where, name)

        def counted(*given: object) -> object:
            counts[what] += 1
            return original(*given)

        monkeypatch.setattr(where, name, counted)

    counting(planner, "validate_plan", "judged")
    counting(planner, "choose", "placed")
    counting(StreamModel, "least", "looked")
    counting(StreamModel, "stream", "built")
    return counts


def test_a_graph_is_placed_and_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With streams and without, where a quick plan is the best there is: bounds, prices and the plan are of one."""
    graph, counts = int8_train(random_chain(5), "last:3").graph, counted_work(monkeypatch)
    wish = Wish(core_model(load_target("cortex-m7")), remat="off", stream="min")
    planned, _ = climb(graph, PlanOptions(), wish)
    assert planned.plan.streams is not None
    assert (counts["judged"], counts["placed"]) == (2, 2)
    assert 0 < counts["built"] < counts["looked"]


@needs_shared
def test_the_work_of_a_plan_of_a_real_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """MobileNetV2: no plan but those with all streams, with none, and without the four that it need not have, together;
    less than a seventh of the streams are built."""
    options = CompileOptions(
        SHARED / "models/mbv2-w0.35-qdq.onnx",
        classes=10,
        quant="int8",
        update=str(SHARED / "schemes/mbv2-w0.35-49kb.toml"),
    )
    model, counts = stored(imported(options), options), counted_work(monkeypatch)
    found = Planner(model, options, load_target("cortex-m7"), Externals()).exact(options.update)
    assert found.plan.streams is not None and found.plan.arena_bytes == 100_960
    assert (counts["judged"], counts["placed"]) == (2, 3)
    assert (counts["built"], counts["looked"]) == (44, 375) and 7 * counts["built"] < counts["looked"]
