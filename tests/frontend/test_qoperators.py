"""QOperator form: what the judge takes onnxruntime's operators for, and what is imported, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType

from testing.networks import models
from tests.e2e.file_level import agreement
from tests.frontend.models import parse, write
from tests.frontend.nets import Net
from tests.frontend.qdq import Maker, check_quantised
from tests.frontend.qoperator import OPSETS, JudgedByOnnxruntime, qoperator_form, run_node
from tests.frontend.test_file_forms import old_network
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.driver.file_check import check as file_check
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FileModel, load_model
from tinytrain_compile.options.compile_options import CompileOptions

X, Y, W = (1, 4, 6, 5), (1, 4, 6, 5), (3, 4, 3, 3)
Case = tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]
"""Operator, shapes of its operands, attributes."""
CASES: dict[str, Case] = {
    "add": ("QLinearAdd", (X, Y), {}),
    "add, broadcast": ("QLinearAdd", (X, (5,)), {}),
    "mul": ("QLinearMul", (X, (1, 4, 1, 1)), {}),
    "average": ("QLinearAveragePool", (X,), {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 0, 1]}),
    "average, padding counts": (
        "QLinearAveragePool",
        (X,),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "global average": ("QLinearGlobalAveragePool", (X,), {}),
    "sigmoid": ("QLinearSigmoid", (X,), {}),
    "leaky": ("QLinearLeakyRelu", (X,), {"alpha": 0.2}),
    "softmax": ("QLinearSoftmax", ((3, 7),), {"axis": -1, "opset": 13}),
    "softmax over rows": ("QLinearSoftmax", ((3, 7),), {"axis": 0, "opset": 13}),
    "softmax of old": ("QLinearSoftmax", ((3, 7),), {"axis": 1, "opset": 12}),
    "softmax of old over two axes": ("QLinearSoftmax", ((2, 3, 4),), {"axis": 1, "opset": 12}),
    "softmax of old without an axis": ("QLinearSoftmax", ((2, 3, 4),), {"opset": 12}),
    "concat": ("QLinearConcat", (X, (1, 2, 6, 5), X), {"axis": 1}),
    "where": ("QLinearWhere", (X, Y), {}),
    "gemm": ("QGemm", ((3, 8), (8, 5), (5,)), {}),
    "gemm, turned": ("QGemm", ((3, 8), (5, 8), (5,)), {"transB": 1, "alpha": 0.5}),
    "gemm without bias": ("QGemm", ((3, 8), (5, 8)), {"transB": 1}),
}


def node_of(case: str, kind: type, scales: str = "tensor") -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    """One node, and random operands for it. Results use about their whole range."""
    op, shapes, attrs = CASES[case]
    random = np.random.default_rng(len(case))
    low, high = (0, 256) if kind is np.uint8 else (-128, 128)
    values: dict[str, np.ndarray] = {}

    def form(name: str, scale: Any, zero: int) -> list[str]:
        values[f"{name}_s"] = np.asarray(scale, np.float32)
        middle = 128 if kind is np.uint8 else 0
        values[f"{name}_z"] = np.full(np.shape(scale), zero + middle, kind)
        return [f"{name}_s", f"{name}_z"]

    names: list[str] = []
    for index, shape in enumerate(shapes[:2] if op == "QGemm" else shapes):
        name = "abc"[index]
        values[name] = random.integers(low, high, shape).astype(kind)
        per_channel = op == "QGemm" and index == 1 and scales == "channel"
        names += [
            name,
            *form(name, random.uniform(0.01, 0.03, 5) if per_channel else 0.02 + 0.01 * index, 0 if index else 9),
        ]
    if op == "QGemm":
        if len(shapes) > 2:
            values["bias"] = random.integers(-3000, 3000, shapes[2]).astype(np.int32)
        names.append("bias" if len(shapes) > 2 else "")
    if op == "QLinearWhere":
        values["which"] = random.integers(0, 2, shapes[0]).astype(bool)
        names.insert(0, "which")
    result = form(
        "y",
        *{
            "QLinearSoftmax": (1 / 256, -128),
            "QLinearSigmoid": (1 / 256, -128),
            "QLinearGlobalAveragePool": (0.01, 5),
        }.get(op, (0.05, -7)),
    )
    names = [*result, *names] if op == "QLinearConcat" else [*names, *result]
    return helper.make_node(op, names, ["y"], name="node", domain="com.microsoft", **attrs), values


def judged(proto: onnx.NodeProto, values: dict[str, np.ndarray], folder: Path) -> np.ndarray:
    """What the judge finds, on the operands as they are."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in values.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(values["y_z"].dtype)
    graph = helper.make_graph([proto], "net", infos, [helper.make_tensor_value_info("y", kind, None)])
    file = FileModel(write(helper.make_model(graph, opset_imports=OPSETS, ir_version=10), folder))
    return file.run(file.nodes[0], values)[0]


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("case", CASES)
def test_operator_is_judged_as_onnxruntime_has_it(case: str, kind: type, tmp_path: Path) -> None:
    for scales in ("tensor", "channel") if case.startswith("gemm") else ("tensor",):
        proto, values = node_of(case, kind, scales)
        expected, found = run_node(proto, values)[0], judged(proto, values, tmp_path)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        steps = np.abs(found.astype(int) - expected.astype(int))
        assert steps.max() <= 1 and (steps == 0).mean() > 0.9
        assert np.ptp(expected.astype(int)) > 20


