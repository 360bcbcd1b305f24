"""Integer operators as onnxruntime computes them exactly on every processor.

With AVX2 but no VNNI it adds two products of uint8 and int8 as an int16, which saturates (its documentation of
quantisation: "When and why do I need to try U8U8?"). Weights of uint8, whose zero point is 128 more, are the same
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

_OPS = ("QLinearConv", "QLinearMatMul", "QGemm")
_ZERO, _WEIGHT, _WEIGHT_ZERO = 2, 3, 5
"""Places of operands: the zero point of the activation, the weight, its zero point."""


def unsigned_weights(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weight and zero point as uint8, by name, of a node that multiplies uint8 by int8; nothing of others."""
    if node.op_type not in _OPS or arrays[node.input[_ZERO]].dtype != np.uint8:
        return {}
    names = (node.input[_WEIGHT], node.input[_WEIGHT_ZERO])
    if any(name not in arrays or arrays[name].dtype != np.int8 for name in names):
        return {}
    return {name: (np.asarray(arrays[name], np.int16) + 128).astype(np.uint8) for name in names}


def with_unsigned_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for node in model.graph.node:
        for name, array in unsigned_weights(node, arrays).items():
            tensor = next(tensor for tensor in found.graph.initializer if tensor.name == name)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return found
