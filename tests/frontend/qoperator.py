"""Models in QOperator form, as onnxruntime's quantiser writes them, and onnxruntime as the judge of their import."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from tests.frontend.unsigned import unsigned_weights
from tinytrain_compile.frontend import FileModel
from tinytrain_compile.frontend.evaluator.model import FileNode

OPSETS = (helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1))


class _Samples(CalibrationDataReader):
    """Standard normal inputs."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(0)
        self._left = iter([{name: random.standard_normal(shape).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        return next(self._left, None)


def qoperator_form(model: onnx.ModelProto, folder: Path, **options: Any) -> Path:
    """The file that `quantize_static(..., quant_format=QuantFormat.QOperator)` writes."""
    path, source = folder / "qoperator.onnx", model.graph.input[0]
    (folder / "float.onnx").write_bytes(model.SerializeToString())
    shape = tuple(dim.dim_value or 1 for dim in source.type.tensor_type.shape.dim)
    logging.disable(logging.WARNING)  # "please consider pre-processing"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            quantize_static(
                folder / "float.onnx",
                path,
                _Samples(source.name, shape),
                quant_format=QuantFormat.QOperator,
                **options,
            )
    finally:
        logging.disable(logging.NOTSET)
    return path


def run_node(proto: onnx.NodeProto, operands: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Outputs of one node by onnxruntime, every operand an input unless it must be constant (scales, zero points)."""
    operands = {**operands, **unsigned_weights(proto, operands)}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output]
    graph = helper.make_graph([proto], "node", inputs, outputs)
    constants = [name for name in proto.input if name][1:]
    for name in dict.fromkeys(constants):
        if name != proto.input[0]:
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(operands[name]), name))
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = {value.name: operands[value.name] for value in session.get_inputs()}
    return tuple(session.run(None, feeds))


class JudgedByOnnxruntime(FileModel):
    """The model file, whose nodes on stored integers are run by onnxruntime; `ran` says which."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ran: set[str] = set()

    def run(
        self, node: FileNode, values: Mapping[str, np.ndarray], unrounded: Mapping[str, np.ndarray] | None = None
    ) -> tuple[np.ndarray, ...]:
        given = any(name in (unrounded or {}) for name in node.inputs)
        if given or node.name == "" or not node.op.startswith(("QLinear", "QGemm")):
            return super().run(node, values, unrounded)
        self.ran.add(node.op)
        return run_node(node.proto, {name: values[name] for name in node.inputs if name})
