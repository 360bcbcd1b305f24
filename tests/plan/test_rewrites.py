"""Rewrites of the planner as text: the nodes that go in, and those that come out (`ir/text.py`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from testing.graph_lines import Shapes, lines, read, told, written
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.base import infer
from tinytrain_compile.plan.memories.paging import Move, replay_moves
from tinytrain_compile.plan.options import PlanError
from tinytrain_compile.plan.prepared import with_prepared
from tinytrain_compile.plan.remat.stage import replay
from tinytrain_compile.plan.streams.rewrite import (
    stream_node,
    with_early_slices,
    with_lines,
    with_readers_beside,
    with_streams,
    without_lines,
    without_streams,
)
from tinytrain_compile.plan.views import candidates, with_views

CHAIN = """
    y = Clip(x) {'low': 0.0}
    z = Clip(y) {'low': 1.0}
    u = Add(z; y)
    v = Add(u; y)
"""
SHAPES = dict.fromkeys("xyzuv", (1, 8))


@pytest.mark.parametrize(
    ("order", "again", "after"),
    [
        ("y z y@2 u v", {"y@2": "y"}, "y = Clip(x)\nz = Clip(y)\ny@2 = Clip(x)\nu = Add(z; y@2)\nv = Add(u; y@2)"),
        ("y z u y@2 v", {"y@2": "y"}, "y = Clip(x)\nz = Clip(y)\nu = Add(z; y)\ny@2 = Clip(x)\nv = Add(u; y@2)"),
        ("y z u v", {}, "y = Clip(x)\nz = Clip(y)\nu = Add(z; y)\nv = Add(u; y)"),
    ],
    ids=["before both readers", "before the last reader", "none"],
)
def test_later_readers_read_the_second_run(order: str, again: dict[str, str], after: str) -> None:
    graph, runs = replay(read(SHAPES, CHAIN, outputs="v"), order.split(), again)
    assert written(graph) == lines(after)
    assert [run.name for run in runs] == list(again)


@pytest.mark.parametrize("order", ["y z y@3 u v", "y z y@2 u v w"])
def test_names_of_another_graph_are_no_second_runs(order: str) -> None:
    with pytest.raises(PlanError, match="second runs"):
        replay(read(SHAPES, CHAIN, outputs="v"), order.split(), {"y@2": "y", "y@3": "y"})


def test_an_image_by_rows_is_one_node_more_and_goes_again() -> None:
    graph = read(SHAPES, CHAIN, outputs="v")
    rows = with_lines(graph)
    first, *others = written(rows)
    assert first.startswith("x.lines = ") and others == lines(
        "y = Clip(x.lines)\nz = Clip(y)\nu = Add(z; y)\nv = Add(u; y)"
    )
    assert written(without_lines(rows)) == written(graph)


# ---- page moves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "moves", "after"),
    [
        (
            # y leaves the arena after z and comes back for u and v.
            "y z y.out y.in u v",
            {"y.out": Move("PageOut", "y", "psram"), "y.in": Move("PageIn", "y", "psram")},
            "y = Clip(x)\nz = Clip(y)\ny.out = PageOut(y)\ny.in = PageIn(y.out)\nu = Add(z; y.in)\nv = Add(u; y.in)",
        ),
        (
            # A value that lies in the other memory: a copy for one reader only.
            "y z y.copy u v",
            {"y.copy": Move("PageIn", "y", "psram")},
            "y = Clip(x)\nz = Clip(y)\ny.copy = PageIn(y)\nu = Add(z; y.copy)\nv = Add(u; y)",
        ),
    ],
    ids=["out and in", "a copy for the next node"],
)
def test_readers_of_moved_pages(order: str, moves: Mapping[str, Move], after: str) -> None:
    assert written(replay_moves(read(SHAPES, CHAIN, outputs="v"), order.split(), moves)) == lines(after)


# ---- views ----------------------------------------------------------------------------------------------------------

PARTS = """
    a = Clip(x) {'low': 0.0}
    b = Clip(x) {'low': 1.0}
    c = Concat(a; b) {'axis': 1}
    d = Slice(c) {'starts': (0, 8), 'steps': (1, 1), 'sizes': (1, 8)}
    e = Concat(b; a) {'axis': 1}
"""


def test_joins_and_cuts_that_move_nothing() -> None:
    """a lies in front of b in c, so it cannot lie behind it in e: that is copied."""
    graph = read({"x": (1, 8)}, PARTS, outputs="d e")
    names = candidates(graph, 1)
    assert names == ("c", "d")
    assert written(with_views(graph, names)) == lines("""
        a = Clip(x)
        b = Clip(x)
        c = ConcatView(a; b)
        d = SliceView(c)
        e = Concat(b; a)
    """)
    assert with_views(graph, ()) is graph


# ---- prepared weights -----------------------------------------------------------------------------------------------

TWO_LAYERS = """
    y = QConv(x; k; k.b; k.multiplier; k.shift) {'conv': CONV, 'x_zero': 5, 'y_zero': 0}
    z = QConv(x; k; k.b; k.multiplier; k.shift) {'conv': CONV, 'x_zero': 5, 'y_zero': 3}
