"""Files of tf2onnx: the compiler names the parameters of Keras that are not in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.frontend.models import parse, write
from tinytrain_compile.frontend import load_model

RANDOM = np.random.default_rng(8)
DENSE = "net/dense_1/MatMul"


def keras(body: str, weights: dict[str, np.ndarray], names: dict[str, str]) -> onnx.ModelProto:
    """A file with these names, as tf2onnx would give them, of tensors and nodes (by their output)."""
    model = parse(f"net (float[1, 4] x) => (float[1, 3] y) {{ {body} }}", weights)
    model.producer_name = "tf2onnx"
    for node in model.graph.node:
        node.name = names.get(node.output[0], node.output[0])
        node.input[:] = [names.get(name, name) for name in node.input]
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    return model


def notes(model: onnx.ModelProto, folder: Path) -> list[str]:
    return [note for note in load_model(write(model, folder)).graph.notes if "tf2onnx" in note]


def test_a_bias_of_zeros_is_missing_and_named(tmp_path: Path) -> None:
    weights = {"w": RANDOM.normal(size=(4, 3)).astype(np.float32)}
    names = {"w": "net/dense_1/Cast/ReadVariableOp:0", "y": DENSE}
    (note,) = notes(keras("y = MatMul (x, w)", weights, names), tmp_path)
    assert note.startswith(
        "no bias in the file for net/dense_1, and none is trained: tf2onnx leaves out a bias that is zero"
    )
    other = keras("y = MatMul (x, w)", weights, names)
    other.producer_name = "pytorch"
    assert notes(other, tmp_path) == []


@pytest.mark.parametrize("add", ["net/dense_1/BiasAdd", "net/dense_1/Add"])
def test_a_layer_with_its_bias_is_not_named(add: str, tmp_path: Path) -> None:
    weights = {"w": RANDOM.normal(size=(4, 3)).astype(np.float32), "b": RANDOM.normal(size=3).astype(np.float32)}
    names = {"w": "net/dense_1/Cast/ReadVariableOp:0", "h": DENSE, "y": add}
    model = keras("h = MatMul (x, w) y = Add (h, b)", weights, names)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = f"{DENSE}:0"
    assert notes(model, tmp_path) == []


def test_tables_of_batch_normalizations_are_named(tmp_path: Path) -> None:
    weights = {"w": RANDOM.normal(size=(4, 3)).astype(np.float32), "g": RANDOM.normal(size=3).astype(np.float32)}
    names = {"g": "net/bn_1/batchnorm/mul:0"}
    (note,) = notes(keras("h = MatMul (x, w) y = Mul (h, g)", weights, names), tmp_path)
    assert note.startswith("tf2onnx computed net/bn_1/batchnorm/mul:0 from gamma, beta, mean and variance")
