"""Which weight gradients are fused with their update, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest

from testing.networks import models
from testing.networks.models import Network
from tests.e2e import chain
from tests.training.nets import ops, shared_weight
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import External, Graph, Node, Value
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.ops.fused_update import FUSED_UPDATE
from tinytrain_compile.ops.names import trained
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.training import fuse_updates

OPTIONS = PlanOptions(effort="quick", keep=("loss",))


def fused(train: TrainGraph) -> dict[str, Node]:
    """Names of the parameters whose gradient is not stored -> their update."""
    found: dict[str, Node] = {}
    for node in train.graph.nodes:
        value = trained(node) or node.inputs[0]
        if node.op == FUSED_UPDATE.name:
            found[value.name] = node
    return found


def stored(train: TrainGraph) -> int:
    """Weight gradients that are stored."""
    return sum(op in ("GemmGradWeight", "ConvGradWeight") for op in ops(train))


def layers(channels: int, size: int) -> onnx.ModelProto:
    """Two 3x3 convolutions of so many channels over size x size pixels, and a dense layer."""
    net = Network("layers", f"float[1, {channels}, {size}, {size}] x", "float[1, 3] y", seed=1)
    shape = (channels, channels, 3, 3)
    first = net.relu(net.conv("first", "x", shape, "pads = [1, 1, 1, 1]"))
    second = net.relu(net.conv("second", first, shape, "pads = [1, 1, 1, 1]"))
    net.node("mean", f"mean = GlobalAveragePool ({second})")
    net.node("flat", "flat = Flatten <axis = 1> (mean)")
    net.node("y", f"y = Identity ({net.dense('fc', 'flat', channels, 3)})")
    return net.model()


def test_a_gradient_that_is_larger_than_its_input_is_not_stored() -> None:
    """9,216 B of 3x3 weights over maps of 1,024 B."""
    plain = chain.train_graph(layers(16, 4))
    train = fuse_updates(plain)
    assert stored(plain) == 3
    assert stored(train) == 0
    assert set(fused(train)) == {"first_weight", "second_weight", "fc_weight"}
    assert [new for _, new in train.graph.updates] == [new for _, new in plain.graph.updates]


def test_a_gradient_that_is_smaller_than_its_input_lets_that_go() -> None:
    """576 B of weights over maps of 4,096 B. The first layer has no data gradient for which an input would wait."""
    train = fuse_updates(chain.train_graph(layers(4, 16)))
    assert set(fused(train)) == {"first_weight", "fc_weight"}
    assert stored(train) == 1


def test_sums_of_a_batch_wait_for_nothing() -> None:
    """What is overwritten is the sum, which no layer reads."""
    train = fuse_updates(chain.train_graph(layers(4, 16), batch=4))
    assert stored(train) == 0
    assert sorted({shown_name(node) for node in fused(train).values()}) == [
        "ConvGradWeightAccumulate",
        "GemmGradWeightAccumulate",
    ]


@pytest.mark.parametrize("make", [lambda: layers(16, 4), lambda: layers(4, 16), models.mlp, models.resnet8])
@pytest.mark.parametrize("batch", [1, 4])
def test_no_arena_grows(make: Callable[[], onnx.ModelProto], batch: int) -> None:
    plain = chain.train_graph(make(), batch=batch)
    options = replace(OPTIONS, keep=(plain.loss.name,))
    before, after = (plan_memory(train.graph, options).arena_bytes for train in (plain, fuse_updates(plain)))
    assert after <= before


def test_a_weight_with_several_gradients_keeps_them() -> None:
    """They are added up before the update."""
    train = fuse_updates(chain.train_graph(shared_weight()))
    assert stored(train) == 2
    assert set(fused(train)) == {"head_weight"}


def test_a_gradient_that_is_an_output_is_stored() -> None:
    plain = chain.train_graph(models.mlp())
    gradient = next(node for node in plain.graph.nodes if node.op == "GemmGradWeight")
    shown = replace(plain, graph=replace(plain.graph, outputs=(*plain.graph.outputs, gradient.outputs[0])))
    assert len(fused(fuse_updates(plain))) == len(fused(fuse_updates(shown))) + 1


def test_a_kernel_of_the_user_keeps_its_gradient() -> None:
    plain = chain.train_graph(models.mlp())
    gradient = next(node for node in plain.graph.nodes if node.op == "GemmGradWeight")
    given = replace(gradient, external=External("their_kernel"))
    nodes = tuple(given if node is gradient else node for node in plain.graph.nodes)
    train = fuse_updates(replace(plain, graph=replace(plain.graph, nodes=nodes)))
    assert given in train.graph.nodes
    assert len(fused(train)) == len(fused(fuse_updates(plain))) - 1


def test_ancestors_are_not_looked_up_for_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was: most of the time that a network of a thousand layers took."""
    train, walks, ancestors = chain.train_graph(models.mlp()), list[int](), Graph.ancestors

    def counted(self: Graph, targets: tuple[Value, ...]) -> frozenset[str]:
        walks.append(len(targets))
        return ancestors(self, targets)

    monkeypatch.setattr(Graph, "ancestors", counted)
    assert len(fused(fuse_updates(train))) > 1 >= len(walks)


def test_nothing_to_fuse_is_the_same_graph() -> None:
    train = fuse_updates(chain.train_graph(models.mlp()))
    assert fuse_updates(train) is train


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad", "rmsprop", "lion"])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_reference_is_the_same_to_the_byte(optimizer: str, batch: int) -> None:
    plain = chain.train_graph(layers(4, 6), optimizer=optimizer, batch=batch)
    train = fuse_updates(plain)
    samples = random_samples(plain, 3 * batch, 0)
    one, other = run_reference(plain, samples, 3), run_reference(train, samples, 3)
    np.testing.assert_array_equal(one.losses, other.losses)
    for before, after in zip(one.states, other.states, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


def _before_the_data_gradient(graph: Graph, weight: str) -> tuple[str, str]:
    """(the fused update of a weight, the data gradient that reads the old weight)."""
    update = next(node.name for node in graph.nodes if node.op == FUSED_UPDATE.name and node.inputs[0].name == weight)
    reader = next(n.name for n in graph.nodes if n.op == "ConvGradInput" and weight in [v.name for v in n.inputs])
    return update, reader


def test_an_update_before_the_last_reader_of_the_old_weight_is_refused() -> None:
    train = fuse_updates(chain.train_graph(layers(16, 4)))
    options = replace(OPTIONS, keep=(train.loss.name,))
    plan = plan_memory(train.graph, options)
    validate_plan(train.graph, plan, options)
    update, reader = _before_the_data_gradient(train.graph, "second_weight")
    order = [node for node in plan.order if node.name != update]
    place = next(i for i, node in enumerate(order) if node.name == reader)
    order.insert(place, next(node for node in plan.order if node.name == update))
    with pytest.raises(PlanError, match="second_weight"):
        validate_plan(train.graph, replace(plan, order=tuple(order)), options)
