"""An ONNX model after the guard: plain Python data that the importer can rely on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tinytrain_compile.ir.imported import Copy, StoredTensor
from tinytrain_compile.ir.types import Array, Quant

QUANTISED_OPS = ("DequantizeLinear", "QuantizeLinear")
"""Operators that leave the model before it is imported."""
OPSET = 13
"""The first that is imported as it stands."""
DEFAULT_DOMAINS = ("", "ai.onnx")
MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""
LEARNED = "ai.onnx.ml"
"""The domain of classical machine learning."""
LITERT = "LiteRT"
"""Producer of models that are made of .tflite files."""
OUTPUT_TYPE = "output type"
"""Entry of such a model's metadata: the type that the file stores its first output in."""


@dataclass(eq=False)
class Refused(Exception):  # noqa: N818  (not an error of its own: all of a model are reported together)
    """A node, or an attribute of it, that has no IR form. `nearest` is what the user could write instead."""

    attribute: str
    reason: str
    nearest: str


@dataclass(frozen=True, eq=False)
class QuantisedConstant:
    """A weight, bias or table that the model stores as integers: real = (q - zero) * scale.

    scale: one element, or one per channel; is_bias: int32 instead of int8 (uint8 counts as int8, zero point shifted).
    stored: the integers of the file; root: the initializer that they are, or are moved from. leaves_int8: whether
    these integers, less their zero point, do not fit int8.
    """

    scale: NDArray[np.float64]
    zero: int
    is_bias: bool
    stored: StoredTensor
    root: str
    leaves_int8: bool = False


@dataclass(frozen=True, eq=False)
class Quantisation:
    """All that is left of a model's quantisation once the model computes real numbers.

    found: whether the model has any of the QUANTISED_OPS.
    tensors: ONNX tensor -> how it is stored; constants: the same for initializers (now float32).
    aliases: outputs of Q and DQ nodes -> the real tensor that stands for them.
    refused: node name -> why it has no real counterpart (such nodes stay in the model, to be reported).
    places: real operand of a QLinear operator -> the output of the node of the file that reads its integers, and where.
    """

    found: bool = False
    tensors: Mapping[str, Quant] = field(default_factory=dict[str, Quant])
    constants: Mapping[str, QuantisedConstant] = field(default_factory=dict[str, QuantisedConstant])
    refused: Mapping[str, Refused] = field(default_factory=dict[str, Refused])
    notes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])