""".replace("CONV", "{'': 'ConvAttrs', 'kernel': (3, 3), 'pads': (1, 1, 1, 1), 'bias': True}")
KERNEL = {
    "k": np.arange(144, dtype=np.int8).reshape(4, 3, 3, 4),
    "k.b": np.zeros(4, np.int32),
    "k.multiplier": np.full(4, 2**30, np.int32),
    "k.shift": np.zeros(4, np.int8),
}


@pytest.mark.parametrize(
    ("names", "after", "weights"),
    [
        ("y", "y = QConv(x; k.prepared; k.b; *0.5)\nz = QConv(x; k; k.b; *0.5)", {"k": "int8", "k.prepared": "int16"}),
        ("y z", "y = QConv(x; k.prepared; k.b; *0.5)\nz = QConv(x; k.prepared; k.b; *0.5)", {"k.prepared": "int16"}),
    ],
    ids=["another node reads the int8 weight", "nobody reads the int8 weight"],
)
def test_prepared_weights_stand_in_the_place_of_int8_ones(names: str, after: str, weights: Mapping[str, str]) -> None:
    dtypes = {"x": "int8", **{name: str(data.dtype) for name, data in KERNEL.items()}}
    shapes: Shapes = {"x": (1, 4, 4, 4), **{name: data.shape for name, data in KERNEL.items()}}
    graph = read(shapes, TWO_LAYERS, "y z", constants=KERNEL, dtypes=dtypes)
    found = with_prepared(graph, names.split())
    assert [line.partition(" {")[0] for line in told(found)] == lines(after)
    others = {name: dtypes[name] for name in ("k.b", "k.multiplier", "k.shift")}
    assert {name: str(data.dtype) for name, data in found.constants.items()} == {**others, **weights}
    np.testing.assert_array_equal(found.constants["k.prepared"], KERNEL["k"])


# ---- streams --------------------------------------------------------------------------------------------------------

MAPS: Shapes = {"x": (1, 6, 4, 2), "t": (1, 3, 2, 2)}
ROWS = """
    y = Clip(x) {'low': 0.0}
    z = Clip(y) {'low': 0.5}
    p = MaxPool(z) {'kernel': (2, 2), 'strides': (2, 2), 'pads': (0, 0, 0, 0), 'output_hw': (3, 2)}
    q = Add(p; t)
    s = Slice(y) {'starts': (0, 0, 0, 1), 'steps': (1, 1, 1, 1), 'sizes': (1, 6, 4, 1)}
    r = Clip(s) {'low': 1.0}
"""


def stream_of(graph: Graph, names: str) -> Node:
    """The stream of some nodes, which is there."""
    chosen = names.split()
    found = stream_node(graph, [node for node in graph.nodes if node.name in chosen], "stream")
    assert found is not None
    return found


def test_slices_stand_behind_their_maps() -> None:
    graph = with_early_slices(read(MAPS, ROWS, outputs="q r"))
    assert [node.name for node in graph.nodes] == ["y", "s", "z", "p", "q", "r"]
    check_graph(graph, infer)


@pytest.mark.parametrize(
    ("names", "after"),
    [
        # y stays a result: the slice behind the stream reads it.
        ("y z p", "y; p = Stream(x)|s = Slice(y)|q = Add(p; t)|r = Clip(s)"),
        # The slice is one of its nodes: y is gone.
        ("y z p s", "s; p = Stream(x)|q = Add(p; t)|r = Clip(s)"),
        ("y z", "y; z = Stream(x)|s = Slice(y)|p = MaxPool(z)|q = Add(p; t)|r = Clip(s)"),
    ],
    ids=["a map that others read", "with the slice", "two maps"],
)
def test_nodes_of_a_stream_become_one(names: str, after: str) -> None:
    """It stands where its last node was, slices of its results right behind it; and everything comes back."""
    graph = with_early_slices(read(MAPS, ROWS, outputs="q r"))
    made = with_streams(graph, [stream_of(graph, names)])
    check_graph(made, infer)
    assert written(made) == after.split("|")
    assert sorted(written(without_streams(made))) == sorted(written(graph))
    check_graph(without_streams(made), infer)
    assert with_streams(graph, []) is graph


def test_sums_over_rows_stand_behind_what_they_read() -> None:
    """In front of other layers, so that it can be in the stream of the layer whose error it sums."""
    nodes = """
        d = QRescale(x) {'axes': (), 'x_zero': 0, 'y_zero': 0, 'factor': (1073741824, 1)}
        e = QRescale(d) {'axes': (), 'x_zero': 0, 'y_zero': 0, 'factor': (1073741824, 1)}
        f = QRescale(e) {'axes': (), 'x_zero': 0, 'y_zero': 0, 'factor': (1073741824, 1)}
        g = QRescale(f) {'axes': (), 'x_zero': 0, 'y_zero': 0, 'factor': (1073741824, 1)}
        s = QSum(sum.w; x; e) {'of': 'product', 'conv': {'': 'ConvAttrs', 'kernel': (1, 1)}}
    """
    dtypes = {"x": "int8", "sum.w": "int32"}
    graph = read({"x": (1, 6, 4, 2), "sum.w": (2, 1, 1, 2)}, nodes, "g", "sum.w<-s", dtypes=dtypes)
    moved = with_readers_beside(graph)
    assert [node.name for node in moved.nodes] == ["d", "e", "s", "f", "g"]
    stream = stream_node(graph, moved.nodes[:3], "stream")
    assert stream is not None
    assert written(with_streams(graph, [stream])) == ["e; s = Stream(x; sum.w)", "f = QRescale(e)", "g = QRescale(f)"]
    assert stream_node(graph, [moved.nodes[2]], "stream") is None


def test_what_applies_a_batch_is_in_no_stream() -> None:
    step = read({"x": (1, 6, 4, 2)}, "y = Clip(x) {'low': 0.0}\nz = Clip(y) {'low': 0.5}", "z")
    apply = read({"x": (1, 6, 4, 2)}, "---\ny = Clip(x) {'low': 0.0}\nz = Clip(y) {'low': 0.5}", "z")
    assert stream_node(step, step.nodes, "stream") is not None
    assert stream_node(apply, apply.nodes, "stream") is None
