"""QOperator form: what the judge takes onnxruntime's operators for, and what is imported, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.models import write
from tests.frontend.qoperator import OPSETS, run_node
from tinytrain_compile.frontend import FileModel

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
