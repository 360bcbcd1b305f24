"""Where onnx.reference is no judge: random operators, what it is known to compute wrongly, and what takes it too long.

Found by comparing it with onnxruntime on random attributes (tests/frontend/test_evaluator.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from tinytrain_compile.ir.types import Array

FIRST_SOUND = {"BatchNormalization": 14}
"""Opset with which a node is run that means the same below it: there the evaluator takes a momentum for training."""
WIDENED = frozenset(("LogSoftmax", "SoftmaxCrossEntropyLoss"))
"""Computed as the logarithm of a softmax, which float32 cannot hold 104 below the largest score: run in float64, where
that is so 745 below it."""
MOST_COLUMNS = 1 << 24
"""Elements of the matrix of patches that its convolution makes (some 30 bytes each)."""
MOST_WINDOWS = 1 << 20
"""Windows that its pools go through in Python (some 10 microseconds each)."""
MOST_SCATTERED = 1 << 22
"""Elements that its transposed convolution adds up one by one (half a microsecond each)."""
ONE_AXIS = 13
"""Opset from which a Softmax has one axis; before, it has all from that one on."""

_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
_SOFTMAX = frozenset(("Hardmax", "LogSoftmax", "Softmax"))
_TOO_LARGE = "too large for onnx.reference"
_Attributes = Mapping[str, Any]


def run_opset(op: str, file_opset: int) -> int:
    """Return the first opset to run a standard operator with: newer than the file's if that has no such operator."""
    known = not defs.has(op) or defs.has(op, file_opset)
    return max(FIRST_SOUND.get(op, 0), 0 if known else defs.get_schema(op).since_version)


def limit_of(node: onnx.NodeProto, operands: Sequence[Array], opset: int) -> str:
    """Return why the result of this node on these operands is not asked for.

    "" if it is. opset: of the standard's domain.
    """
    if node.op_type in _RANDOM or _drops(node, operands):
        return "its result is random"
    if node.op_type in _SOFTMAX and opset < ONE_AXIS and _axis(node) % max(operands[0].ndim, 1) != operands[0].ndim - 1:
        return f"onnx.reference computes it over one axis, as from opset {ONE_AXIS} on"
    rule = _RULES.get(node.op_type)
    if rule is None or operands[0].ndim < 3:
        return ""
    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return rule({**found, "auto_pad": found.get("auto_pad", b"").decode("utf-8", "replace")}, operands)


def doubt_of(node: onnx.NodeProto, operands: Sequence[Array], results: Sequence[Array]) -> str:
    """Return why the result that onnx.reference has found is no judge; "" if it is."""
    finite = all(bool(np.isfinite(array).all()) for array in operands)
    if node.op_type in WIDENED and finite and not all(np.isfinite(array).all() for array in results):
        return "onnx.reference takes the logarithm of a softmax that is 0"
    return ""


def _axis(node: onnx.NodeProto) -> int:
    """Return the axis of a Softmax below opset 13."""
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)


def _drops(node: onnx.NodeProto, operands: Sequence[Array]) -> bool:
    """Tell whether it is a Dropout in training mode (the ratio may be left out)."""
    return node.op_type == "Dropout" and len(node.input) > 2 and bool(operands[-1].any()) and bool(operands[1].any())


def _convolution(attrs: _Attributes, operands: Sequence[Array]) -> str:
    kernel = operands[1].shape[2:]
    dilations = list(attrs.get("dilations") or [1] * len(kernel))
    dense = ((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=False))  # it fills a dilated kernel with zeros
    columns = _windows(attrs, operands) * math.prod(dense)
    return _TOO_LARGE if columns > MOST_COLUMNS else ""


def _transposed(attrs: _Attributes, operands: Sequence[Array]) -> str:
    if attrs.get("group", 1) != 1:
        return "onnx.reference computes groups wrongly"
    if attrs["auto_pad"].startswith("SAME") or "output_shape" in attrs:
        return "onnx.reference computes auto_pad and output_shape wrongly"
    x, weight = operands[:2]
    return _TOO_LARGE if math.prod(x.shape[2:]) * math.prod(weight.shape[1:]) > MOST_SCATTERED else ""


def _max_pool(attrs: _Attributes, operands: Sequence[Array]) -> str:
    strides, dilations, kernel = _window(attrs, operands)
    pads = set(attrs.get("pads", ())) or {int(attrs["auto_pad"].startswith("SAME"))}
    odd = attrs.get("ceil_mode", 0) or len(pads) > 1 or (operands[0].ndim == 3 and pads != {0})
    if set(strides) == set(dilations) == {1} and odd:  # a path of its own, which takes pads of one axis for another's
        return "onnx.reference computes stride 1 with these attributes wrongly"
    if attrs["auto_pad"] == "SAME_LOWER" or (attrs["auto_pad"] == "SAME_UPPER" and _gaps(strides, dilations, kernel)):
        return "onnx.reference computes this auto_pad wrongly"
    return _TOO_LARGE if _windows(attrs, operands) > MOST_WINDOWS else ""


def _average_pool(attrs: _Attributes, operands: Sequence[Array]) -> str:
    strides, dilations, kernel = _window(attrs, operands)
    if attrs.get("ceil_mode", 0):
        return "onnx.reference computes ceil_mode wrongly"
    padded = attrs["auto_pad"] not in ("", "NOTSET")
    if padded and (set(dilations) != {1} or _gaps(strides, dilations, kernel)):
        return "onnx.reference computes this auto_pad wrongly"
    return _TOO_LARGE if _windows(attrs, operands) > MOST_WINDOWS else ""


def _window(attrs: _Attributes, operands: Sequence[Array]) -> tuple[list[int], list[int], list[int]]:
    """Return strides, dilations and kernel, one for each axis."""
    ones = [1] * (operands[0].ndim - 2)
    found = (list(attrs.get(name) or ones) for name in ("strides", "dilations", "kernel_shape"))
    strides, dilations, kernel = found
    return strides, dilations, kernel


def _gaps(strides: list[int], dilations: list[int], kernel: list[int]) -> bool:
    """Tell whether windows leave pixels out: a padding for the usual output size would be negative."""
    return any((k - 1) * d + 1 < s for s, d, k in zip(strides, dilations, kernel, strict=False))


def _windows(attrs: _Attributes, operands: Sequence[Array]) -> int:
    """Return windows of all channels, about."""
    return operands[0].size // max(math.prod(_window(attrs, operands)[0]), 1)


def _recurrent(defaults: Sequence[bytes]) -> Callable[[_Attributes, Sequence[Array]], str]:
    """Return the rule of a recurrent layer with these activations per direction."""

    def rule(attrs: _Attributes, _operands: Sequence[Array]) -> str:
        given = list(attrs.get("activations", ()))
        if given not in ([], [*defaults], [*defaults, *defaults]):
            return "onnx.reference does not look at its activations"
        return ""

    return rule


_RULES: Mapping[str, Callable[[_Attributes, Sequence[Array]], str]] = {
    "AveragePool": _average_pool,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "GRU": _recurrent((b"Sigmoid", b"Tanh")),
    "LSTM": _recurrent((b"Sigmoid", b"Tanh", b"Tanh")),
    "MaxPool": _max_pool,
}