def conv_all_over(kind: str) -> onnx.ModelProto:
    """One of each: a Pad of integers, pools, a Concat, LeakyRelu, Sigmoid, Mul, and a dense layer."""
    net = Net("float[1, 3, 9, 8] x", "float[1, 5] y")
    net.conv("a", "x", (6, 3, 3, 3), "pads = [1, 1, 1, 1]")
    net.add("l = LeakyRelu <alpha = 0.3> (a)")
    net.add(f"p = Pad (l, {net.table('p_pads', (0, 0, 1, 1, 0, 0, 0, 1))})")
    net.conv("b", "p", (4, 6, 3, 3), "strides = [2, 2]")
    net.add(f"v = {kind} <kernel_shape = [3, 3], strides = [2, 2]> (p)")
    net.conv("s", "v", (4, 6, 1, 1), "group = 1")
    net.add("t = Sigmoid (s)")
    net.add("m = Mul (b, t)")
    net.add("c = Concat <axis = 1> (m, s)")
    net.add("g = GlobalAveragePool (c)")
    net.add("f = Flatten <axis = 1> (g)")
    net.dense("y", "f", 8, 5)
    return net.model()


def conv_twice() -> onnx.ModelProto:
    """One layer applied to its own result: its bias is stored once, in units of the first use."""
    rng = np.random.default_rng(0)
    sizes = {"w": (4, 4, 3, 3), "b": (4,), "v": (3, 64), "d": (3,)}
    weights = {name: (rng.normal(size=size) * 0.3).astype(np.float32) for name, size in sizes.items()}
    text = """net (float[1, 4, 8, 8] x) => (float[1, 3] y) {
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
        r = Relu (c)
        e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, w, b)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
        f = Flatten (p)
        y = Gemm <transB = 1> (f, v, d) }"""
    return parse(text, weights)


NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "mlp": (models.mlp, {}),
    "ds_cnn": (lambda: models.ds_cnn(8, 2, (12, 10)), {"per_channel": True}),
    "resnet8": (lambda: models.resnet8(4, 8), {"activation_type": QuantType.QUInt8}),
    "unsigned weights": (
        lambda: models.resnet8(4, 8),
        {
            "activation_type": QuantType.QUInt8,
            "weight_type": QuantType.QUInt8,
            "extra_options": {"WeightSymmetric": True},
        },
    ),
    "transformer": (lambda: models.transformer(4, 8, 2), {"activation_type": QuantType.QUInt8}),
    "all over": (lambda: conv_all_over("AveragePool"), {"per_channel": True}),
    "a layer twice": (conv_twice, {"activation_type": QuantType.QUInt8}),
    "opset 11": (lambda: old_network(11), {}),
    "all over, unsigned": (lambda: conv_all_over("MaxPool"), {"activation_type": QuantType.QUInt8}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_network_trains_and_every_integer_is_within_a_step_of_onnxruntimes(name: str, tmp_path: Path) -> None:
    network, how = NETWORKS[name]
    path = qoperator_form(network(), tmp_path, **how)
    stored = [node for node in onnx.load(path).graph.node if node.op_type.startswith(("QLinear", "QGemm"))]
    judges: list[JudgedByOnnxruntime] = []

    def judge(*arguments: Any) -> JudgedByOnnxruntime:
        judges.append(JudgedByOnnxruntime(*arguments))
        return judges[-1]

    with mock.patch.object(file_check, "FileModel", judge):
        options = CompileOptions(path, out=tmp_path / "out", loss="mse", quant="int8", head="int8", verify="host")
        result = compile_model(options)
    assert result.summary is not None
    verified = result.summary.verify
    assert verified.result == "pass"
    assert verified.file is not None and verified.file.whole and not verified.file.skipped
    assert verified.file.steps is not None and verified.file.steps <= 1
    assert judges[0].ran == {node.op_type for node in stored}
    for quant in ("int8", "fp32"):
        found = agreement(path, quant=quant, loss="mse")
        assert found.whole and not found.skipped and found.steps is not None and found.steps <= 1


def test_quantise_and_dequantise_of_the_other_domain_are_the_standards(tmp_path: Path) -> None:
    m = Maker(5)
    x, w, y = m.scale("x", 0.02), m.weight("w", (4, 6), 0), m.scale("y", 0.03)
    text = f"""net (float[1, 6] input) => (float[1, 4] output) {{
        xq = com.microsoft.QuantizeLinear(input, {x})
        xd = com.microsoft.DequantizeLinear(xq, {x})
        wd = com.microsoft.DequantizeLinear(w, {w})
        g = Gemm<transB = 1>(xd, wd)
        q = com.microsoft.QuantizeLinear(g, {y})
        output = com.microsoft.DequantizeLinear(q, {y})
        }}"""
    model = m.model(text)
    model.opset_import.append(OPSETS[1])
    found = agreement(write(model, tmp_path), quant="int8", loss="mse", head="int8")
    assert found.whole and not found.skipped and found.steps is not None and found.steps <= 1
    assert check_quantised(model, tmp_path, 1.5).quantised


def test_fresh_head_of_a_network_is_not_compared_with_the_old_one(tmp_path: Path) -> None:
    path = qoperator_form(models.resnet8(4, 8), tmp_path)
    for quant in ("int8", "fp32"):
        found = agreement(path, quant=quant, classes=3)
        assert not found.skipped and found.steps is not None and found.steps <= 1


def test_weights_at_the_lowest_integer_are_what_the_file_says(tmp_path: Path) -> None:
    """uint8 with zero point 128 reaches -128, which training then leaves for good."""
    m = Maker(4)
    x, w, y = m.scale("x", 0.02), m.weight("w", (4, 6), 0, np.uint8), m.scale("y", 0.03)
    m.weights["w"][:, ::2] = 0
    text = f"""net (float[1, 6] input) => (float[1, 4] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear(w, {w})
        g = Gemm<transB = 1>(xd, wd)
        q = QuantizeLinear(g, {y})
        output = DequantizeLinear(q, {y})
        }}"""
    path = write(m.model(text), tmp_path)
    options = CompileOptions(path, out=tmp_path / "out", loss="mse", quant="int8", head="int8", verify="host")
    summary = compile_model(options).summary
    assert summary is not None and summary.verify.result == "pass"
    stored = summary.train.graph.constants["w"]
    np.testing.assert_array_equal(stored.reshape(4, 6), m.weights["w"].astype(int) - 128)


def test_mean_is_judged_as_its_definition_has_it(tmp_path: Path) -> None:
    """onnxruntime itself has no kernel for it: numpy's mean of what the integers stand for."""
    stored = np.random.default_rng(3).integers(-128, 128, X).astype(np.int8)
    values = {"a": stored, "a_s": np.float32(0.03), "a_z": np.int8(5), "y_s": np.float32(0.01), "y_z": np.int8(-3)}
    names = ["a", "a_s", "a_z", "y_s", "y_z"]
    proto = helper.make_node("QLinearReduceMean", names, ["y"], domain="com.microsoft", axes=[1, 3], keepdims=0)
    found = judged(proto, {name: np.asarray(array) for name, array in values.items()}, tmp_path)
    real = ((stored.astype(np.float64) - 5) * np.float32(0.03)).mean(axis=(1, 3))
    expected = np.clip(np.rint(real / np.float32(0.01)) - 3, -128, 127)
    assert np.ptp(expected) > 20
    np.testing.assert_array_equal(found, expected)


HINTS: dict[str, tuple[str, str, str]] = {
    "of the standard": ("y = Det (x)", "there is no such operator", "none, see --list-ops"),
    "the end of a detector": (
        "b = Relu (x)\ny = NonMaxSuppression (b, x, s)",
        "there is no such operator",
        "write it with these; or train what it is made of: --model-output b",
    ),
    "slip": ("y = Sigmiod (x)", "y", "Sigmoid"),
    "dynamic": (
        "q, r, z = DynamicQuantizeLinear (x)\ny = DequantizeLinear (q, r, z)",
        "its scales are computed at run time",
        "QuantFormat.QDQ",
    ),
    "attention": ("y = com.microsoft.QAttention (x)", "it computes with stored integers", "QuantFormat.QDQ"),
    "sums without a scale": (
        "q = QuantizeLinear (x, s)\ni = MatMulInteger (q, q)\ny = Cast <to = 1> (i)",
        "it computes with stored integers",
        "QuantFormat.QDQ",
    ),
    "fused": ("y = com.microsoft.FusedConv (x)", "its domain", "before graph optimisers"),
    "blocked": ("y = com.microsoft.nchwc.Conv (x)", "its domain", "before graph optimisers"),
    "private": ("y = com.acme.Relu (x)", "its domain", "in standard operators"),
}


@pytest.mark.parametrize("name", HINTS)
def test_hint_is_about_the_node(name: str, tmp_path: Path) -> None:
    lines, reason, nearest = HINTS[name]
    header = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1, "com.microsoft.nchwc" : 1, "com.acme" : 1]>'
    model = onnx.parser.parse_model(f"{header} net (float[1, 4] x) => (float[1, 4] y) {{ {lines} }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.1), "s"))
    with pytest.raises(CompileError) as caught:
        load_model(write(model, tmp_path))
    assert reason in caught.value.details[0]
    assert nearest in caught.value.details[0].split("nearest supported: ")[1]


def test_last_axis_as_channels_is_refused_with_its_reason(tmp_path: Path) -> None:
    proto, values = node_of("global average", np.int8)
    proto.attribute.append(helper.make_attribute("channels_last", 1))
    quantise = helper.make_node("QuantizeLinear", ["x", "a_s", "a_z"], ["a"])
    x, y = (helper.make_tensor_value_info(name, kind, X) for name, kind in (("x", 1), ("y", 3)))
    tables = [onnx.numpy_helper.from_array(values[name], name) for name in values if name != "a"]
    graph = helper.make_graph([quantise, proto], "net", [x], [y], tables)
    with pytest.raises(CompileError) as caught:
        load_model(write(helper.make_model(graph, opset_imports=OPSETS, ir_version=10), tmp_path))
    assert caught.value.code == "E0503"
    assert "channels_last: its channels are the last axis" in caught.value.details[0]
