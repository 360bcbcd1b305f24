"""What a ReLU keeps for the backward pass: its output if somebody keeps that anyway, else one bit per element."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.gradients import largest_error
from tests.training import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import op_def


def clip_outputs(train: TrainGraph) -> dict[str, Node]:
    return {node.outputs[0].name: node for node in train.graph.nodes if node.op == "Clip"}


def test_output_is_used_where_the_next_layer_keeps_it() -> None:
    """All weights are trained: every ReLU's output is the input of a ConvGradWeight, so no mask is needed."""
    train = chain.train_graph(nets.convs(), "all")
    masked = [node for node in train.graph.nodes if node.op == "ClipMask"]
    assert [node.origin for node in masked] == ["c2/Relu"], "only the pool behind the last one keeps nothing"
    assert nets.count(train, "ClipGrad") == 2


def test_one_bit_where_nobody_keeps_the_output() -> None:
    train = chain.train_graph(nets.convs(), "bias")
    assert nets.count(train, "ClipMask") == nets.count(train, "MaskedGrad") == 3
    assert nets.count(train, "ClipGrad") == 0
    for node in train.graph.nodes:
        if node.op == "ClipMask":
            mask, y = node.outputs[0], node.inputs[0]
            assert mask.dtype == "bits"
            assert mask.size_bytes == (y.elements + 7) // 8


def test_mask_is_made_right_behind_its_clip() -> None:
    graph = chain.train_graph(nets.convs(), "bias").graph
    order = [node.name for node in graph.nodes]
    for node in graph.nodes:
        if node.op == "ClipMask":
            clip = graph.producers()[node.inputs[0].name]
            assert order.index(node.name) == order.index(clip.name) + 1


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "convs": nets.convs,
    "branches": nets.branches,
    "ds_cnn": lambda: models.ds_cnn(8, 2, (12, 6)),
    "resnet8": lambda: models.resnet8(4, 16),
}


@pytest.mark.parametrize("update", ["all", "bias", "last:2", "head"])
@pytest.mark.parametrize("name", MODELS)
def test_never_both_and_never_the_input(name: str, update: str) -> None:
    """For each ReLU the backward pass reads its mask or its output, never both, and never its input for the ReLU."""
    train = chain.train_graph(MODELS[name](), update)
    graph = train.graph
    forward = graph.ancestors((train.loss,))
    backward = [node for node in graph.nodes if node.name not in forward and node.op != "ClipMask"]
    inputs_of_clips = {node.inputs[0].name for node in graph.nodes if node.op == "Clip"}
    read = {value.name for node in backward for value in node.inputs if not op_def(node.op).view}
    for y in clip_outputs(train):
        masks = [node for node in graph.consumers().get(y, []) if node.op == "ClipMask"]
        assert not (masks and y in read), f"{y} is kept twice"
    for node in backward:
        if node.op in ("ClipGrad", "MaskedGrad"):
            assert node.inputs[1].name not in inputs_of_clips
    error, where, _ = largest_error(train)
    assert error <= 1e-6, where


def test_two_gradients_share_one_mask() -> None:
    """A mask belongs to the value: it is computed once however many backward nodes read it."""
    train = chain.train_graph(nets.branches(), "stem/*")
    masks = [node.inputs[0].name for node in train.graph.nodes if node.op == "ClipMask"]
    assert len(masks) == len(set(masks)) == 2