OTHER_FLOATS: Mapping[int, str] = {
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
"""Element types that become float32, by their names in numpy."""
TYPE_ATTRIBUTES = ("dtype", "output_dtype", "to")
"""Attributes that name an element type."""

INDICES = frozenset((onnx.TensorProto.INT32, onnx.TensorProto.INT64))
"""Types of an input that tables are looked up by, and of integers that are computed with as they are."""
CONTROL_FLOW = frozenset(
    ("", op) for op in ("If", "Loop", "SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceAt")
)
"""Operators that are written out as plain nodes."""

LOSS_OPS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
"""Operators of ONNX that are losses of class labels."""


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """One node. `name` is the ONNX name, or one made of operator and output where the model gives none."""

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    proto: onnx.NodeProto

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return int(self.attrs.get(name, default))

    def number(self, name: str, default: float) -> float:
        """Return a float attribute; ValueError if it is not finite."""
        value = float(self.attrs.get(name, default))
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        return value

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attrs.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list-of-integers attribute, or None where it is absent."""
        value = self.attrs.get(name)
        return None if value is None else tuple(int(v) for v in value)

    def input(self, index: int) -> str:
        """Return name of an input; "" where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """Return name of an output; "" where it is absent."""
        return self.outputs[index] if index < len(self.outputs) else ""


@dataclass(frozen=True, eq=False)
class OnnxInput:
    """A graph input that is no constant: resolved shape, element type as onnx.TensorProto.DataType."""

    name: str
    shape: tuple[int, ...]
    elem_type: int


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A checked model: nodes in topological order, unique names, every read defined, finite weights.

    quantisation: how its tensors are stored, once the nodes compute real numbers (see quantised.py).
    replaced: tensors that depend on a layer which is no longer the file's (see new_head.py); fresh: its constants.
    other_floats: numpy types of constants that are no float32 in the file.
    copies: initializers that nodes make of another one instead.
    notes: what was made of the file before it was imported.
    deciding: constants that only decide what a loop or branch does, which is written out (see control_flow.py).
    """

    name: str
    opset: int
    nodes: tuple[OnnxNode, ...]
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    proto: onnx.ModelProto
    quantisation: Quantisation = field(default_factory=Quantisation)
    replaced: frozenset[str] = frozenset()
    fresh: frozenset[str] = frozenset()
    copies: Mapping[str, Copy] = field(default_factory=dict[str, Copy])
    other_floats: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()
    deciding: frozenset[str] = frozenset()

    @property
    def floats(self) -> dict[str, Array]:
        """Constants of floating-point numbers that have elements."""
        return {name: array for name, array in self.constants.items() if array.dtype.kind == "f" and array.size}

    @property
    def operators(self) -> frozenset[tuple[str, str]]:
        """Domain and name of every operator that a node has: what decides which parts of the importer are needed."""
        return frozenset((node.domain, node.op) for node in self.nodes)

    def numbers(self, tensor: str) -> Array | None:
        """Return what an initializer or a Constant node of one attribute, `value` or `value_ints`, holds."""
        constants = (node for node in self.nodes if node.op == "Constant" and not node.domain)
        maker = next((node for node in constants if tensor in node.outputs), None)
        held = None if maker is None else maker.attrs.get("value", maker.attrs.get("value_ints"))
        return self.constants.get(tensor) if held is None else np.asarray(held)

    @property
    def may_end_in_a_loss(self) -> bool:
        """Tell whether it has a loss operator, or an output that is declared as one number or not at all."""
        shapes = (v.type.tensor_type.shape.dim for v in self.proto.graph.output if v.name in self.outputs)
        scalar = any(all(dim.HasField("dim_value") and dim.dim_value == 1 for dim in dims) for dims in shapes)
        return scalar or any(op in LOSS_OPS for _, op in self.operators)

    @property
    def is_quantised(self) -> bool:
        """Tell whether a node stores or reads integers that stand for real numbers."""
        return any(op.startswith(("QLinear", "QGemm", *QUANTISED_OPS)) for _, op in self.operators)

    @property
    def other_float_types(self) -> frozenset[int]:
        """Element types of floating-point numbers but float32, of inputs, constants and attributes."""
        found = {value.elem_type for value in self.inputs}
        names = {array.dtype.name for array in self.constants.values()}
        found |= {kind for kind, name in OTHER_FLOATS.items() if name in names}
        for node in self.nodes:
            for attribute in node.proto.attribute if node.domain != LEARNED else ():
                found |= {attribute.t.data_type, attribute.i if attribute.name in TYPE_ATTRIBUTES else 0}
        return frozenset(OTHER_FLOATS.keys() & found)


def new_node(
    name: str, op: str, inputs: Sequence[str], outputs: Sequence[str], attrs: Mapping[str, Any] | None = None
) -> OnnxNode:
    """Return a node of the standard; arrays in attributes are tensors in its protobuf."""
    proto: onnx.NodeProto = helper.make_node(op, inputs, outputs, name=name)
    given = attrs or {}
    values = {key: numpy_helper.from_array(v) if hasattr(v, "dtype") else v for key, v in given.items()}
    proto.attribute.extend(helper.make_attribute(key, value) for key, value in values.items())
    return OnnxNode(name, op, "", tuple(inputs), tuple(outputs), given, proto)


def rewritten(node: OnnxNode, inputs: Sequence[str], op: str = "", outputs: Sequence[str] | None = None) -> OnnxNode:
    """Return the node with other inputs (and operator, and outputs), its protobuf included.

    Itself if nothing changes.
    """
    made = node.outputs if outputs is None else tuple(outputs)
    if tuple(inputs) == node.inputs and made == node.outputs and op in ("", node.op):
        return node
    proto = changed(node.proto, inputs, made)
    proto.op_type = op or node.op
    return OnnxNode(node.name, op or node.op, node.domain, tuple(inputs), made, node.attrs, proto)


def changed(
    node: onnx.NodeProto, inputs: Iterable[str] | None = None, outputs: Iterable[str] | None = None
) -> onnx.NodeProto:
    """Return a copy of a node, with other inputs and outputs where they are given."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    if inputs is not None:
        made.input[:] = inputs
    if outputs is not None:
        made.output[:] = outputs
    return made


class Links:
    """Who makes and who reads each tensor of a model, and which tensors are known at compile time."""

    def __init__(self, nodes: Sequence[OnnxNode], outputs: Sequence[str], constants: Mapping[str, Array]) -> None:
        self._readers: dict[str, list[OnnxNode]] = {}
        self._makers: dict[str, OnnxNode] = {}
        self._outputs = frozenset(outputs)
        self._constant = set(constants)
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                self._readers.setdefault(name, []).append(node)
            self._makers.update(dict.fromkeys(node.outputs, node))
            if node.op in ("Shape", "Size", "Constant") or all(self.is_constant(name) for name in node.inputs if name):
                self._constant.update(node.outputs)

    def is_constant(self, tensor: str) -> bool:
        """Tell whether a tensor does not depend on the model's input."""
        return tensor in self._constant

    def is_output(self, tensor: str) -> bool:
        """Tell whether a tensor is an output of the model."""
        return tensor in self._outputs

    def readers(self, tensor: str) -> list[OnnxNode]:
        """Return nodes that read a tensor, in order."""
        return self._readers.get(tensor, [])

    def maker(self, tensor: str) -> OnnxNode | None:
        """Return the node that makes a tensor; None for inputs and weights."""
        return self._makers.get(tensor)

    def sole_reader(self, tensor: str) -> OnnxNode | None:
        """Return the one node that reads a tensor; None if there are others, or the tensor is an output."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and not self.is_output(tensor) else None

    def chain(self, node: OnnxNode, *ops: str) -> tuple[OnnxNode, ...]:
        """Return the nodes of these operators of which each alone reads the one before, `node` first; else none."""
        found: list[OnnxNode] = []
        for op in ops:
            reader = self.sole_reader((found or [node])[-1].output(0))
            if reader is None or reader.op != op:
                return ()
            found.append(reader)
        return tuple(found)

    def followed(self, tensor: str, passes: Callable[[OnnxNode], bool]) -> Iterator[tuple[str, OnnxNode]]:
        """Yield who reads a tensor, or what nodes that pass it on make of it, each with the name that it reads."""
        tensors = {tensor: None}
        pending = [tensor]
        for name in pending:  # grows
            for node in self.readers(name):
                yield name, node
                if passes(node):
                    pending += [output for output in node.outputs if output and output not in tensors]
                    tensors |= dict.fromkeys(node.outputs)

    def is_used(self, tensor: str) -> bool:
        """Tell whether anything reads a tensor."""
        return bool(tensor) and (bool(self.readers(tensor)) or self.is_output(tensor))


def unused(name: str, constants: Mapping[str, Array], links: Links) -> str:
    """Return the name, longer where the file has a tensor of that name."""
    while name in constants or links.readers(name) or links.maker(name) is not None:
        name += "_"
    return name


def reachable(nodes: Sequence[OnnxNode], outputs: Sequence[str]) -> tuple[OnnxNode, ...]:
    """Return the nodes that the outputs depend on, in the given order."""
    needed = set(outputs)
    kept: list[OnnxNode] = []
    for node in reversed(nodes):
        if needed.intersection(name for name in node.outputs if name):
            kept.append(node)
            needed.update(node.inputs)
    return tuple(reversed(kept))
