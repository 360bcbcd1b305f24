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
    assert "last:2: 2 of 3 layers, 15 of 48 numbers" in outcome.out  # mean and variance count


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
    error = run(path, *arguments).check_error("E0101", 2)
    assert "--quant fp32" in error.err
    assert not (tmp_path / "out").exists()
