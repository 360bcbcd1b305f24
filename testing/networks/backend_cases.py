"""The single-operator cases of onnx.backend.test, and why some of them are out of scope."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference.ops import op_pool_common

from tinytrain_compile.frontend import supported_operators

_NOT_FLOAT = frozenset(
    ("CastLike", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "Shape", "Size")
)
"""What is about other types than float32 or gives no computed tensor; tested in test_qdq.py and test_operators.py."""

LISTED = frozenset(supported_operators()) - _NOT_FLOAT
"""The ONNX operators whose cases of one node are run: all that the frontend knows."""


WITH_BODY = frozenset(("GroupNormalization", "HardSwish", "LayerNormalization", "SoftmaxCrossEntropyLoss", "Swish"))
"""Operators whose defining function consists of operators that the frontend knows."""

POOL = op_pool_common.pool


@functools.cache
def all_cases() -> dict[str, Any]:
    """Name -> test case, for every case of one node and every expanded function body."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(op_pool_common, "pool", _pool_of_planes)
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


def _pool_of_planes(x: Any, x_shape: Any, kernel: Any, strides: Any, out_shape: Any, *others: Any, **named: Any) -> Any:
    """What onnx computes expected outputs by; not those of volumes, which take seconds and are out of scope."""
    if len(kernel) > 2:
        return np.zeros((*x_shape[:2], *out_shape), x.dtype)
    return POOL(x, x_shape, kernel, strides, out_shape, *others, **named)


def listed_cases() -> dict[str, Any]:
    """The cases of one node of a listed operator."""
    return {name: case for name, case in all_cases().items() if "_expanded" not in name and _operator(case) in LISTED}


def expanded_cases() -> dict[str, Any]:
    """The same operators as the functions that the standard defines them by, of several nodes."""
    whole = {name for name, case in listed_cases().items() if _operator(case) in WITH_BODY}
    return {name: case for name, case in all_cases().items() if "_expanded" in name and _unexpanded(name) in whole}


def _operator(case: Any) -> str:
    nodes = case.model.graph.node
    return nodes[0].op_type if len(nodes) == 1 else ""


def _unexpanded(name: str) -> str:
    return name[: name.index("_expanded")]


def numpy_inputs(case: Any) -> list[Any]:
    """Inputs of a case; those given as TensorProto become arrays."""
    return [_as_array(array) for array in case.data_sets[0][0]]


def numpy_outputs(case: Any) -> list[Any]:
    """Expected outputs of a case, likewise."""
    return [_as_array(array) for array in case.data_sets[0][1]]


def _as_array(array: Any) -> Any:
    return numpy_helper.to_array(array) if isinstance(array, TensorProto) else array


def skip_reason(case: Any) -> str:
    """Why a case is out of scope; "" if it must pass."""
    node, model = case.model.graph.node[0], case.model
    arrays = list(_arrays(case))
    if max(entry.version for entry in model.opset_import) < 7:
        return "opset below 7"
    if node.op_type == "Cast":
        return _cast_reason(model)
    if not all(value.type.HasField("tensor_type") for value in (*model.graph.input, *model.graph.output)):
        return "sequence or optional"
    if node.op_type == "Dropout" and _is_training_dropout(case):
        return "training-mode Dropout"
    if node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute):
        return "training-mode BatchNormalization"
    if node.op_type == "MaxPool" and len(node.output) == 2:
        return "index output"
    if any(array.size == 0 and index in (0, len(arrays) - 1) for index, array in enumerate(arrays)):
        return "empty tensor (refused: E0204)"
    return _type_reason(node, arrays) or _form_reason(node, arrays)


_WHOLE_TYPES = ("Add", "Div", "MaxPool", "Mul", "Pow", "Sub", "TopK", "GatherND")
"""Operators that are not read on every type of integers."""


def _type_reason(node: onnx.NodeProto, arrays: list[np.ndarray]) -> str:
    kind = arrays[0].dtype
    if kind.kind in "OSU":
        return "strings"
    if kind.kind in "iu" and node.op_type in _WHOLE_TYPES:
        return "arithmetic of narrow or divided integers"
    if kind.name == "bfloat16" and node.op_type == "Celu":
        return "rounded to bfloat16 between its operators"
    return ""


def _form_reason(node: onnx.NodeProto, arrays: list[np.ndarray]) -> str:
    if node.op_type == "Einsum" and any(a.s in (b"...ii ->...i", b"->") for a in node.attribute):
        return "Einsum of a scalar or a diagonal"
    if node.op_type == "GatherND" and any(a.i for a in node.attribute):
        return "GatherND of batches"
    if node.op_type == "LSTM" and len(node.input) > 7:
        return "peepholes"
    if node.op_type == "Resize" and any(a.s == b"tf_crop_and_resize" for a in node.attribute):
        return "Resize of a part"
    if node.op_type in ("Conv", "ConvTranspose", "MaxPool", "AveragePool") and arrays[0].ndim > 4:
        return "rank > 4"
    return ""


def _arrays(case: Any) -> Iterator[np.ndarray]:
    for array in (*numpy_inputs(case), *numpy_outputs(case)):
        if isinstance(array, np.ndarray):
            yield array


def _cast_reason(model: onnx.ModelProto) -> str:
    source, target = (v.type.tensor_type.elem_type for v in (model.graph.input[0], model.graph.output[0]))
    real = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    if source in real and target in real[:2]:
        return ""
    return "Cast to or from numbers of at most 16 bits"


def _is_training_dropout(case: Any) -> bool:
    inputs = numpy_inputs(case)
    return len(inputs) > 2 and bool(inputs[2]) and float(inputs[1]) != 0.0
