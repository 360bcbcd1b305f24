"""Where onnx.reference is no judge: random operators, and operators that its loops would take too long for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import helper

from tinytrain_compile.ir.types import Array

_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
MOST_COLUMNS = 1 << 24
"""Elements of the matrix of patches that its convolution makes (some 30 bytes each)."""
MOST_WINDOWS = 1 << 20
"""Windows that its pools go through in Python (some 10 microseconds each), and elements of transposed patches."""


def limit_of(node: onnx.NodeProto, operands: Sequence[Array]) -> str:
    """Why the result of this node on these operands is not asked for; "" if it is."""
    if node.op_type in _RANDOM or (node.op_type == "Dropout" and len(operands) > 2 and bool(operands[2].any())):
        return "its result is random"
    if node.op_type == "Conv" and operands[0].ndim > 2 and _columns(node, operands) > MOST_COLUMNS:
        return "too large for onnx.reference"
    if node.op_type == "ConvTranspose" and _scattered(operands) > MOST_WINDOWS * 4:
        return "too large for onnx.reference"
    if node.op_type in ("AveragePool", "MaxPool") and _windows(node, operands) > MOST_WINDOWS:
        return "too large for onnx.reference"
    return ""


def _strides(node: onnx.NodeProto, rank: int) -> list[int]:
    found = [helper.get_attribute_value(a) for a in node.attribute if a.name == "strides"]
    return [max(int(s), 1) for s in found[0]] if found else [1] * rank


def _windows(node: onnx.NodeProto, operands: Sequence[Array]) -> int:
    return operands[0].size // max(math.prod(_strides(node, operands[0].ndim - 2)), 1)


def _columns(node: onnx.NodeProto, operands: Sequence[Array]) -> int:
    """Elements of im2col, taken generously: every pixel at the given strides."""
    return _windows(node, operands) * math.prod(operands[1].shape[2:])


def _scattered(operands: Sequence[Array]) -> int:
    """Elements that a transposed convolution adds up."""
    x, weight = operands[:2]
    return math.prod(x.shape[2:]) * math.prod(weight.shape[1:])
