"""QOperator form: QLinear operators become DequantizeLinear, an operator on real numbers, and QuantizeLinear.

So there is one form of a quantised model behind this module (see quantised.py). Both mean the same real numbers: an
int32 bias is in units of the product of the other scales, and results are rounded where QuantizeLinear is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import fold_all
from tinytrain_compile.frontend.file.guard import check_schema
from tinytrain_compile.frontend.file.model import MICROSOFT, OnnxModel, OnnxNode, Quantisation, Refused
from tinytrain_compile.frontend.file.protobuf import free_name
from tinytrain_compile.frontend.quantised.scales import read_scales

_SAME_OPS = frozenset(("DequantizeLinear", "QuantizeLinear"))
"""Operators of onnxruntime's domain that mean what the standard's mean."""


@dataclass(frozen=True)
class _Form:
    """op: the operator on real numbers; data: places of its operands, each followed by scale and zero point;
    result: place of the result's scale; bias: place of an int32 bias, -1 where there is none."""

    op: str
    data: tuple[int, ...]
    result: int
    bias: int = -1


_FORMS: Mapping[str, _Form] = {
    "QGemm": _Form("Gemm", (0, 3), 7, 6),
    "QLinearAdd": _Form("Add", (0, 3), 6),
    "QLinearAveragePool": _Form("AveragePool", (0,), 3),
    "QLinearConv": _Form("Conv", (0, 3), 6, 8),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": _Form("LeakyRelu", (0,), 3),
    "QLinearMatMul": _Form("MatMul", (0, 3), 6),
    "QLinearMul": _Form("Mul", (0, 3), 6),
    "QLinearReduceMean": _Form("ReduceMean", (0,), 3),
    "QLinearSigmoid": _Form("Sigmoid", (0,), 3),
    "QLinearSoftmax": _Form("Softmax", (0,), 3),
    "QLinearWhere": _Form("Where", (1, 4), 7),
}
_STANDARD = ("QLinearConv", "QLinearMatMul")
"""Operators of ONNX's own domain; onnxruntime's has no QLinearMatMul."""
QLINEAR_OPS = (*_FORMS, "QLinearConcat")
"""Operators that become three."""
_OWN_ATTRIBUTES = ("channels_last", "opset")
"""What only onnxruntime's forms have."""
_AXES_AS_INPUT = 18
"""Opset from which those of ReduceMean are no attribute."""


def in_qdq_form(model: OnnxModel) -> OnnxModel:
    """Return the model without QLinear operators, but those without another form, which are refused by name."""
    if not any(_form(node) or _is_same(node) for node in model.nodes):
        return model
    return _Rewriter(model).run()


def _form(node: OnnxNode) -> _Form | None:
    if node.domain == MICROSOFT and node.op == "QLinearConcat":
        return _Form("Concat", tuple(range(2, len(node.inputs), 3)), 0)
    theirs = node.domain == MICROSOFT and node.op != "QLinearMatMul"
    return _FORMS.get(node.op) if theirs or (not node.domain and node.op in _STANDARD) else None


def _is_same(node: OnnxNode) -> bool:
    return node.domain == MICROSOFT and node.op in _SAME_OPS


