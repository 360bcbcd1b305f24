"""Small quantised models, and a float run of an imported one that saturates where the model stores integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tests.frontend.models import parse, write
from tests.frontend.unsigned import with_unsigned_weights
from tinytrain_compile.frontend import FrontendOptions, ImportedModel, load_model
from tinytrain_compile.ir.types import Node, Quant
from tinytrain_compile.ops.base import run_node


def quantised_of(imported: ImportedModel) -> dict[str, Quant | None]:
    """Annotations by value name: input, node outputs and parameters."""
    graph = imported.graph
    values = (*graph.inputs, *graph.parameters, *(v for node in graph.nodes for v in node.outputs))
    return {value.name: value.quant for value in values}


def run_saturated(imported: ImportedModel, x: np.ndarray) -> np.ndarray:
    """The output for an ONNX-order input; annotated values are clamped to their range, as int8 storage does."""
    graph = imported.graph
    first = graph.inputs[0]
    values = {**graph.constants, first.name: _clamped(x.transpose(imported.input_perm), first.quant)}
    for node in graph.nodes:
        results = run_node(node, tuple(values[v.name] for v in node.inputs))
        values |= {v.name: _clamped(r, v.quant) for v, r in zip(node.outputs, results, strict=True)}
    return values[graph.outputs[0].name]


def _clamped(data: np.ndarray, quant: Quant | None) -> np.ndarray:
    if quant is None:
        return np.ascontiguousarray(data)
    low, high = ((q - quant.zero) * quant.scale[0] for q in (quant.low, quant.high))
    return np.clip(data, low, high).astype(np.float32)


def integers_of(imported: ImportedModel, name: str) -> np.ndarray:
    """round(w / scale) of a parameter, in IR layout."""
    value = next(v for v in imported.graph.parameters if v.name == name)
    assert value.quant is not None
    scale = np.asarray(value.quant.scale)
    data = imported.graph.constants[name].astype(np.float64)
    along = scale.reshape(-1, *[1] * (data.ndim - 1)) if scale.size > 1 else scale
    return np.rint(data / along).astype(np.int64)


class Maker:
    """Collects the initializers of a model in ONNX text, integers drawn at random."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.weights: dict[str, np.ndarray] = {}

    def scale(self, name: str, value: float, zero: int = 0, dtype: type = np.int8) -> str:
        """`name_s, name_z` for a per-tensor format."""
        self.weights[f"{name}_s"] = np.asarray(value, np.float32)
        self.weights[f"{name}_z"] = np.asarray(zero, dtype)
        return f"{name}_s, {name}_z"

    def weight(self, name: str, shape: tuple[int, ...], channels: int = 0, dtype: type = np.int8) -> str:
        """`name_s, name_z` of random integers, per channel if `channels` says how many there are."""
        low, high = (1, 256) if dtype is np.uint8 else (-127, 128)
        self.weights[name] = self._random.integers(low, high, shape).astype(dtype)
        scales = self._random.uniform(0.002, 0.01, channels or ()).astype(np.float32)
        self.weights[f"{name}_s"] = scales
        self.weights[f"{name}_z"] = np.full(scales.shape, 128 if dtype is np.uint8 else 0, dtype)
        return f"{name}_s, {name}_z"

    def bias(self, name: str, count: int, x_scale: float, weight: str) -> str:
        self.weights[name] = self._random.integers(-3000, 3000, count).astype(np.int32)
        scales = np.broadcast_to(np.float32(x_scale) * self.weights[f"{weight}_s"], (count,)).astype(np.float32)
        self.weights[f"{name}_s"] = scales.copy()
        self.weights[f"{name}_z"] = np.zeros(count, np.int32)
        return f"{name}_s, {name}_z"

    def model(self, text: str, opset: int = 17) -> onnx.ModelProto:
        return parse(text, self.weights, opset)


def check_quantised(
    model: onnx.ModelProto, folder: Path, steps: float, options: FrontendOptions | None = None, spread: float = 1.0
) -> ImportedModel:
    """Import; the saturated float run must stay within `steps` quantisation steps of onnxruntime's integer run."""
    path = write(model, folder)
    imported = load_model(path, options)
    assert imported.quantised
    session_options = onnxruntime.SessionOptions()
    session_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(with_unsigned_weights(model).SerializeToString(), session_options)
    random = np.random.default_rng(1)
    for _ in range(5):
        x = random.uniform(-spread, spread, imported.input_shape).astype(np.float32)
        expected = session.run([imported.output_name], {imported.input_name: x})[0]
        quant = imported.graph.outputs[0].quant
        step = quant.scale[0] if quant is not None else 1.0
        if expected.dtype != np.float32:
            assert quant is not None
            shift = 128 if expected.dtype == np.uint8 else 0
            expected = ((expected.astype(np.int64) - shift - quant.zero) * quant.scale[0]).astype(np.float32)
        found = run_saturated(imported, x)
        np.testing.assert_allclose(found, expected.transpose(imported.output_perm), rtol=0, atol=steps * step)
        assert float(np.ptp(expected)) > 20 * step, "the test model's output does not use its range"
    return imported


def nodes_of(imported: ImportedModel, op: str) -> list[Node]:
    return [node for node in imported.graph.nodes if node.op == op]
