"""int32 sums that could overflow are refused, from the shapes: one node too wide or one image too large."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from testing.networks import models
from tests.quantize import nets
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ops import OPS


def dense_of(features: int, hidden: int, classes: int = 2) -> onnx.ModelProto:
    """Two dense layers: sums of `features` products forward, of `hidden` ones too, and of `classes` backward."""
    net = models.Network("wide", f"float[1, {features}] x", f"float[1, {classes}] y", seed=5)
    inner = net.dense("inner", "x", features, hidden)
    net.node("logits", f"y = Identity ({net.dense('outer', inner, hidden, classes)})")
    return net.model()


def image_of(height: int, width: int) -> onnx.ModelProto:
    """A 1x1 convolution over height * width pixels."""
    net = models.Network("image", f"float[1, 1, {height}, {width}] x", "float[1, 2] y", seed=6)
    x = net.relu(net.conv("only", "x", (2, 1, 1, 1), "pads = [0, 0, 0, 0]"))
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    net.node("flat", f"y = Flatten <axis = 1> ({mean})")
    return net.model()


LIMITS: dict[str, tuple[onnx.ModelProto, onnx.ModelProto, str]] = {
    "QConv": (dense_of(65_793, 1), dense_of(65_794, 1), "inner/Gemm"),
    "QConvGradInput": (dense_of(1, 1, 131_071), dense_of(1, 1, 131_072), "outer/Gemm"),
    "QConvUpdate": (image_of(241, 273), image_of(134, 491), "only/Conv"),
}
"""Largest shapes with which 255 128 n, 128 128 n and 255 128 pixels are below 2**31, and the next ones."""


@pytest.mark.parametrize("op", LIMITS)
def test_the_first_shape_whose_sums_could_overflow_is_an_error(op: str) -> None:
    fits, over, layer = LIMITS[op]
    train = nets.int8_train(fits, head="int8", loss="mse")
    bounds = [OPS[node.op].accumulator(node.inputs, node.attrs) for node in nets.nodes_of(train, op)]
    assert 2**31 - 255 * 128 <= max(bounds) < 2**31
    with pytest.raises(CompileError) as caught:
        nets.int8_train(over, head="int8", loss="mse")
    assert (caught.value.code, caught.value.exit_code) == ("E0113", 2)
    assert layer in str(caught.value) and f"{op}: its int32 sums can reach" in str(caught.value)
    assert "--quant fp32" in str(caught.value)


@pytest.mark.parametrize(
    "rules",
    [{"batch": 2}, {"store": "q8.8"}, {"optimizer": "momentum"}, {"optimizer": "momentum", "store": "q8.8"}],
    ids=str,
)
def test_every_form_of_an_update_has_the_bound(rules: dict[str, Any]) -> None:
    nets.int8_train(image_of(241, 273), head="int8", loss="mse", **rules)
    with pytest.raises(CompileError, match="its int32 sums can reach"):
        nets.int8_train(image_of(134, 491), head="int8", loss="mse", **rules)
