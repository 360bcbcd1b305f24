"""Layers whose weight the file computes from parameters: these are trained, through what computes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e import chain
from tests.e2e.command import run
from tests.e2e.gradients import largest_error
from tests.frontend.models import check_against_onnxruntime, write
from tests.frontend.nets import Net


def unit(*shape: int) -> np.ndarray:
    vector = np.random.default_rng(len(shape)).normal(size=shape)
    return vector / np.linalg.norm(vector)


def computed(net: Net, kind: str, shape: tuple[int, ...]) -> None:
    """Lines that make `w` from v (and g), as PyTorch's exporters write them."""
    axes, ones = list(range(1, len(shape))), (shape[0], *(1 for _ in shape[1:]))
    net.weight("v", *shape)
    if kind == "weight norm":
        net.table("g", np.linspace(0.5, 2, shape[0]).reshape(ones), np.float32)
        net.add(f"n = ReduceL2 <axes = {axes}, keepdims = 1> (v)")
        net.add("s = Div (v, n)")
        net.add("w = Mul (s, g)")
    elif kind == "weight norm of squares":
        net.table("g", np.linspace(0.5, 2, shape[0]).reshape(ones), np.float32)
        net.add("two = Constant <value_float = 2.0> ()")
        net.add("q = Pow (v, two)")
        net.add(f"q1 = ReduceSum <keepdims = 1> (q, {net.table('axes', axes)})")
        net.add("n = Sqrt (q1)")
        net.add("s = Div (g, n)")
        net.add("w = Mul (v, s)")
    elif kind == "standardised":
        net.add(f"m = ReduceMean <axes = {axes}, keepdims = 1> (v)")
        net.add("c0 = Sub (v, m)")
        net.add("q = Mul (c0, c0)")
        net.add(f"va = ReduceMean <axes = {axes}, keepdims = 1> (q)")
        net.add(f"ve = Add (va, {net.table('eps', 1e-5, np.float32)})")
        net.add("sd = Sqrt (ve)")
        net.add("w = Div (c0, sd)")
    else:
        rest = int(np.prod(shape[1:]))
        net.add(f"mat = Reshape (v, {net.table('flat', (shape[0], rest))})")
        net.add(f"mv = MatMul (mat, {net.table('v_v', unit(rest), np.float32)})")
        net.add(f"sigma = MatMul ({net.table('v_u', unit(shape[0]), np.float32)}, mv)")
        net.add("w = Div (v, sigma)")


def network(kind: str, layer: str) -> onnx.ModelProto:
    size = {"Conv": "3, 8, 8", "depthwise": "6, 8, 8", "Conv 1d": "3, 9", "ConvTranspose": "3, 4, 4", "Gemm": "7"}[
        layer
    ]
    shapes = {"Conv": (6, 3, 3, 3), "depthwise": (6, 1, 3, 3), "Conv 1d": (6, 3, 3), "ConvTranspose": (3, 6, 2, 2)}
    net = Net(f"float[1, {size}] x", "float[1, 5] y")
    shape = shapes.get(layer, (6, 7))
    computed(net, kind, shape)
    bias = net.weight("b", 6)
    if layer == "Gemm":
        net.add(f"c = Gemm <transB = 1> (x, w, {bias})")
        net.add("f = Tanh (c)")
    else:
        operator = "ConvTranspose <strides = [2, 2]>" if layer == "ConvTranspose" else "Conv"
        operator = "Conv <group = 6, pads = [1, 1, 1, 1]>" if layer == "depthwise" else operator
        net.add(f"c = {operator} (x, w, {bias})")
        net.batch_norm("bn", "c", 6)
        net.add("t = Tanh (bn)")
        net.add("p = GlobalAveragePool (t)")
        net.add("f = Flatten (p)")
    net.dense("y", "f", 6, 5)
    return net.model()


KINDS = ("weight norm", "weight norm of squares", "standardised", "spectral")
LAYERS = ("Conv", "depthwise", "Conv 1d", "ConvTranspose", "Gemm")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_what_the_weight_is_computed_from(kind: str, layer: str, tmp_path: Path) -> None:
    imported = check_against_onnxruntime(network(kind, layer), tmp_path)
    trained = {choice.name for choice in imported.choices if choice.trained}
    assert trained >= {"v", "b", "y_w", "y_b", *(["g"] if "norm" in kind else [])}
    assert not trained & {"v_u", "v_v", "eps"}
    error, worst, tensors = largest_error(chain.train_graph(imported, learning_rate=0.5))
    assert error < 1e-5 and tensors >= len({"v", "b", "y_w", "y_b"}), worst


@pytest.mark.parametrize(
    "more",
    [(), ("--batch", "4", "--micro-batch", "2"), ("--update", "last:1"), ("--quant", "int8", "--calib", "x.npz")],
)
def test_on_the_host(more: tuple[str, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(8, 3, 8, 8)).astype(np.float32))
    path = write(network("weight norm", "Conv"), tmp_path)
    given = [tmp_path / a if a.endswith("npz") else a for a in more]
    found = run(path, "--out", tmp_path / "out", "--target", "cortex-m7", "--verify", "host", *given).check_success()
    assert "PASS" in found.out
