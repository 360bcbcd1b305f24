"""How the judge reads onnxruntime's operators on stored integers, which onnx.reference does not know.

As their documentation defines them: dequantised operands, an operator of the standard, a quantised result. A second
reading beside the importer's (qoperators.py), so that one may judge the other; tests compare it with onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

from tinytrain_compile.frontend.file.model import MICROSOFT
from tinytrain_compile.ir.types import Array

SPELT_OPSET = 21
"""Of the nodes that `spelt_out` returns: the first whose DequantizeLinear onnx.reference has in its present form."""
IMAGE_RANK = 4
"""The only one for which its QLinearConv knows scales per channel."""
_STANDARD = ("QLinearConv", "QLinearMatMul")
_FORMS: Mapping[str, tuple[str, int]] = {
    "QGemm": ("Gemm", 7),
    "QLinearAdd": ("Add", 6),
    "QLinearAveragePool": ("AveragePool", 3),
    "QLinearConcat": ("Concat", 0),
    "QLinearConv": ("Conv", 6),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 3),
    "QLinearLeakyRelu": ("LeakyRelu", 3),
    "QLinearMatMul": ("MatMul", 6),
    "QLinearMul": ("Mul", 6),
    "QLinearReduceMean": ("ReduceMean", 3),
    "QLinearSigmoid": ("Sigmoid", 3),
    "QLinearSoftmax": ("Softmax", 3),
    "QLinearWhere": ("Where", 7),
}
"""Operator -> what it is on real numbers, and the place of its result's scale."""


def is_qlinear(proto: onnx.NodeProto) -> bool:
    """Tell whether a node takes and gives stored integers and their scales."""
    return proto.op_type in (_FORMS if proto.domain == MICROSOFT else () if proto.domain else _STANDARD)


def real_op(proto: onnx.NodeProto) -> str:
    """Return the operator on real numbers that a node stands for: Conv for a QLinearConv."""
    return _FORMS[proto.op_type][0] if is_qlinear(proto) else proto.op_type


def real_operand(proto: onnx.NodeProto, index: int) -> str:
    """Return the name of a factor of a product, counted from 0. Scale and zero point follow each in a QLinearConv."""
    return proto.input[3 * index if is_qlinear(proto) else index]


def needs_spelling(proto: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    """Tell whether onnx.reference lacks a node that `spelt_out` has, or has it for images only."""
    images = proto.op_type != "QLinearConv" or values[proto.input[0]].ndim == IMAGE_RANK
    return is_qlinear(proto) and (proto.domain == MICROSOFT or not images)


def result_scale(proto: onnx.NodeProto) -> int | None:
    """Return the place of the scale of what a node stores (its zero point follows); None if it gives real numbers."""
    if proto.op_type == "QuantizeLinear":
        return 1
    place = _FORMS[proto.op_type][1] if is_qlinear(proto) else len(proto.input)
    return place if place < len(proto.input) and proto.input[place] else None


def spelt_out(proto: onnx.NodeProto, values: Mapping[str, Array]) -> list[onnx.NodeProto]:
    """Return the node as nodes of opset 21 with the same result. values: its operands. ValueError if there are none."""
    return _Spelling(proto, values).nodes()


class _Spelling:
    def __init__(self, proto: onnx.NodeProto, values: Mapping[str, Array]) -> None:
        self._proto, self._values = proto, values
        self._op, self._names = proto.op_type, [*proto.input, "", "", ""]
        self._attrs = {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute}
        self._nodes: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        if self._attrs.pop("channels_last", 0):
            raise ValueError("channels_last")
        operands = self._operands()
        attrs = self._attributes(operands)
        out = self._proto.output[0]
        place = result_scale(self._proto)
        y = out if place is None else self._own("y")
        if self._op == "QLinearSoftmax" and attrs.pop("opset", 13) < 13:
            self._old_softmax(operands[0], y, attrs.get("axis", -1))
        else:
            self._make(_FORMS[self._op][0], operands, y, attrs)
        if place is not None:
            scale, zero = self._names[place : place + 2]
            first = self._values[self._names[{"QLinearConcat": 2, "QLinearWhere": 1}.get(self._op, 0)]]
            kind = {} if zero else {"output_dtype": helper.np_dtype_to_tensor_dtype(first.dtype)}
            self._make("QuantizeLinear", [y, scale, *([zero] if zero else [])], out, kind)
        return self._nodes

    def _operands(self) -> list[str]:
        if self._op == "QLinearConcat":
            return [self._real(at) for at in range(2, len(self._proto.input), 3)]
        if self._op == "QLinearWhere":
            return [self._names[0], self._real(1), self._real(4)]
        if self._op not in ("QGemm", "QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul"):
            return [self._real(0)]
        columns = 0 if self._op == "QLinearConv" or self._attrs.get("transB", 0) else -1
        pair = [self._real(0), self._real(3, columns)]
        bias = self._names[{"QGemm": 6, "QLinearConv": 8}.get(self._op, len(self._names) - 1)]
        if bias:
            unit, real = self._own("unit"), self._own("bias")
            self._make("Mul", [self._names[1], self._names[4]], unit)
            self._make("DequantizeLinear", [bias, unit], real, {"axis": 0})
            pair.append(real)
        return pair

    def _real(self, at: int, axis: int = -1) -> str:
        name = self._own(str(at))
        inputs = [self._names[i] for i in (at, at + 1, at + 2) if self._names[i]]
        self._make("DequantizeLinear", inputs, name, {"axis": axis})
        return name

    def _old_softmax(self, x: str, y: str, axis: int) -> None:
        """Spell a Softmax below opset 13, which is over all axes from one on."""
        shape, flat, whole = self._own("shape"), self._own("flat"), self._own("whole")
        self._make("Shape", [x], shape)
        self._make("Flatten", [x], flat, {"axis": axis})
        self._make("Softmax", [flat], whole, {"axis": -1})
        self._make("Reshape", [whole, shape], y)

    def _attributes(self, operands: list[str]) -> dict[str, Any]:
        """Return the standard's.

        The bias of a QGemm is scaled with the product, and axes are an operand from opset 18 on.
        """
        attrs = dict(self._attrs)
        if self._op == "QGemm":
            attrs["beta"] = attrs.get("alpha", 1.0)
        if self._op == "QLinearReduceMean" and "axes" in attrs:
            axes = self._own("axes")
            self._make("Constant", [], axes, {"value_ints": attrs.pop("axes")})
            operands.append(axes)
        return attrs

    def _make(self, op: str, inputs: Sequence[str], output: str, attrs: Mapping[str, object] | None = None) -> None:
        node: onnx.NodeProto = helper.make_node(op, inputs, [output])
        node.attribute.extend(helper.make_attribute(name, value) for name, value in (attrs or {}).items())
        self._nodes.append(node)

    def _own(self, part: str) -> str:
        return f"{self._proto.output[0]} {part}"
