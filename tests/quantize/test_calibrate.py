"""Ranges measured on samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.frontend import nets
from tests.frontend.models import parse, write
from tinytrain_compile.frontend import load_model
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.types import Graph, Quant
from tinytrain_compile.ops import infer
from tinytrain_compile.ops.base import run_node
from tinytrain_compile.ops.interpreter import run_graph
from tinytrain_compile.quantize.calibrate import activation_quant, calibrate, weight_quant


def small_cnn(folder: Path) -> Graph:
    """Conv, Relu, depthwise Conv, Add, MaxPool, Gemm, Softmax; one dead channel."""
    random = np.random.default_rng(0)
    weights = {
        "c_w": random.normal(0, 0.4, (4, 2, 3, 3)).astype(np.float32),
        "c_b": random.normal(0, 0.2, 4).astype(np.float32),
        "d_w": random.normal(0, 0.4, (4, 1, 3, 3)).astype(np.float32),
        "f_w": random.normal(0, 0.2, (5, 4 * 3 * 3)).astype(np.float32),
        "f_b": random.normal(0, 0.2, 5).astype(np.float32),
    }
    weights["c_w"][2] = 0
    text = """net (float[1, 2, 6, 6] x) => (float[1, 5] y) {
        c = Conv<pads = [1, 1, 1, 1]>(x, c_w, c_b)
        r = Relu(c)
        d = Conv<group = 4, pads = [1, 1, 1, 1]>(r, d_w)
        s = Add(r, d)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(s)
        f = Flatten(p)
        g = Gemm<transB = 1>(f, f_w, f_b)
        y = Softmax(g)
        }"""
    return load_model(write(parse(text, weights), folder)).graph


def samples_of(graph: Graph, count: int = 16, seed: int = 1) -> np.ndarray:
    shape = (count, *graph.inputs[0].shape[1:])
    return np.random.default_rng(seed).uniform(-1, 2, shape).astype(np.float32)


def quants(graph: Graph) -> dict[str, Quant | None]:
    found = {node.op: node.outputs[0].quant for node in graph.nodes}
    return found | {value.name: value.quant for value in (*graph.parameters, *graph.inputs)}


def fake_quantised(data: np.ndarray, quant: Quant | None) -> np.ndarray:
    if quant is None:
        return data
    scale = np.asarray(quant.scale)
    along = scale.reshape(-1, *[1] * (data.ndim - 1)) if scale.size > 1 else scale
    integers = np.clip(np.rint(data / along) + quant.zero, quant.low, quant.high)
    return ((integers - quant.zero) * along).astype(np.float32)


def run_fake(graph: Graph, x: np.ndarray) -> dict[str, np.ndarray]:
    """The graph with every annotated value rounded to what its format holds."""
    everything = {v.name: v for node in graph.nodes for v in node.inputs} | {graph.inputs[0].name: graph.inputs[0]}
    start = {**graph.constants, graph.inputs[0].name: x}
    values = {name: fake_quantised(data, everything[name].quant) for name, data in start.items()}
    for node in graph.nodes:
        results = run_node(node, tuple(values[v.name] for v in node.inputs))
        values |= {v.name: fake_quantised(r, v.quant) for v, r in zip(node.outputs, results, strict=True)}
    return values


def test_ranges(tmp_path: Path) -> None:
    graph = small_cnn(tmp_path)
    samples = samples_of(graph)
    calibrated = calibrate(graph, samples)
    check_graph(calibrated, infer)
    seen: dict[str, list[float]] = {}
    for sample in samples:
        values = run_graph(graph, {"x": sample[None]})
        for node in graph.nodes:
            seen.setdefault(node.outputs[0].name, []).extend(values[node.outputs[0].name].reshape(-1).tolist())
    for op in ("Clip", "Add", "Gemm", "Softmax"):
        node = next(n for n in calibrated.nodes if n.op == op)
        quant, numbers = node.outputs[0].quant, seen[node.outputs[0].name]
        assert quant is not None
        low, high = min(0.0, *numbers), max(0.0, *numbers)
        assert quant.scale[0] == pytest.approx((high - low) / 255, rel=1e-5)
        assert quant.zero == round(-128 - low / quant.scale[0])
        assert (quant.low, quant.high) == (-128, 127)
    assert next(n for n in calibrated.nodes if n.op == "Clip").outputs[0].quant.zero == -128  # type: ignore[union-attr]
    x = calibrated.inputs[0].quant
    assert x is not None and x.scale[0] == pytest.approx((samples.max() - samples.min()) / 255, rel=1e-6)


def test_which_values_have_a_range(tmp_path: Path) -> None:
    graph = small_cnn(tmp_path)
    calibrated = calibrate(graph, samples_of(graph))
    conv, clip, depthwise, add, pool, flat, gemm, softmax = calibrated.nodes
    assert conv.outputs[0].quant is None  # the clamp behind it is its saturation
    assert clip.outputs[0].quant is not None
    assert depthwise.outputs[0].quant not in (None, clip.outputs[0].quant)
    assert pool.outputs[0].quant == flat.outputs[0].quant == add.outputs[0].quant
    assert gemm.outputs[0].quant != softmax.outputs[0].quant


def test_parameters(tmp_path: Path) -> None:
    graph = small_cnn(tmp_path)
    calibrated = calibrate(graph, samples_of(graph))
    found = quants(calibrated)
    for name, x in (("c_w", found["x"]), ("d_w", found["Clip"]), ("f_w", found["Reshape"])):
        data, quant = graph.constants[name], found[name]
        assert quant is not None and x is not None
        largest = np.abs(data.reshape(len(data), -1)).max(axis=1)
        live = largest > 0
        np.testing.assert_allclose(np.asarray(quant.scale)[live], largest[live] / 127, rtol=1e-6)
        assert (quant.zero, quant.low, quant.high) == (0, -128, 127)
        bias = found.get(name.replace("_w", "_b"))
        if bias is not None:
            np.testing.assert_allclose(bias.scale, x.scale[0] * np.asarray(quant.scale), rtol=1e-12)
            assert (bias.low, bias.high) == (-(2**31), 2**31 - 1)


def test_dead_channel_keeps_its_bias(tmp_path: Path) -> None:
    graph = small_cnn(tmp_path)
    graph.constants["c_b"][:] = (0.1, 0.2, 1.5, 0.3)
    found = quants(calibrate(graph, samples_of(graph)))
    weight, bias = found["c_w"], found["c_b"]
    assert weight is not None and bias is not None
    assert weight.scale[2] < 1e-6
    assert np.rint(1.5 / bias.scale[2]) == pytest.approx(2**30, rel=1e-6)
    graph.constants["c_b"][2] = 0
    floor = quants(calibrate(graph, samples_of(graph)))["c_w"]
    assert floor is not None and 0 < floor.scale[2] < weight.scale[2]


def test_rounded_graph_stays_close(tmp_path: Path) -> None:
    """Logits differ by about the rounding of a few layers: a few of their own 255 steps."""
    graph = small_cnn(tmp_path)
    calibrated = calibrate(graph, samples_of(graph, 32))
    logits = calibrated.nodes[-1].inputs[0]
    assert logits.quant is not None
    errors = []
    for x in samples_of(graph, 32)[:16]:  # others leave the range now and then
        exact = run_graph(graph, {"x": x[None]})[logits.name]
        errors.append((exact - run_fake(calibrated, x[None])[logits.name]) / logits.quant.scale[0])
    assert 0.2 < float(np.sqrt(np.mean(np.square(errors)))) < 1.0
    assert float(np.abs(errors).max()) < 4.0


def test_residual_network(tmp_path: Path) -> None:
    """Every Conv, Add and Reduce has a range, its own or that of its clamp."""
    graph = load_model(write(nets.resnet8(), tmp_path)).graph
    calibrated = calibrate(graph, samples_of(graph, 2))
    readers = calibrated.consumers()
    for node in calibrated.nodes:
        out = node.outputs[0]
        clamped = [n.op for n in readers.get(out.name, [])] == ["Clip"]
        assert (out.quant is None) == (clamped and node.op in ("Conv", "Gemm", "Add", "Reduce", "AveragePool"))
    assert all(value.quant is not None for value in calibrated.parameters)


def test_percentile_cuts_outliers(tmp_path: Path) -> None:
    text = "net (float[1, 1000] x) => (float[1, 1000] y) { y = Tanh(x) }"
    graph = load_model(write(parse(text), tmp_path)).graph
    samples = np.random.default_rng(0).uniform(-1, 1, (10, 1000)).astype(np.float32)
    samples[3, 7] = 50.0
    whole, cut = calibrate(graph, samples), calibrate(graph, samples, "percentile", 99.9)
    wide, narrow = whole.inputs[0].quant, cut.inputs[0].quant
    assert wide is not None and wide.scale[0] == pytest.approx(51 / 255, rel=1e-3)
    assert narrow is not None and narrow.scale[0] == pytest.approx(2 / 255, rel=0.05)
    everything = calibrate(graph, samples, "percentile", 100.0).inputs[0].quant
    assert everything is not None and everything.scale[0] == pytest.approx(wide.scale[0])


def test_a_number_that_only_rounding_moves_has_no_percentile(tmp_path: Path) -> None:
    """The mean of a normalised map is its shift, but for the last bits: no bins lie between its ends."""
    text = """net (float[1, 3, 8, 8] x) => (float[1, 3] y) {
        n = InstanceNormalization(x, g, b)
        m = GlobalAveragePool(n)
        y = Flatten(m)
        }"""
    weights = {"g": np.ones(3, np.float32), "b": np.float32([0.3, 0.3, 0.3])}
    graph = load_model(write(parse(text, weights), tmp_path)).graph
    whole, cut = (calibrate(graph, samples_of(graph), *how) for how in (("minmax",), ("percentile", 99.9)))
    (one, two) = (found.nodes[-1].outputs[0].quant for found in (whole, cut))
    assert one is not None and two is not None and two.scale[0] == pytest.approx(one.scale[0])


def test_same_samples_same_result_and_present_ranges_stay(tmp_path: Path) -> None:
    graph = small_cnn(tmp_path)
    once, twice = (calibrate(graph, samples_of(graph), "percentile") for _ in range(2))
    assert quants(once) == quants(twice)
    again = calibrate(once, 100 * samples_of(graph))
    assert quants(again) == quants(once)


def test_transposed_convolution_has_its_channels_last(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(3, 4, 2, 2)).astype(np.float32)
    text = "net (float[1, 3, 4, 4] x) => (float[1, 4, 5, 5] y) { y = ConvTranspose(x, w) }"
    graph = load_model(write(parse(text, {"w": weight}), tmp_path)).graph
    quant = quants(calibrate(graph, samples_of(graph, 2)))["w"]
    assert quant is not None
    np.testing.assert_allclose(quant.scale, np.abs(weight).max(axis=(0, 2, 3)) / 127, rtol=1e-6)


def test_formats() -> None:
    assert activation_quant(0.0, 0.0) == Quant((float(np.float32(1 / 255)),), -128)
    assert activation_quant(1.0, 2.0).zero == -128
    assert activation_quant(-2.0, -1.0).zero == 127
    assert activation_quant(-1.0, 1.0).zero in (-1, 0)
    assert weight_quant(np.asarray([[127.0, -3], [0, -254]])).scale == (1.0, 2.0)


def test_no_samples(tmp_path: Path) -> None:
    graph = small_cnn(tmp_path)
    with pytest.raises(ValueError, match="no samples"):
        calibrate(graph, samples_of(graph, 0))
