"""Inference-mode BatchNormalization in training: folded with a note, or gamma and beta apart as the framework trains.

The oracle is that of tests/frontend/file_training.py: the file itself, in float64, with frozen statistics.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e import chain
from tests.e2e.command import run
from tests.frontend.file_training import FileTraining, check_training, import_file, our_losses
from tests.frontend.models import parse, write
from tinytrain_compile.frontend import FrontendOptions
from tinytrain_compile.sparse import layers_of, resolve_update

STATISTICS = ("mean", "var", "mean2", "var2")


def norm(channels: int, suffix: str = "") -> dict[str, np.ndarray]:
    """Gamma, beta, mean and variance of a network that was trained: channels differ by far."""
    random = np.random.default_rng(channels)
    found = {
        "gamma": random.uniform(0.5, 1.5, channels),
        "beta": random.normal(0, 0.2, channels),
        "mean": random.normal(0, 0.5, channels),
        "var": 10.0 ** np.linspace(-1.0, 0.6, channels),
    }
    return {f"{name}{suffix}": data.astype(np.float32) for name, data in found.items()}


def conv(bias: bool) -> onnx.ModelProto:
    random = np.random.default_rng(1)
    weights = {
        "K": random.normal(0, 0.4, (3, 2, 2, 2)).astype(np.float32),
        "bias": random.normal(0, 0.4, 3).astype(np.float32),
        "head": random.normal(0, 0.6, (3, 3)).astype(np.float32),
    }
    if not bias:
        del weights["bias"]
    text = f"""net (float[1, 2, 4, 4] x) => (float[1, 3] y) {{
        c = Conv (x, K{", bias" if bias else ""})
        n = BatchNormalization (c, gamma, beta, mean, var)
        r = Relu (n)
        pooled = GlobalAveragePool (r)
        flat = Flatten (pooled)
        y = MatMul (flat, head) }}"""
    return parse(text, weights | norm(3))


def dense() -> onnx.ModelProto:
    """Behind a Gemm, and in front of one: the second cannot be folded."""
    random = np.random.default_rng(2)
    shapes = {"W": (4, 5), "b": (4,), "V": (4, 3)}
    weights = {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    text = """net (float[1, 5] x) => (float[1, 3] y) {
        g = Gemm <transB = 1> (x, W, b)
        n = BatchNormalization (g, gamma, beta, mean, var)
        t = Tanh (n)
        m = BatchNormalization (t, gamma2, beta2, mean2, var2)
        y = MatMul (m, V) }"""
    return parse(text, weights | norm(4) | norm(4, "2"))


def signal() -> onnx.ModelProto:
    random = np.random.default_rng(4)
    weights = {
        "K": random.normal(0, 0.4, (3, 2, 3)).astype(np.float32),
        "V": random.normal(0, 0.4, (12, 2)).astype(np.float32),
    }
    text = """net (float[1, 2, 6] x) => (float[1, 2] y) {
        c = Conv (x, K)
        n = BatchNormalization (c, gamma, beta, mean, var)
        r = Relu (n)
        f = Flatten (r)
        y = MatMul (f, V) }"""
    return parse(text, weights | norm(3))


MODELS = {"conv": conv(False), "conv with bias": conv(True), "dense": dense(), "signal": signal()}


@pytest.mark.parametrize("name", MODELS)
def test_kept_norms_train_as_in_the_framework(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    imported = import_file(model, tmp_path, batch_norm="keep")
    check_training(model, imported, rate=0.1, steps=8, frozen=STATISTICS, tolerance=1e-5)
    names = {value.name for value in imported.graph.parameters}
    assert names == {t.name for t in model.graph.initializer} - set(STATISTICS)


def test_folded_norms_do_not_and_the_report_says_so(tmp_path: Path) -> None:
    model = MODELS["conv"]
    imported = import_file(model, tmp_path)
    assert imported.graph.notes == (
        "1 BatchNormalization is folded: gamma and weight train as one (apart with --batch-norm keep, in float32): "
        "gamma in K",
    )
    random = np.random.default_rng(5)
    xs, labels = random.standard_normal((8, 2, 4, 4)).astype(np.float32), [0, 1, 2, 0, 1, 2, 0, 1]
    training = FileTraining(model, STATISTICS)
    expected = [training.step(x[None], label, 0.1) for x, label in zip(xs, labels, strict=True)]
    ours = our_losses(imported, xs, labels, 0.1)
    assert ours[0] == pytest.approx(expected[0], abs=1e-6)
    assert np.abs(np.subtract(ours, expected)).max() > 1e-3


ADDED = "bias = Constant <value_floats = [0.3, -0.2, 0.1]> () "
MADE = "n3 = Constant <value_ints = [3]> () one = Constant <value_floats = [0.3]> () bias = Expand (one, n3) "
NORM = "n = BatchNormalization (c, gamma, beta, mean, var) "
POOL = "r = Relu (n) p = GlobalAveragePool (r) f = Flatten (p) y = MatMul (f, head)"
AFFINE = "m = Mul (c, scale) n = Add (m, shift) "
UNTRAINED_BIAS: dict[str, tuple[str, set[str]]] = {
    "a Constant": (f"{ADDED} c = Conv (x, K, bias) {NORM} {POOL}", {"K", "beta", "head"}),
    "computed": (f"{MADE} c = Conv (x, K, bias) {NORM} {POOL}", {"K", "beta", "head"}),
    "behind scale and shift": (f"{ADDED} c = Conv (x, K, bias) {AFFINE} {POOL}", {"K", "shift", "head"}),
    "of a transposed convolution": (
        f"{ADDED} c = ConvTranspose (x, T, bias) {NORM} {POOL}", {"T", "gamma", "beta", "head"}
    ),
    "of a Gemm": (
        f"v = Flatten (x) {ADDED} c = Gemm (v, W, bias) {NORM} r = Relu (n) y = MatMul (r, head)", {"W", "beta", "head"}
    ),
    "behind a MatMul": (
        f"v = Flatten (x) {ADDED} a = MatMul (v, W) c = Add (a, bias) {NORM} r = Relu (n) y = MatMul (r, head)",
        {"W", "gamma", "beta", "head"},
    ),
    "and so is beta": (
        f"{ADDED} c = Conv (x, K, bias) beta = Constant <value_floats = [0.3, -0.2, 0.1]> () {NORM} {POOL}",
        {"K", "head"},
    ),
    "and so is gamma": (
        f"{ADDED} c = Conv (x, K, bias) gamma = Constant <value_floats = [0.5, 1.5, 0.7]> () {NORM} {POOL}",
        {"K", "beta", "head"},
    ),
    "but beta is not": (
        f"c = Conv (x, K, b) beta = Constant <value_floats = [0.3, -0.2, 0.1]> () {NORM} {POOL}", {"K", "b", "head"}
    ),
}  # fmt: skip
"""What a normalisation behind a layer is, whose bias is not trained: (nodes, parameters)."""


def untrained_bias(form: str) -> onnx.ModelProto:
    random = np.random.default_rng(3)
    shapes = {"K": (3, 2, 2, 2), "T": (2, 3, 2, 2), "W": (32, 3), "b": (3,), "head": (3, 3)}
    shapes |= {"scale": (3, 1, 1), "shift": (3, 1, 1)}
    weights = {name: random.normal(0.5, 0.4, shape).astype(np.float32) for name, shape in shapes.items()} | norm(3)
    body = UNTRAINED_BIAS[form][0]
    read = {name.strip(" )") for call in body.split("(")[1:] for name in call.split(")")[0].split(",")}
    made = {name for name in weights if f"{name} = " in body}
    kept = {name: data for name, data in weights.items() if name in read - made}
    return parse(f"net (float[1, 2, 4, 4] x) => (float[1, 3] y) {{ {body} }}", kept)


@pytest.mark.parametrize("form", UNTRAINED_BIAS)
def test_beta_is_trained_where_the_bias_is_not(form: str, tmp_path: Path) -> None:
    """The sum of both is one parameter: its first step is that of beta in the file."""
    model = untrained_bias(form)
    imported = import_file(model, tmp_path)
    names = UNTRAINED_BIAS[form][1]
    assert {value.name for value in imported.graph.parameters} == names
    xs = np.random.default_rng(6).standard_normal((1, 2, 4, 4)).astype(np.float32)
    training = FileTraining(model, STATISTICS)
    trained = [name for name in ("beta", "shift", "b") if name in names]
    graph = imported.graph
    before = {name: graph.constants[name].astype(np.float64) for name in trained}
    start = {name: training.weights[name].copy() for name in trained}
    expected = training.step(xs[0][None], 1, 0.1)
    after: dict[str, np.ndarray] = {}
    assert our_losses(imported, xs, [1], 0.1, after) == pytest.approx([expected], abs=1e-6)
    for name in trained:
        scale = np.ones(3) if name != "b" else imported.sources["b"].factor
        moved = (after[name] - before[name]) * scale  # b is multiplied by the folded factor
        theirs = (training.weights[name] - start[name]).reshape(-1)
        np.testing.assert_allclose(moved.reshape(-1), theirs, rtol=1e-4, atol=1e-7)


def test_a_trained_gamma_stays_apart_from_an_untrained_weight(tmp_path: Path) -> None:
    model = untrained_bias("a Constant")
    imported = import_file(model, tmp_path, frozen=("K",))
    assert {value.name for value in imported.graph.parameters} == {"gamma", "beta", "head"}
    check_training(model, imported, rate=0.1, steps=4, frozen=(*STATISTICS, "K"), tolerance=1e-5)


def test_fresh_numbers_of_a_norm_of_groups_are_trained(tmp_path: Path) -> None:
    """Ones and zeros under a name of the user's are where a training starts, not a norm without scale and shift."""
    random = np.random.default_rng(3)
    weights = {
        "K": random.normal(0, 0.4, (4, 2, 2, 2)).astype(np.float32),
        "head": random.normal(0, 0.4, (4, 3)).astype(np.float32),
        "own_scale": np.ones(2, np.float32),
        "own_shift": np.zeros(2, np.float32),
    }
    text = """net (float[1, 2, 4, 4] x) => (float[1, 3] y) {
        c = Conv (x, K)
        s = Constant <value_ints = [0, 2, -1]> () g = Reshape (c, s)
        i = InstanceNormalization (g, own_scale, own_shift)
        t = Constant <value_ints = [1, 4, 3, 3]> () n = Reshape (i, t)
        r = Relu (n) p = GlobalAveragePool (r) f = Flatten (p) y = MatMul (f, head) }"""
    model = parse(text, weights)
    imported = import_file(model, tmp_path)
    assert {value.name for value in imported.graph.parameters} == set(weights)
    check_training(model, imported, rate=0.1, steps=4, frozen=(), tolerance=1e-5)


