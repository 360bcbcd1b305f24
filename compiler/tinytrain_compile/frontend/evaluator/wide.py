"""The model file in float64: what onnx.reference would round to float32 on the way, and what it would not say.

A central difference divides by a step of a millionth: one operator that rounds inside makes noise of it. Which ones do
was found by running every operator at two step sizes (tests/driver/derivative/test_file_function.py); these forms
follow the operators' definitions in the ONNX specification, version 1.23.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference.op_run import OpRun

from tinytrain_compile.frontend.file.protobuf import bodies
from tinytrain_compile.ir.types import Array

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
    made = onnx.NodeProto()
    made.CopyFrom(proto)
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
    """The error function: onnx.reference rounds it to float32."""

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
    """The largest element of each channel: onnx.reference takes the wrong axes unless there are two."""

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
