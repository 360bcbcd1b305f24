"""Subgraph -> ONNX: the nodes of a file by files of QDQ pairs, as onnxruntime's quantiser writes them.

Tensors keep their names. A constant stays as it is in the file, in the order of its axes there: what an operator of
ONNX wants otherwise is a Transpose, which is free behind the import. So parameters lead back to the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import LITERT, OUTPUT_TYPE, Refused
from tinytrain_compile.frontend.file.protobuf import free_name
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Scales, Subgraph, Tensor
from tinytrain_compile.ir.types import Array

OPSET, IR_VERSION = 17, 8
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations of an image: to channels first, as ONNX has them, and back."""
INTEGERS = {"int8": (-128, 127), "uint8": (0, 255)}
"""Types of stored activations, and their range."""
_IMAGE = 4


class Translation:
    """ONNX nodes made so far, and the names under which they hold the tensors of the file."""

    def __init__(self, graph: Subgraph) -> None:
        self.graph = graph
        self._nodes = list[onnx.NodeProto]()
        self._constants = dict[str, Array]()
        self._taken = {one.name for one in graph.tensors}
        self._widened = set[int]()
        self._real, self._first = dict[int, str](), dict[int, str]()
        for k in dict.fromkeys(graph.inputs):
            self._input(k)

    # ---- tensors of the file ----------------------------------------------------------------------------------------

    def tensor(self, k: int) -> Tensor:
        """Return a tensor of the file; Refused if the operand is missing."""
        if k == ABSENT:
            raise Refused("", "it lacks an operand or a result", "the operator as the converter writes it")
        return self.graph.tensors[k]

    def known(self, k: int, what: str) -> Array:
        """Return a constant, which decides what an operator does; Refused if it is computed at run time."""
        data = None if k == ABSENT else self.tensor(k).data
        if data is None:
            raise Refused(what, "it is computed at run time", "a constant")
        return data

    def real(self, k: int) -> str:
        """Return the name of the real numbers of a tensor, axes as in the file."""
        if k not in self._real:
            if k in self._first:
                self._real[k] = self.node("Transpose", (self._first[k],), self._new(k, "nhwc"), perm=LAST)
            else:
                self._real[k] = self._constant(k)
        return self._real[k]

    def channels_first(self, k: int) -> str:
        """Return the name of the real numbers of an image, as ONNX has it."""
        if k not in self._first:
            self._first[k] = self.node("Transpose", (self.real(k),), self._new(k, "nchw"), perm=FIRST)
        return self._first[k]

    def scales(self, k: int) -> Scales | None:
        """Return how an activation is stored; None for real numbers. Refused for any other type."""
        tensor = self.tensor(k)
        if tensor.kind == "float32":
            return None
        if tensor.kind not in INTEGERS:
            raise Refused(tensor.name, f"it holds {tensor.kind}", "int8, uint8 or float32")
        if tensor.scales is None or tensor.scales.scale.size != 1:
            count = "no scale" if tensor.scales is None else f"{tensor.scales.scale.size} scales"
            raise Refused(tensor.name, f"it has {count}", "one scale and zero point")
        return tensor.scales

    # ---- what operators add -----------------------------------------------------------------------------------------

    def node(self, op: str, inputs: Iterable[str], output: str, **attributes: Any) -> str:
        """Add a node of one result, named after that; returns it."""
        self._nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def split(self, x: str, sizes: list[int], axis: int, outputs: list[str]) -> None:
        """Add a Split into these results."""
        given = [x, self.table(outputs[0], "sizes", sizes)]
        self._nodes.append(helper.make_node("Split", given, outputs, name=outputs[0], axis=axis))

    def table(self, beside: str, what: str, numbers: Any, kind: Any = np.int64) -> str:
        """Add a constant that is no parameter; returns its name."""
        name = free_name(f"{beside}.{what}", self._taken)
        self._constants[name] = np.asarray(numbers, kind)
        return name

    def made(self, k: int, between: str = "") -> str:
        """Return the name under which a node makes a tensor, before it is stored; between: of a step on the way."""
        name = self.tensor(k).name
        if between:
            return self._new(k, between)
        return self._new(k, "real") if k in self.graph.outputs else name

    def result(self, k: int, name: str, first: bool = False, shape: bool = False) -> None:
        """Note what a node has made: stored in the tensor's type, and read back.

        first: it is an image, channels first; shape: it comes in another shape than the tensor has.
        """
        stored = self._stored(k, name)
        if shape:
            wanted = self.table(stored, "shape", self.tensor(k).shape)
            stored = self.node("Reshape", (stored, wanted), free_name(f"{stored}.view", self._taken))
        (self._first if first else self._real)[k] = stored

    def _stored(self, k: int, name: str) -> str:
        scales = self.scales(k)
        if scales is None:
            return name
        numbers = self._format(k, scales, self.tensor(k).kind)
        stored = self.node("QuantizeLinear", (name, *numbers), self._new(k, "q"))
        return self.node("DequantizeLinear", (stored, *numbers), self._new(k, "dq"))

    def widened(self, k: int, half: int) -> None:
        """Note what DEQUANTIZE makes of a constant of float16: a weight like others."""
        self._widened.add(k)
        self.result(k, self.node("Cast", (self.real(half),), self.made(k), to=onnx.TensorProto.FLOAT))

    def check_weight(self, k: int) -> None:
        """Refuse weights that are computed at run time."""
        if k not in self._widened:
            self.known(k, "weights")

    def weight(self, k: int, scale: Scales | None = None) -> str:
        """Return the real numbers of a constant; scale: in place of its own."""
        self.check_weight(k)
        return self._constant(k, scale) if scale is not None else self.real(k)

    def _constant(self, k: int, scales: Scales | None = None) -> str:
        tensor = self.tensor(k)
        if tensor.data is None:
            raise CompileError("E0215", f"tensor {tensor.name}", "it is read before anything makes it", "convert again")
        if tensor.kind in ("float32", "float16"):
            self._constants[tensor.name] = tensor.data
            return tensor.name
        scales = scales or tensor.scales
        if tensor.kind not in (*INTEGERS, "int32") or scales is None:
            raise Refused(tensor.name, f"it holds {tensor.kind} without a scale", "int8, uint8 or float32")
        self._constants[tensor.name] = tensor.data
        axis = scales.axis if scales.scale.size > 1 else 0
        attributes = {"axis": axis} if scales.scale.size > 1 else {}
        if scales.scale.size > 1 and not (0 <= axis < len(tensor.shape) and tensor.shape[axis] == scales.scale.size):
            what = f"{scales.scale.size} scales for axis {axis} of shape {list(tensor.shape)}"
            raise CompileError("E0212", f"tensor {tensor.name}", what, "convert the model again")
        numbers = self._format(k, scales, tensor.kind)
        return self.node("DequantizeLinear", (tensor.name, *numbers), self._new(k, "dq"), **attributes)

    def _format(self, k: int, scales: Scales, kind: str) -> tuple[str, str]:
        name, single = self.tensor(k).name, scales.scale.size == 1
        low, high = INTEGERS.get(kind, (0, 0))
        zero = (
            scales.zero if scales.zero.size == scales.scale.size else np.broadcast_to(scales.zero, scales.scale.shape)
        )
        if not bool(((low <= zero) & (zero <= high)).all()):
            what = f"zero point {zero.tolist()[0]} of {kind}"
            raise CompileError("E0212", f"tensor {name}", what, "convert the model again")
        shape = () if single else scales.scale.shape
        return (
            self.table(name, "scale", scales.scale.reshape(shape), np.float32),
            self.table(name, "zero", zero.reshape(shape), kind),
        )

    def pass_over(self, operator: Operator) -> None:
        """Let the operators behind one that has no translation be looked at all the same."""
        for k in operator.outputs:
            if k != ABSENT:
                self._real.setdefault(k, self.tensor(k).name)

    def _new(self, k: int, what: str) -> str:
        return free_name(f"{self.tensor(k).name}.{what}", self._taken)

    def results(self) -> Iterator[tuple[Tensor, str, tuple[int, ...]]]:
        """Yield every tensor that is read, a name under which it is, and its shape there."""
        for k, name in self._real.items():
            yield self.tensor(k), name, self.tensor(k).shape
        for k, name in self._first.items():
            shape = self.tensor(k).shape
            yield self.tensor(k), name, tuple(shape[axis] for axis in FIRST) if len(shape) == _IMAGE else shape

    # ---- the ends of the model --------------------------------------------------------------------------------------

    def _input(self, k: int) -> None:
        """Let an image come in by way of channels first: the sign that its channels are last in the file."""
        stored = self._stored(k, self.tensor(k).name)
        if len(self.tensor(k).shape) == _IMAGE:
            self._first[k] = self.node("Transpose", (stored,), self._new(k, "nchw"), perm=FIRST)
        else:
            self._real[k] = stored

    def model(self, name: str) -> onnx.ModelProto:
        """Return the whole model, its inputs and outputs as real numbers."""
        outputs = [*dict.fromkeys(self.graph.outputs)]
        for k in outputs:
            self.node("Identity", (self.real(k),), self.tensor(k).name)
        held = [numpy_helper.from_array(np.ascontiguousarray(array), key) for key, array in self._constants.items()]
        inputs = [self._value(k) for k in dict.fromkeys(self.graph.inputs)]
        graph = helper.make_graph(self._nodes, name, inputs, [self._value(k) for k in outputs], held)
        opset = helper.make_opsetid("", OPSET)
        made = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name=LITERT)
        helper.set_model_props(made, {OUTPUT_TYPE: self.tensor(outputs[0]).kind})
        return made

    def _value(self, k: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(self.tensor(k).name, onnx.TensorProto.FLOAT, self.tensor(k).shape)
