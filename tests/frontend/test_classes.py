"""--classes: a fresh last layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.frontend import nets
from tests.frontend.models import parse, run_imported, write
from tests.frontend.qdq import quantised_of
from tests.frontend.test_qdq_models import shared_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model


@pytest.mark.parametrize("name", ["mcunet-5fps", "mcunet-5fps-qdq", "proxyless-w0.3-qdq"])
def test_real_model(name: str) -> None:
    path = shared_model(name)
    imported, whole = load_model(path, FrontendOptions(classes=10, seed=3)), load_model(path)
    assert imported.output_shape == (1, 10)
    assert [v.name for v in imported.graph.parameters] == [v.name for v in whole.graph.parameters]
    assert [v.origin for v in imported.graph.parameters] == [v.origin for v in whole.graph.parameters]
    weight, bias = (imported.graph.constants[n] for n in ("fc_w", "fc_b"))
    fan_in = weight.shape[1]
    expected = np.random.default_rng(3).uniform(-1 / np.sqrt(fan_in), 1 / np.sqrt(fan_in), (10, fan_in))
    np.testing.assert_array_equal(weight, expected.astype(np.float32))
    assert not bias.any()
    quants = quantised_of(imported)
    assert quants["fc_w"] is quants["fc_b"] is imported.graph.outputs[0].quant is None
    assert (imported.graph.nodes[-1].inputs[0].quant is not None) == imported.quantised
    rest = {n: a for n, a in imported.graph.constants.items() if n not in ("fc_w", "fc_b")}
    assert all(np.array_equal(a, whole.graph.constants[n]) for n, a in rest.items())


def test_matmul_and_add(tmp_path: Path) -> None:
    """The bias may be an Add; the layer may lie before a softmax."""
    text = """net (float[1, 4] input) => (float[1, 8] output) {
        h = MatMul(input, w)
        g = Add(h, b)
        output = Softmax(g)
        }"""
    weights = {"w": np.ones((4, 8), np.float32), "b": np.ones(8, np.float32)}
    imported = load_model(write(parse(text, weights), tmp_path), FrontendOptions(classes=3))
    assert imported.output_shape == (1, 3)
    assert imported.graph.constants["w"].shape == (3, 4)
    assert np.abs(imported.graph.constants["w"]).max() <= 0.5
    assert np.array_equal(imported.graph.constants["b"], np.zeros(3))


def test_convolution_as_head_behind_a_fixed_reshape(tmp_path: Path) -> None:
    text = """net (float[1, 4, 6, 6] input) => (float[1, 8] output) {
        p = GlobalAveragePool(input)
        c = Conv(p, w, b)
        output = Reshape(c, shape)
        }"""
    weights = {"w": np.ones((8, 4, 1, 1), np.float32), "b": np.ones(8, np.float32)}
    weights["shape"] = np.asarray([1, 8], np.int64)
    imported = load_model(write(parse(text, weights), tmp_path), FrontendOptions(classes=5, seed=1))
    assert imported.output_shape == (1, 5)
    x = np.ones((1, 4, 6, 6), np.float32)
    expected = imported.graph.constants["w"].reshape(5, 4).sum(axis=1)
    np.testing.assert_allclose(run_imported(imported, x)[0][0], expected, rtol=1e-5)


def test_seed_and_layout_do_not_matter_to_each_other(tmp_path: Path) -> None:
    """The same numbers whether the weight lies as (out, in) or (in, out); others with another seed."""
    found = []
    for trans, shape, seed in ((1, (8, 4), 5), (0, (4, 8), 5), (0, (4, 8), 6)):
        text = f"net (float[1, 4] input) => (float[1, 8] output) {{ output = Gemm<transB = {trans}>(input, w) }}"
        path = write(parse(text, {"w": np.ones(shape, np.float32)}), tmp_path)
        found.append(load_model(path, FrontendOptions(classes=3, seed=seed)).graph.constants["w"])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_shared_weight_is_not_changed_elsewhere(tmp_path: Path) -> None:
    text = """net (float[1, 4] input) => (float[1, 4] output) {
        h = Gemm(input, w)
        output = Gemm(h, w)
        }"""
    path = write(parse(text, {"w": np.eye(4, dtype=np.float32)}), tmp_path)
    imported = load_model(path, FrontendOptions(classes=2))
    np.testing.assert_array_equal(imported.graph.constants["w"], np.eye(4))
    assert imported.output_shape == (1, 2)


@pytest.mark.parametrize("classes", [0, -1])
def test_no_such_number(classes: int, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        load_model(write(nets.mlp(), tmp_path), FrontendOptions(classes=classes))
    assert caught.value.code == "E0101"


def test_model_without_a_last_layer(tmp_path: Path) -> None:
    text = "net (float[1, 4] input) => (float[1, 4] output) { output = Add(input, input) }"
    with pytest.raises(CompileError) as caught:
        load_model(write(parse(text), tmp_path), FrontendOptions(classes=2))
    assert caught.value.code == "E0113"
    assert "last Gemm, MatMul or Conv" in str(caught.value)