class _Rewriter:
    def __init__(self, model: OnnxModel) -> None:
        self._model = model
        self._known, _ = fold_all(model.nodes, model.constants, model.opset)
        self._constants = dict(model.constants)
        self._nodes: list[OnnxNode] = []
        self._refused: dict[str, Refused] = {}
        self._places: dict[str, tuple[str, int]] = {}
        tensors = (name for node in model.nodes for name in (node.name, *node.inputs, *node.outputs))
        taken = {*tensors, *model.constants, *(value.name for value in model.inputs)}
        self._free = partial(free_name, taken=taken)

    def run(self) -> OnnxModel:
        for node in self._model.nodes:
            before = len(self._nodes)
            try:
                self._convert(node)
            except (ValueError, TypeError) as problem:  # attributes of a foreign operator are of any type
                what = f"its attributes cannot be read ({problem})"
                raise CompileError("E0229", f"node {node.name} ({node.op})", what, "quantise again") from problem
            except Refused as reason:
                del self._nodes[before:]
                self._refused[node.name] = reason
                self._nodes.append(node)
        found = Quantisation(refused=self._refused, places=self._places)
        return replace(self._model, nodes=tuple(self._nodes), constants=self._constants, quantisation=found)

    def _convert(self, node: OnnxNode) -> None:
        form = _form(node)
        if form is not None:
            self._real(node, form)
        elif _is_same(node):
            self._make(node.name, node.op, node.inputs, node.outputs, node)
        else:
            self._nodes.append(node)

    def _real(self, node: OnnxNode, form: _Form) -> None:
        if node.integer("channels_last", 0):
            raise Refused("channels_last", "its channels are the last axis", "the model as it was quantised")
        if not form.data or len(node.outputs) != 1 or not all(node.input(at) for at in form.data):
            raise Refused("", "operands or its result are missing", "a model as onnxruntime quantises it")
        channels = 0 if node.op == "QLinearConv" or (node.op == "QGemm" and node.integer("transB", 0)) else -1
        operands = [self._dequantised(node, at, channels) for at in form.data]
        if form.op == "Where":
            operands.insert(0, node.input(0))
        if form.bias >= 0 and node.input(form.bias):
            operands.append(self._bias(node, form))
        scale, zero = node.input(form.result), self._zero(node, form)
        if not scale and form.op == "Gemm":  # its result is not quantised
            self._make(node.name, form.op, operands, node.outputs, node)
            return
        result = self._free(f"{node.output(0)}.real")
        if form.op == "Softmax":
            self._softmax(node, operands[0], result)
        else:
            self._make(node.name, form.op, operands, (result,), node)
        self._make(self._free(f"{node.name}.q"), "QuantizeLinear", (result, scale, zero), node.outputs)

    def _softmax(self, node: OnnxNode, x: str, result: str) -> None:
        """Make a Softmax: of opset 12 and below, also in a newer model, it is over all axes from `axis` on."""
        if node.integer("opset", 13) >= 13 or node.integer("axis", -1) == -1:
            self._make(node.name, "Softmax", (x,), (result,), axis=node.integer("axis", -1))
            return
        shape, flat, whole = (self._free(f"{result}.{part}") for part in ("shape", "flat", "whole"))
        self._make(self._free(f"{node.name}.shape"), "Shape", (x,), (shape,))
        self._make(self._free(f"{node.name}.flat"), "Flatten", (x,), (flat,), axis=node.integer("axis", -1))
        self._make(node.name, "Softmax", (flat,), (whole,), axis=-1)
        self._make(self._free(f"{node.name}.back"), "Reshape", (whole, shape), (result,))

    def _dequantised(self, node: OnnxNode, at: int, axis: int) -> str:
        """Return the real numbers of an operand; axis: which the scales of a constant lie on."""
        name = self._free(f"{node.name}.{at}")
        inputs = [node.input(at), node.input(at + 1), node.input(at + 2)]
        self._make(name, "DequantizeLinear", inputs if inputs[2] else inputs[:2], (name,), axis=axis)
        self._places[name] = node.output(0), at
        return name

    def _bias(self, node: OnnxNode, form: _Form) -> str:
        """Return stored in units of the accumulator, which the file does not repeat."""
        names = ((node.input(at + 1), node.input(at + 2)) for at in form.data)
        factors = [read_scales(node, self._known, scale, zero, "").scale for scale, zero in names]
        if factors[0].size != 1:
            raise Refused("x_scale", "an activation with a scale per channel", "one scale for the whole tensor")
        scale, name = (self._free(f"{node.name}.bias{part}") for part in ("_scale", ""))
        unit = factors[0] * factors[1] * node.number("alpha", 1.0)
        self._constants[scale] = unit if unit.size > 1 else unit.reshape(())
        self._make(name, "DequantizeLinear", (node.input(form.bias), scale), (name,), axis=0)
        self._places[name] = node.output(0), form.bias
        return name

    def _zero(self, node: OnnxNode, form: _Form) -> str:
        """Return the zero point of the result: 0 of the operands' type where it is left out."""
        given = node.input(form.result + 1)
        if given or not node.input(form.result):
            return given
        kinds = [self._known[name].dtype for at in form.data if (name := node.input(at + 2)) in self._known]
        if not kinds:
            raise Refused("zero_point", "without one the type of its result is open", "a zero point, which may be 0")
        name = self._free(f"{node.name}.zero")
        self._constants[name] = np.zeros((), kinds[0])
        return name

    def _make(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        like: OnnxNode | None = None,
        axis: int | None = None,
    ) -> None:
        """Make a node of the standard, with the attributes of `like`, or this axis."""
        proto: onnx.NodeProto = helper.make_node(op, inputs, outputs, name=name)
        found: dict[str, Any] = {} if axis is None else {"axis": axis}
        proto.attribute.extend(helper.make_attribute(key, value) for key, value in found.items())
        for attribute in () if like is None else like.proto.attribute:
            if attribute.name == "axes" and self._model.opset >= _AXES_AS_INPUT:
                inputs = (*inputs, self._free(f"{name}.axes"))
                self._constants[inputs[-1]] = np.asarray(attribute.ints, np.int64)
                proto.input.append(inputs[-1])
            elif attribute.name not in _OWN_ATTRIBUTES:
                proto.attribute.append(attribute)
                found[attribute.name] = helper.get_attribute_value(attribute)
        check_schema(proto, f"node {name} ({op})", self._model.opset)
        self._nodes.append(OnnxNode(name, op, "", tuple(inputs), tuple(outputs), found, proto))
