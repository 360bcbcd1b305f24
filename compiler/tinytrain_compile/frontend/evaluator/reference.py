"""Limits of onnx.reference as a judge, and the operators that this module computes instead.

It has random operators, computes some wrongly (found by comparing it with onnxruntime on random attributes,
tests/frontend/test_evaluator.py), takes too long for some, and rounds to float32 where float64 is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from onnx.reference.op_run import OpRun

from tinytrain_compile.frontend.file.model import changed
from tinytrain_compile.frontend.file.protobuf import bodies
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
    # A Dropout in training mode drops; the ratio may be left out.
    drops = node.op_type == "Dropout" and len(node.input) > 2 and bool(operands[-1].any()) and bool(operands[1].any())
    if node.op_type in _RANDOM or drops:
        return "its result is random"
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    if node.op_type in _SOFTMAX and opset < ONE_AXIS and axis % max(operands[0].ndim, 1) != operands[0].ndim - 1:
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
    strides, dilations, kernel = (list(attrs.get(name) or ones) for name in ("strides", "dilations", "kernel_shape"))
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


# ---- the model file in float64 ---------------------------------------------------------------------------------------
# A central difference divides by a step of a millionth: one operator that rounds inside makes noise of it. Which ones
# do was found by running every operator at two step sizes (tests/driver/derivative/test_file_function.py); these forms
# follow the operators' definitions in the ONNX specification, version 1.23.


_FLOATS = ("bfloat16", "float16", "float32", "float64")
_FLOAT_KINDS = frozenset(
    (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
)
_KINDS = ("dtype", "output_dtype", "to")
"""Attributes that name an element type."""
_WITHOUT_A_TYPE = {"ConstantOfShape": "value", "EyeLike": "dtype"}
"""Operators whose result is float32 unless this attribute says otherwise."""


def is_float(kind: np.dtype[Any]) -> bool:
    """Tell whether numbers of this numpy type become float64."""
    return kind.name in _FLOATS


def array_in_float64(array: Array) -> Array:
    """Return floating-point numbers in float64, all others as they are."""
    return array.astype(np.float64) if is_float(array.dtype) else array


def in_float64(proto: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node with float64 in place of every other float that it makes or holds."""
    made = changed(proto)
    for attribute in made.attribute:
        if attribute.name in _KINDS and attribute.i in _FLOAT_KINDS:
            attribute.i = onnx.TensorProto.DOUBLE
        elif attribute.t.data_type in _FLOAT_KINDS:
            wide = numpy_helper.to_array(attribute.t).astype(np.float64)
            attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
        elif proto.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            wide = np.asarray(helper.get_attribute_value(attribute), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(wide)))
    for graph in bodies(made):
        _widen(graph)
    missing = _WITHOUT_A_TYPE.get(proto.op_type)
    if missing is not None and all(attribute.name != missing for attribute in made.attribute):
        zero = numpy_helper.from_array(np.zeros(1)) if missing == "value" else onnx.TensorProto.DOUBLE
        made.attribute.append(helper.make_attribute(missing, zero))
    return made


def _widen(graph: onnx.GraphProto) -> None:
    """Bring a graph inside of a node to float64."""
    for node in graph.node:
        node.CopyFrom(in_float64(node))
    for tensor in graph.initializer:
        if tensor.data_type in _FLOAT_KINDS:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=["d"])(x) if x.size else x.astype(np.float64)


class Erf(OpRun):
    """The error function in float64; onnx.reference rounds its result to float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:  # pyright: ignore
        return (_erf(x),)


class Gelu(OpRun):
    """x Phi(x), or its form by a tanh: onnx.reference computes its Erf in float32."""

    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:  # pyright: ignore
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1 + _erf(x / math.sqrt(2))),)


class GroupNormalization(OpRun):
    """Statistics of each group of channels; scale and bias of each channel (before opset 21 of each group).

    onnx.reference runs the body of ONNX's function, which casts to the type that stash_type names: float32.
    """

    op_domain = ""

    def _run(  # pyright: ignore
        self,
        x: Array,
        scale: Array,
        bias: Array,
        epsilon: float | None = None,
        num_groups: int | None = None,
        stash_type: int | None = None,
    ) -> tuple[Array]:
        groups = int(num_groups or 1)
        split = x.reshape(len(x), groups, -1)
        mean = split.mean(axis=2, keepdims=True)
        variance = ((split - mean) ** 2).mean(axis=2, keepdims=True)
        normal = ((split - mean) / np.sqrt(variance + (1e-5 if epsilon is None else epsilon))).reshape(x.shape)
        each = x.shape[1] // len(scale)
        along = (1, -1, *[1] * (x.ndim - 2))
        return (normal * np.repeat(scale, each).reshape(along) + np.repeat(bias, each).reshape(along),)


class GlobalMaxPool(OpRun):
    """The largest element of each channel; onnx.reference reduces the wrong axes unless there are two."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:  # pyright: ignore
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class Loop(OpRun):
    """A loop with all its scan outputs: onnx.reference joins these along their first axis, not along a new one."""

    op_domain = ""
    body: Any
    _run_body: Any

    def need_context(self) -> bool:
        """Tell that the body may read every tensor around it."""
        return True

    def _run(  # pyright: ignore
        self,
        most: Array | None,
        going: Array | None,
        *carried: Array,
        context: dict[str, Array] | None = None,
        body: object = None,
        attributes: object = None,
    ) -> tuple[Array, ...]:
        state, goes_on, scanned = list(carried), going is None or bool(going), list[list[Array]]()
        while goes_on and (most is None or len(scanned) < most):
            turn = (np.asarray(len(scanned), np.int64), np.asarray(True), *state)
            values = {**(context or {}), **dict(zip(self.body.input_names, turn, strict=True))}
            condition, *results = cast("list[Array]", self._run_body(values, attributes=attributes))
            state, goes_on = results[: len(state)], bool(condition)
            scanned.append(results[len(state) :])
        return (*state, *(np.stack(turns) for turns in zip(*scanned, strict=True)))


def own_operators(wide: bool) -> list[type[OpRun]]:
    """Return the operators that are computed here instead. wide: in float64."""
    return [GlobalMaxPool, Loop, *((Erf, Gelu, GroupNormalization) if wide else ())]
