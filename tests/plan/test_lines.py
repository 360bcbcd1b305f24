"""Images that come row by row: what the judges of streams and plans must see, and the memory of real networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.places import SHARED
from tests.e2e.marks import needs_shared
from tests.quantize import lines
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.input_lines import arena_inputs, takes_lines
from tinytrain_compile.ops.interpreter import run_graph
from tinytrain_compile.ops.stream import StreamAttrs, position_bytes
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.check.rewrites import validate_stream, validate_streams
from tinytrain_compile.plan.options import PlanError
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.streams.rewrite import with_lines, without_lines, without_streams
from tinytrain_compile.target.loader import load_target

SEEDS = lines.SEEDS
LAYERS = 5


def stream_of(graph: Graph) -> tuple[Node, StreamAttrs]:
    node = next(node for node in graph.nodes if takes_lines(node))
    assert isinstance(node.attrs, StreamAttrs)
    return node, node.attrs


def test_the_image_is_in_no_plan() -> None:
    """Only a ring of its rows is, and where the stream is."""
    for seed in SEEDS:
        train = lines.train_of(seed)
        graph = lines.longest(train, LAYERS)
        validate_streams(with_lines(train.graph), graph)
        node, attrs = stream_of(graph)
        image = train.graph.inputs[0]
        plan = plan_memory(graph, lines.options(train))
        assert arena_inputs(graph) == () and arena_inputs(train.graph) == (image,)
        assert image.name not in plan.offsets and not any(b.kind == "input" for b in plan.buffers)
        assert plan.order[0] == node
        ring = next(ring for ring in attrs.rings if ring.name == attrs.nodes[0].outputs[0].name)
        form = row_form(attrs.nodes[1])
        assert form is not None and ring.rows <= max(form.reach, form.step)
        assert attrs.position >= 0 and attrs.position + position_bytes(len(attrs.nodes)) <= attrs.scratch_bytes


def test_the_meaning_is_that_of_the_whole_image() -> None:
    train = lines.train_of(2)
    graph = lines.longest(train, LAYERS)
    assert without_lines(without_streams(graph)).nodes == train.graph.nodes
    image, out = train.graph.inputs[0], train.graph.outputs[0].name
    data = np.random.default_rng(0).integers(-128, 128, image.shape).astype(np.int8)
    needed = graph.ancestors(graph.outputs)
    forward = replace(graph, nodes=tuple(n for n in graph.nodes if n.name in needed))
    whole = replace(
        train.graph, nodes=tuple(n for n in train.graph.nodes if n.name in train.graph.ancestors(graph.outputs))
    )
    one, other = (run_graph(g, {image.name: data}, exact=True)[out] for g in (forward, whole))
    np.testing.assert_array_equal(one, other)


def _shorter_ring(attrs: StreamAttrs) -> StreamAttrs | None:
    name = attrs.nodes[0].outputs[0].name
    rings = [replace(ring, rows=ring.rows - 1) if ring.name == name else ring for ring in attrs.rings]
    return replace(attrs, rings=tuple(rings)) if rings != list(attrs.rings) and min(r.rows for r in rings) else None


def _late_row(attrs: StreamAttrs) -> StreamAttrs:
    """The last row that the caller gives comes after what reads it."""
    calls = list(attrs.calls)
    last = max(i for i, call in enumerate(calls) if call.node == 0)
    calls.append(calls.pop(last))
    return replace(attrs, calls=tuple(calls))


def _two_rows_at_once(attrs: StreamAttrs) -> StreamAttrs:
    calls = [call for call in attrs.calls if call.node != 0 or call.first != 1]
    first = next(i for i, call in enumerate(calls) if call.node == 0)
    calls[first] = replace(calls[first], rows=2)
    return replace(attrs, calls=tuple(calls))


def _position_in_a_ring(attrs: StreamAttrs) -> StreamAttrs:
    return replace(attrs, position=attrs.rings[0].offset)


FAULTS: dict[str, Callable[[StreamAttrs], StreamAttrs | None]] = {
    "the image's ring one row short": _shorter_ring,
    "a row of the image too late": _late_row,
    "two rows in one call": _two_rows_at_once,
    "no position": lambda attrs: replace(attrs, position=-1),
    "the position in a ring": _position_in_a_ring,
    "the position outside of scratch": lambda attrs: replace(attrs, position=attrs.scratch_bytes),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name: str) -> None:
    found = [stream_of(lines.longest(lines.train_of(seed), LAYERS)) for seed in SEEDS]
    changed = [(node, attrs) for node, old in found if (attrs := FAULTS[name](old)) is not None]
    assert len(changed) > 2
    for node, attrs in changed:
        validate_stream(node)
        with pytest.raises(PlanError, match="stream"):
            validate_stream(replace(node, attrs=attrs))


def test_nobody_else_reads_the_image_or_runs_before_it() -> None:
    train = lines.train_of(4)
    graph, options = lines.longest(train, LAYERS), lines.options(train)
    plan = plan_memory(graph, options)
    validate_plan(graph, plan, options)
    image = graph.inputs[0]
    reader = Node("reader", "QRescale", (image,), (replace(image, name="copy"),))
    with pytest.raises(PlanError, match="image"):
        plan_memory(replace(graph, nodes=(*graph.nodes, reader)), options)
    made = {value.name for node in plan.order for value in node.outputs}
    early = next(i for i, n in enumerate(plan.order) if i and not any(v.name in made for v in n.inputs))
    order = (plan.order[early], *plan.order[:early], *plan.order[early + 1 :])
    with pytest.raises(PlanError, match="image"):
        validate_plan(graph, replace(plan, order=order), options)


@needs_shared
@pytest.mark.parametrize("network", ["mcunet-5fps", "mbv2-w0.35", "proxyless-w0.3"])
def test_real_networks_train_without_their_image(network: str, tmp_path: Path) -> None:
    """Transient bytes with a sparse scheme: less than the image alone has, which is 49,152."""
    labelled = tmp_path / "xy.npz"
    np.savez(labelled, x=np.zeros((1, 3, 128, 128), np.float32), y=np.zeros(1, np.int64))
    options = CompileOptions(
        model=SHARED / "models" / f"{network}-qdq.onnx",
        update=str(SHARED / "schemes" / f"{network}-49kb.toml"),
        classes=10,
        quant="int8",
        remat="off",
        calib=labelled,
        input_lines=True,
    )
    planner = Planner(stored(imported(options), options), options, load_target("cortex-m7"), Externals())
    plan = planner.exact(options.update).plan
    assert plan.arena_bytes - plan.persistent_bytes <= 48_000
    assert takes_lines(plan.order[0])
