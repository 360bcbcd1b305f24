"""Clamps between two pairs of QuantizeLinear and DequantizeLinear run in integers, whatever the scales of the pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e import chain
from tests.quantize import nets
from tests.quantize.gradients import float_gradients, integer_gradients
from tests.quantize.test_saturated import STEP, expected_of, image_net, in_integers, qdq, samples
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.quantize import QuantOptions, prepare, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

FORMATS = {"b": (0.02, 0), "c": (0.03, 7), "a": (0.02, -128)}
"""A symmetric format as exporters give convolution and ReLU alike, and two others."""


def net(middle: str) -> onnx.ModelProto:
    """The network of one convolution with this behind it, and the bounds of Clips."""
    model = image_net(middle, FORMATS)
    for name, number in (("zero", 0.0), ("six", 1.0)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number, np.float32), name))
    return nets.named(model)


NETS = {
    "of one scale": net(qdq("c", "b", "r") + "z = Relu(r)\n" + qdq("z", "b", "m")),
    "of two bounds": net(qdq("c", "b", "r") + "z = Clip(r, zero, six)\n" + qdq("z", "b", "m")),
    "of two scales": net(qdq("c", "b", "r") + "z = Relu(r)\n" + qdq("z", "c", "m")),
    "to a range that begins at zero": net(qdq("c", "b", "r") + "z = Relu(r)\n" + qdq("z", "a", "m")),
    "behind a pool": net(
        qdq("c", "b", "r")
        + "k = MaxPool<kernel_shape = [2, 2]>(r)\n"
        + qdq("k", "b", "l")
        + "z = Relu(l)\n"
        + qdq("z", "b", "m")
    ),
    "beside another reader": net(
        qdq("c", "b", "r") + "z = Relu(r)\n" + qdq("z", "b", "t") + "s = Add(t, r)\n" + qdq("s", "c", "m")
    ),
}


def training(model: onnx.ModelProto) -> TrainGraph:
    """Build the int8 training graph with an int8 head."""
    known = chain.imported(model)
    known = replace(known, graph=prepare(known.graph, False, True))
    update = resolve_update(known.graph, "all")
    return quantise(build_training(known, update, TrainingOptions(loss="mse")), QuantOptions())


@pytest.mark.parametrize("case", NETS)
def test_a_clamp_between_two_pairs_is_integer(case: str, tmp_path: Path) -> None:
    model, xs = NETS[case], samples(2.0)
    floats = [node.op for node in training(model).graph.nodes if node.op in ("Clip", "ClipGrad", "ClipMask")]
    assert not floats
    known = chain.imported(model)
    found = in_integers(known, False, [x.transpose(known.input_perm) for x in xs])
    for ours, theirs in zip(found, expected_of(model, xs, tmp_path), strict=True):
        np.testing.assert_allclose(ours.ravel(), theirs.ravel(), rtol=0, atol=1.5 * STEP)
    if "pool" in case:  # equal integers make another element of a window win than in float32
        return
    ours, theirs = (of(model)["w"].ravel() for of in (integer_gradients, float_gradients))
    assert ours @ theirs > 0.99 * np.linalg.norm(ours) * np.linalg.norm(theirs)


def test_a_clamp_in_the_scale_of_its_operand_costs_no_node() -> None:
    """It is the bounds of the convolution."""
    both = training(NETS["of one scale"])
    one = training(net("z = Relu(c)\n" + qdq("z", "b", "m")))
    assert [node.op for node in both.graph.nodes] == [node.op for node in one.graph.nodes]
    layers = [next(n for n in train.graph.nodes if n.op == "QConv") for train in (both, one)]
    assert layers[0].attrs == layers[1].attrs
