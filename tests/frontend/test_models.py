"""Whole models give onnxruntime's output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from testing.places import SHARED
from tests.frontend import nets
from tests.frontend.models import check_against_onnxruntime, ops_of, run_imported
from tinytrain_compile.frontend import load_model

FLOAT_MODELS = [f"{net}{head}" for net in ("mbv2-w0.35", "mcunet-5fps", "proxyless-w0.3") for head in ("-10c", "")]


@pytest.mark.parametrize("name", FLOAT_MODELS)
def test_pretrained_mobile_network(name: str) -> None:
    path = SHARED / "models" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} not found: set TINYTRAIN_SHARED")
    imported = load_model(path)
    x = np.random.default_rng(0).normal(size=(1, 3, 128, 128)).astype(np.float32)
    expected = onnxruntime.InferenceSession(str(path)).run(None, {"input": x})[0]
    np.testing.assert_allclose(run_imported(imported, x)[0], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert imported.graph.inputs[0].shape == (1, 128, 128, 3)
    assert set(ops_of(imported)) == {"Conv", "Clip", "Add", "Reduce", "Reshape", "Gemm"}
    weights = {tensor.name for tensor in onnx.load(path).graph.initializer if not tensor.name.endswith(("_lo", "_hi"))}
    assert {value.name for value in imported.graph.parameters} == weights


def test_mlp(tmp_path: Path) -> None:
    imported = check_against_onnxruntime(nets.mlp(), tmp_path)
    assert ops_of(imported) == ["Gemm", "Clip", "Gemm", "Add", "Tanh", "Gemm"]
    assert [value.name for value in imported.graph.parameters] == ["h1_w", "h1_b", "h2_w", "h2_b", "y_w", "y_b"]
    assert imported.contract == 1


def test_ds_cnn_folds_batch_norm_and_takes_a_symbolic_batch(tmp_path: Path) -> None:
    imported = check_against_onnxruntime(nets.ds_cnn(), tmp_path)
    assert imported.input_shape == (1, 1, 49, 10)
    assert imported.graph.inputs[0].shape == (1, 49, 10, 1)
    assert ops_of(imported) == [*["Conv", "Clip"] * 5, "AveragePool", "Reshape", "Gemm", "Softmax"]
    names = [value.name for value in imported.graph.parameters]
    assert names == [f"{c}_{p}" for c in ("c0", "d1", "p1", "d2", "p2", "fc") for p in "wb"]


def test_resnet8_needs_no_transpose(tmp_path: Path) -> None:
    imported = check_against_onnxruntime(nets.resnet8(), tmp_path)
    assert ops_of(imported).count("Conv") == 9
    assert "Transpose" not in ops_of(imported)
    assert "Mul" not in ops_of(imported)


def test_transformer_block(tmp_path: Path) -> None:
    imported = check_against_onnxruntime(nets.transformer(), tmp_path)
    ops = ops_of(imported)
    assert ops.count("Gelu") == 1
    assert "Erf" not in ops
    assert ops.count("Transpose") == 4  # q, k, v into heads, and back: none for the transposed keys themselves
    assert ops.count("MatMul") == 2
    names = {value.name for value in imported.graph.parameters}
    assert {"position", "q_w", "shift_q", "g1", "b1", "f_w", "f_b", "y_w", "y_b"} <= names
    assert not names & {"sqrt2", "one", "half", "root"}
