"""The model's layers as the user knows them: ONNX nodes with parameters, in topological order."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from tinytrain_compile.ir.types import FileNames, Graph, Node, Value
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.names import operands


@dataclass(frozen=True)
class Layer:
    """One ONNX node with parameters.

    weights: its parameters that multiply; biases: those that are added; node: the IR node that reads the first of them.
    also: names of further ONNX nodes that belong to it: the Add of a bias behind a MatMul.
    known_as: what its parameters are called in the file.
    """

    name: str
    node: Node
    weights: tuple[Value, ...]
    biases: tuple[Value, ...]
    also: tuple[str, ...] = ()
    known_as: Mapping[str, FileNames] = field(default_factory=dict[str, FileNames])

    @property
    def names(self) -> tuple[str, ...]:
        """By which it may be called."""
        return (self.name, *self.also)

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the file that its parameters are in, from the inside out, those of weights first."""
        return tuple(dict.fromkeys(name for value in self.parameters for name in self._file(value).modules))

    def tensors(self, value: Value) -> tuple[str, ...]:
        """Return names in the file of one of its parameters."""
        return self._file(value).tensors

    def _file(self, value: Value) -> FileNames:
        return self.known_as.get(value.name, FileNames())

    @property
    def module(self) -> str:
        """The innermost module, if its node's name does not tell it: exporters number nodes (`node_linear_2`)."""
        inside = next(iter(self.modules), "")
        path = self.name.replace("/", ".")
        return "" if re.search(rf"(?<!\w){re.escape(inside)}(?!\w)", path) else inside

    @property
    def parameters(self) -> tuple[Value, ...]:
        """All parameters of the layer."""
        return (*self.weights, *self.biases)


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Return all layers; a parameter that several nodes share belongs to the first of them."""
    parameters = {value.name for value in graph.parameters}
    found: dict[str, tuple[Node, list[Value], list[Value]]] = {}
    also: dict[str, list[str]] = {}
    seen: set[str] = set()
    makers, readers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        for operand_name, value in operands(node).items():
            if value.name not in parameters or value.name in seen:
                continue
            seen.add(value.name)
            name = value.origin or node.origin or node.name
            product = _product_before(node, value, makers, readers)
            if operand_name == "bias":
                product = operands(node)["w"].origin or node.origin
            if product is not None and product != name and product in found:
                also.setdefault(product, []).append(name)
                name = product
            _, weights, biases = found.setdefault(name, (node, [], []))
            (biases if _is_bias(node, operand_name) else weights).append(value)
    return tuple(
        Layer(name, node, tuple(w), tuple(b), tuple(also.get(name, ())), graph.known_as)
        for name, (node, w, b) in found.items()
    )


def _product_before(
    node: Node, bias: Value, makers: Mapping[str, Node], readers: Mapping[str, list[Node]]
) -> str | None:
    """Return the name of the layer whose result an Add of one number per column alone reads: a dense layer in two
    nodes."""
    if node.op != "Add" or bias.shape != node.outputs[0].shape[-1:]:
        return None
    source = next((value for value in node.inputs if value.name != bias.name), None)
    maker = None if source is None else makers.get(source.name)
    while maker is not None and maker.op == "Reshape" and len(readers.get(maker.outputs[0].name, [])) == 1:
        source = maker.inputs[0]
        maker = makers.get(source.name)
    if maker is None or source is None or maker.op != "Gemm" or len(readers.get(source.name, [])) != 1:
        return None
    return None if "bias" in operands(maker) else operands(maker)["w"].origin or maker.origin


def _is_bias(node: Node, operand_name: str) -> bool:
    return node.op in ("Add", "Sub") or operand_name == "bias"


def parameter_of(known: Container[str], name: str) -> str | None:
    """Return the parameter that a tensor of the state is, or belongs to: it has its name, or begins with that and a
    dot."""
    while name not in known:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name


def channel_axes(node: Node, weight: Value) -> dict[str, int]:
    """Return channel counts of a weight by axis name, as a scheme file indexes them ("in" is the input of the
    layer)."""
    if node.op == "Gemm":
        return {"out": weight.shape[0], "in": weight.shape[1]}
    attrs = node.attrs
    if isinstance(attrs, ConvAttrs):
        axes = {"out": weight.shape[0]}
        if attrs.groups == 1:
            axes["in"] = weight.shape[3]
        return axes
    if isinstance(attrs, ConvGradInputAttrs) and attrs.conv.groups == 1:
        return {"out": weight.shape[3], "in": weight.shape[0]}  # a transposed convolution swaps the roles
    return {}


def weight_axis(node: Node, axis: str) -> str:
    """Return the axis name in the weight's own terms (see channel_axes for transposed convolutions)."""
    if node.op == "ConvGradInput":
        return {"out": "in", "in": "out"}[axis]
    return axis
