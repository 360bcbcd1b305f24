"""Reverse mode emits what leads to an updated parameter, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.gradients import LossFunction, largest_error, sample
from tests.training import nets
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import UpdatePlan
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops.base import OPS, NonDifferentiable
from tinytrain_compile.training import TrainingOptions, build_training


def test_head_alone_needs_no_convolution_gradient() -> None:
    train = chain.train_graph(nets.convs(), "head")
    found = nets.ops(train)
    assert found.count("Conv") == 3
    assert found.count("GemmGradWeight") == 1
    absent = ("ConvGradInput", "ConvGradWeight", "GemmGradInput", "ClipGrad", "MaskedGrad", "ClipMask")
    assert not set(absent) & set(found)
    assert nets.updated(train) == {"fc_weight", "fc_bias"}


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_nothing_flows_below_the_lowest_trained_layer(layer: int) -> None:
    train = chain.train_graph(nets.convs(), f"c{layer}/Conv")
    assert nets.count(train, "ConvGradWeight") == 1
    assert nets.count(train, "ConvGradInput") == 2 - layer
    origins = {node.origin for node in train.graph.nodes if node.op.startswith("ConvGrad")}
    assert origins == {f"c{i}/Conv" for i in range(layer, 3)}
    assert nets.updated(train) == {f"c{layer}_weight", f"c{layer}_bias"}


def test_bias_alone_needs_no_weight_gradient_and_no_activation() -> None:
    """The gradient of a bias needs no input of its layer, so only masks are kept from the forward pass."""
    train = chain.train_graph(nets.convs(), "bias")
    assert nets.count(train, "ConvGradWeight") == 0
    assert nets.count(train, "GemmGradWeight") == 1, "bias means all biases and the whole head"
    backward = {"ConvGradInput", "GemmGradInput", "MaskedGrad", "Reduce", "Reshape", "Expand"}
    forward_values = {v.name for node in train.graph.nodes if node.op in ("Conv", "Clip") for v in node.outputs}
    for node in train.graph.nodes:
        if node.op in backward and node.origin != "pool":
            assert not forward_values & {value.name for value in node.inputs}, node


def test_frozen_parameters_stay_in_flash() -> None:
    train = chain.train_graph(nets.convs(), "last:1")
    state = {value.name for value in train.graph.state}
    assert state == {"learning_rate", "fc_weight", "fc_bias"}
    assert {"c0_weight", "c1_weight", "c2_weight"} <= set(train.graph.constants)


def test_dead_nodes_and_constants_are_pruned() -> None:
    for update in ("all", "head", "c1/Conv"):
        train = chain.train_graph(nets.convs(), update)
        graph = train.graph
        needed = graph.ancestors((*graph.outputs, train.loss, *(new for _, new in graph.updates)))
        assert {node.name for node in graph.nodes} == needed
        read = {value.name for node in graph.nodes for value in node.inputs} | {v.name for v in graph.state}
        assert set(graph.constants) == read & set(graph.constants)


def test_gradients_of_shared_parameters_are_summed() -> None:
    train = chain.train_graph(nets.shared_weight())
    assert nets.updated(train) == {"tied", "tied_bias", "head_weight", "head_bias"}
    assert nets.count(train, "SgdUpdate") == 4
    error, where, _ = largest_error(train)
    assert error <= 1e-6, where


def test_gradients_of_a_value_with_two_readers_are_summed() -> None:
    train = chain.train_graph(nets.branches())
    error, where, _ = largest_error(train)
    assert error <= 1e-6, where
    sums = [node for node in train.graph.nodes if node.op == "Add" and "grad" in node.name]
    assert len(sums) == 1


def test_updates_run_after_every_reader_of_the_weight() -> None:
    """In graph order too, so that the plain interpreter and the plan see the same weights."""
    for model in (nets.convs(), nets.shared_weight(), models.transformer(4, 8, 2)):
        graph = chain.train_graph(model).graph
        for old, new in graph.updates:
            place = next(i for i, node in enumerate(graph.nodes) if new in node.outputs)
            later = [node.name for node in graph.nodes[place + 1 :] if old in node.inputs]
            assert later == [], f"{later} read {old.name} after its update"


def test_parameter_that_does_not_lead_to_the_loss_is_left_alone() -> None:
    """Only part of what was asked leads to the loss: that part is trained; if none does, E0303 says so."""
    known = chain.imported(models.mlp())
    lonely = Value("lonely", (3,), origin="nowhere")
    constants = {**known.graph.constants, "lonely": np.ones(3, np.float32)}
    graph = replace(known.graph, constants=constants, parameters=(*known.graph.parameters, lonely))
    model = replace(known, graph=graph)
    train = build_training(model, UpdatePlan({"lonely": None, "fc3_bias": None}, "test"), TrainingOptions())
    assert nets.updated(train) == {"fc3_bias"}
    assert "lonely" not in train.graph.constants
    for plan in (UpdatePlan({}, "nothing"), UpdatePlan({"lonely": None}, "lonely")):
        with pytest.raises(CompileError) as caught:
            build_training(model, plan, TrainingOptions())
        assert caught.value.code == "E0303"


def test_operator_without_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "Tanh", replace(OPS["Tanh"], gradient=NonDifferentiable("a reason")))
    with pytest.raises(CompileError) as caught:
        chain.train_graph(models.mlp())
    assert caught.value.code == "E0502"
    assert "fc2/Tanh" in str(caught.value)
    assert "a reason" in str(caught.value)
    chain.train_graph(models.mlp(), "head")  # not on the way to the head


@pytest.mark.parametrize("update", ["all", "bias", "last:2"])
def test_each_gradient_is_the_one_of_training_everything(update: str) -> None:
    """Leaving out parts of the backward pass changes nothing of what remains (bit for bit in float64)."""
    whole, part = chain.train_graph(nets.convs()), chain.train_graph(nets.convs(), update)
    x, label = sample(whole, 3)
    expected = LossFunction(whole, x, label).gradients()
    found = LossFunction(part, x, label).gradients()
    assert set(found) <= set(expected)
    for name, gradient in found.items():
        np.testing.assert_array_equal(gradient, expected[name])


def test_backward_nodes_carry_the_users_names() -> None:
    graph: Graph = chain.train_graph(nets.convs()).graph
    origins = {node.origin for node in graph.nodes if "Grad" in node.op or "Update" in node.op}
    named = {"fc/Gemm", "c0/Conv", "c1/Conv", "c2/Conv", "c0/Relu", "pool"}
    assert named & origins >= {"fc/Gemm", "c0/Conv", "c1/Conv", "c2/Conv"}
