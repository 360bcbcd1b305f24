"""--update auto of networks of very many layers: what is left out, and that nothing is claimed of it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from testing.networks import models
from tests.driver.planning import planner
from tests.e2e.broken import write
from tinytrain_compile.driver.candidates import ladder
from tinytrain_compile.driver.search import best as update_best
from tinytrain_compile.driver.search.choose import search_update
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.plan import planner as plan_planner
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.sparse import PRIOR, UNITS, gain_of_plan, resolve_update


def chain(layers: int) -> onnx.ModelProto:
    """Dense layers of eight, with a Relu behind each."""
    net = models.Network("chain", "float[1,8] x", "float[1,8] y", seed=1)
    value = "x"
    for index in range(layers):
        value = net.relu(net.dense(f"fc{index}", value, 8, 8))
    net.node("tail", f"y = Identity ({value})")
    return net.model()


def residual(layers: int) -> onnx.ModelProto:
    """Convolutions of equal shape with a Relu behind each, whose inputs are added to what they compute."""
    net = models.Network("residual", "float[1,8,8,8] x", "float[1,4] y", seed=1)
    value = "x"
    for index in range(layers):
        conv = net.relu(net.conv(f"conv{index}", value, (8, 8, 3, 3), "pads = [1, 1, 1, 1]"))
        value = net.node(f"add{index}", f"a{index} = Add ({conv}, {value})")
    pooled = net.node("pool", f"pooled = GlobalAveragePool ({value})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({pooled})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 8, 4)})")
    return net.model()


def test_quick_plans_of_a_search_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """46, of graphs of up to 191 nodes. A search for rows, which save 1 % here, in each of them takes 8 more."""
    path = Path(write(residual(14), tmp_path))
    whole = planner(path).plain("all")
    made = list[int]()
    begin = plan_planner.QuickPlan.__init__

    def counted(self: plan_planner.QuickPlan, graph: Graph, options: PlanOptions) -> None:
        made.append(len(graph.nodes))
        begin(self, graph, options)

    monkeypatch.setattr(plan_planner.QuickPlan, "__init__", counted)
    asked = planner(path, arena_bytes=whole.plan.arena_bytes * 2 // 5)
    found = search_update(asked, asked.layer_count, proof=False)
    assert found.plan.arena_bytes > 0.95 * whole.plan.arena_bytes * 2 // 5
    assert len(made) <= 48


def test_the_layers_of_the_end_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What those in front of them may gain stays in the bound, so that nothing counts as proven; all of those that are
    looked at go by their name."""
    path = Path(write(chain(6), tmp_path))
    room = planner(path).exact("last:4").plan.arena_bytes
    asked = planner(path, arena_bytes=room)
    known = search_update(asked, asked.layer_count, proof=False).choice.update
    assert known is not None
    monkeypatch.setattr(update_best, "MOST_LAYERS", 2)
    found = search_update(planner(path, arena_bytes=room), asked.layer_count)
    choice = found.choice.update
    assert found.label == "auto: last:2" and choice is not None and not choice.proven
    every = gain_of_plan(asked.model.graph, resolve_update(asked.model.graph, "last:6"), PRIOR)
    assert choice.gain < known.gain < choice.best_gain == every / UNITS


def test_a_search_in_a_large_graph_does_without_second_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for them for each of many updates takes too long; what is asked for by name gets them."""
    path = Path(write(models.resnet8(channels=4, size=8, classes=4), tmp_path))
    alone = {"stream": "off"}
    without = planner(path, remat="off", **alone).exact("all").plan.arena_bytes
    limit = {**alone, "arena_bytes": without - 64}
    found = planner(path, **limit).fitting("all")
    assert found is not None and found.plan.remat is not None
    monkeypatch.setattr(ladder, "MANY_NODES", 10)
    assert planner(path, **limit).fitting("all") is None
    assert planner(path, **limit).exact("all").plan.remat is not None
