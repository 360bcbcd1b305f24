"""Rewrites of the planner as text: the nodes that go in, and those that come out (`ir/text.py`)."""

from __future__ import annotations

import pytest

from testing.graph_lines import lines, read, written
from tinytrain_compile.plan.options import PlanError
from tinytrain_compile.plan.remat.stage import replay
from tinytrain_compile.plan.streams.rewrite import with_lines, without_lines

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
