"""Required inputs that a node lacks, and values of a type that nothing computes with: one error line, never a crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.campaign.field_mutants import _array  # pyright: ignore[reportPrivateUsage]
from tests.frontend.models import check_against_onnxruntime, parse, write
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model
from tinytrain_compile.training import TrainingOptions
from tinytrain_compile.training.loss import append_loss

WEIGHTS = {
    "w": np.arange(16, dtype=np.float32).reshape(4, 4) / 16,
    "s": np.asarray(0.05, np.float32),
    "z": np.asarray(0, np.int8),
    "bound": np.ones((1,) * 6, np.float32),
    "two": np.asarray([2, 3, 1, 2], np.int64),
}
NODES = {
    "newer than the opset": ("E0228", "y = CastLike(x)"),
    **{op: ("E0228", f"y = {op}(x, , w)") for op in ("Max", "Min", "Mean", "Sum")},
    "Concat": ("E0228", "y = Concat <axis = 0> (x, , w)"),
    "Einsum": ("E0228", 'y = Einsum <equation = "ij,jk,kl->il"> (x, , w)'),
    "stored integers in a product": ("E0501", "q = QuantizeLinear(w, s, z) t = Transpose(q) y = MatMul(x, t)"),
    "truth in a Sigmoid": ("E0501", "b = Equal(x, x) y = Sigmoid(b)"),
    "truth in a Relu": ("E0501", "b = Equal(x, x) y = Relu(b)"),
    "truth in a sum": ("E0501", "b = Equal(x, x) y = Add(x, b)"),
    "truth in a product": ("E0501", "b = Equal(x, x) y = MatMul(b, w)"),
    "bound of more axes than the tensor": ("E0212", "y = Clip(x, , bound)"),
}


@pytest.mark.parametrize("case", NODES)
def test_refused(case: str, tmp_path: Path) -> None:
    code, nodes = NODES[case]
    model = parse(f"net (float[1, 4] x) => (float[1, 4] y) {{ {nodes} }}", WEIGHTS, 13)
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_integer_exponents(tmp_path: Path) -> None:
    model = parse("net (float[1, 4] x) => (float[1, 4] y) { a = Abs(x) y = Pow(a, two) }", WEIGHTS)
    check_against_onnxruntime(model, tmp_path)


@pytest.mark.parametrize("loss", ["mse", "bce", "cross-entropy"])
def test_no_loss_of_truth_values(loss: str, tmp_path: Path) -> None:
    model = parse("net (float[1, 4] x) => (bool[1, 4] y) { a = MatMul(x, w) y = Equal(a, x) }", WEIGHTS)
    imported = load_model(write(model, tmp_path))
    with pytest.raises(CompileError, match="output y: it holds truth values") as caught:
        append_loss(None, imported, TrainingOptions(loss=loss))  # type: ignore[arg-type]
    assert caught.value.code == "E0304"
    assert "train the float32 result before it: --model-output a" in str(caught.value)


def test_the_number_of_the_best_class_leads_to_the_probabilities(tmp_path: Path) -> None:
    text = """net (float[1, 4] x) => (int64[1] y) { a = MatMul(x, w) p = Softmax(a)
        y = ArgMax <axis = -1, keepdims = 0> (p) }"""
    imported = load_model(write(parse(text, WEIGHTS), tmp_path))
    with pytest.raises(CompileError, match=r"it holds integers.*: --model-output p"):
        append_loss(None, imported, TrainingOptions())  # type: ignore[arg-type]


def test_a_weight_of_an_unknown_type_is_no_array() -> None:
    model = parse("net (float[1, 4] x) => (float[1, 4] y) { y = MatMul(x, w) }", WEIGHTS)
    model.graph.initializer[0].data_type = 99
    assert _array(model.graph.initializer[0]) is None