def test_a_norm_that_no_layer_takes_in_trains_as_in_the_framework(tmp_path: Path) -> None:
    """Also without --batch-norm keep."""
    random = np.random.default_rng(6)
    weights = {"V": random.normal(0, 0.5, (4, 3)).astype(np.float32)}
    text = """net (float[1, 4] x) => (float[1, 3] y) {
        t = Tanh (x)
        m = BatchNormalization (t, gamma, beta, mean, var)
        y = MatMul (m, V) }"""
    model = parse(text, weights | norm(4))
    check_training(model, import_file(model, tmp_path), frozen=STATISTICS, tolerance=1e-5)


def test_a_kept_norm_is_a_layer(tmp_path: Path) -> None:
    """Gamma is its weight and beta its bias, for every form of --update."""
    path = write(MODELS["conv with bias"], tmp_path)
    graph = chain.imported(MODELS["conv with bias"], FrontendOptions(batch_norm="keep")).graph
    named = [([v.name for v in layer.weights], [v.name for v in layer.biases]) for layer in layers_of(graph)]
    assert named == [(["K"], ["bias"]), (["gamma"], ["beta"]), (["head"], [])]
    assert set(resolve_update(graph, "last:2").updates) == {"gamma", "beta", "head"}
    assert set(resolve_update(graph, "bias").updates) == {"bias", "beta", "head"}
    assert set(resolve_update(graph, "head").updates) == {"head"}
    outcome = run(path, "--batch-norm", "keep", "--update", "last:2", "--dry-run", "--report", "text").check_success()
    assert "2 of 3 layers, 15 of 48 numbers" in outcome.out and "--update last:2" in outcome.out  # statistics count


def test_what_is_frozen_of_a_norm_is_computed_once() -> None:
    model = chain.imported(MODELS["conv"], FrontendOptions(batch_norm="keep"))
    ops = [node.op for node in chain.train_graph(model, "MatMul_y").graph.nodes]
    assert ops[:4] == ["Conv", "Sub", "Mul", "Add"]


def test_the_generated_code_trains_kept_norms() -> None:
    model = chain.imported(MODELS["conv with bias"], FrontendOptions(batch_norm="keep"))
    one, two = (chain.train_graph(model, batch=2, micro_batch=size) for size in (1, 2))
    assert chain.check(chain.project(two, one=one), mode="host").result == "pass"


def test_int8_refuses_it(tmp_path: Path) -> None:
    path = write(MODELS["conv"], tmp_path)
    np.savez(tmp_path / "calib.npz", x=np.ones((2, 2, 4, 4), np.float32))
    arguments = ("--quant", "int8", "--calib", tmp_path / "calib.npz", "--batch-norm", "keep", "-o", tmp_path / "out")
    error = run(path, *arguments).check_error("E0113", 2)
    assert "--quant fp32" in error.err
    assert not (tmp_path / "out").exists()
