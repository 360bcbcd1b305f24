"""Inside a float region nothing is rounded or clamped; at its border a clip keeps bits where integers are kept too."""

from __future__ import annotations

import numpy as np
import pytest

from testing.networks.models import Network
from tests.e2e import chain
from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.training import mask_clips

INSIDE = ("Sigmoid", "Normalize")
"""Operators of `float_regions` that other float32 nodes read alone."""


@pytest.fixture(scope="module")
def train() -> TrainGraph:
    return nets.int8_train(nets.float_regions(), head="int8")


def test_values_inside_a_region_are_not_clamped(train: TrainGraph) -> None:
    readers = train.graph.consumers()
    inside = [node for node in train.graph.nodes if node.op in INSIDE]
    assert len(inside) >= len(INSIDE)
    for node in inside:
        assert node.outputs[0].quant is None
        assert {reader.op for reader in readers[node.outputs[0].name]}.isdisjoint({"Clip", "Quantize"})
    clips = [node for node in train.graph.nodes if node.op == "Clip"]
    assert clips
    for clip in clips:
        names = {reader.op for reader in readers[clip.outputs[0].name]}
        assert names & {"Quantize", "Reshape", "Transpose"}, f"{clip.name} is read by {names}"


@pytest.fixture(scope="module")
def flattened() -> TrainGraph:
    """A region that ends in a clip, which a reshape parts from the layer behind it."""
    net = Network("flattened", "float[1, 2, 4, 4] x", "float[1, 3] y", seed=4)
    x = net.conv("first", "x", (4, 2, 3, 3), "pads = [1, 1, 1, 1]")
    net.node("swish", f"swished = HardSwish ({x})")
    net.node("flat", "flat = Flatten <axis = 1> (swished)")
    hidden = net.relu(net.dense("hidden", "flat", 64, 6))
    net.node("y", f"y = Identity ({net.dense('fc', hidden, 6, 3)})")
    return nets.int8_train(net.model())


def test_a_clip_at_the_border_keeps_bits(flattened: TrainGraph) -> None:
    """In the float graph the next layer keeps the clip's output; in integers that layer keeps int8."""
    masked = mask_clips(flattened)
    assert nets.nodes_of(flattened, "ClipGrad")
    assert not nets.nodes_of(masked, "ClipGrad")
    made = {node.outputs[0].name for node in nets.nodes_of(masked, "ClipMask")}
    assert {node.inputs[1].name for node in nets.nodes_of(masked, "MaskedGrad")} <= made
    assert mask_clips(masked) is masked


def test_bits_give_the_same_training(flattened: TrainGraph) -> None:
    results = [chain.check(chain.project(each), mode="host", steps=3) for each in (flattened, mask_clips(flattened))]
    assert [found.result for found in results] == ["pass", "pass"]
    np.testing.assert_array_equal(*(found.losses for found in results))
