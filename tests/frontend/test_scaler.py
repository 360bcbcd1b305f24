"""Files of skl2onnx: a Scaler in front of a network is a part of what computes, and is not trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.models import judged_by_the_file, parse, run_imported, write
from tinytrain_compile.frontend import load_model


def scaled(**numbers: list[float]) -> onnx.ModelProto:
    """Scaler -> dense layer."""
    rng = np.random.default_rng(4)
    weights = {"w": rng.normal(size=(4, 3)).astype(np.float32)}
    model = parse("net (float[1, 4] x) => (float[1, 3] y) { s = Relu (x)\n y = MatMul (s, w) }", weights)
    scaler = helper.make_node("Scaler", ["x"], ["s"], name="scaler", domain="ai.onnx.ml", **numbers)
    model.graph.node[0].CopyFrom(scaler)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return model


@pytest.mark.parametrize(
    "numbers",
    [
        {"offset": [1.0, 2.0, -3.0, 0.5], "scale": [0.5, 2.0, 4.0, 0.1]},
        {"offset": [1.0], "scale": [0.25]},
        {"scale": [0.5, 2.0, 4.0, 0.1]},
        {"offset": [1.0, 2.0, -3.0, 0.5]},
    ],
)
def test_a_scaler_computes_and_is_not_trained(numbers: dict[str, list[float]], tmp_path: Path) -> None:
    path = write(scaled(**numbers), tmp_path)
    imported = load_model(path)
    assert [value.name for value in imported.graph.parameters] == ["w"]
    x = np.asarray([[3.0, -1.0, 0.5, 2.0]], np.float32)
    offset, scale = (np.asarray(numbers.get(key, [default])) for key, default in (("offset", 0.0), ("scale", 1.0)))
    (found,) = run_imported(imported, x)
    np.testing.assert_allclose(found, (x - offset) * scale @ imported.graph.constants["w"].T, rtol=1e-5)
    if len(numbers) == 2:  # onnx.reference wants both
        judged_by_the_file(path, imported, x)
