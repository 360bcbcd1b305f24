"""Addition of the saturation of int8 storage to the float graph, so that its gradient is that of the code that will
run.

The formats of a quantised model are more than storage: exporters drop a ReLU before a QuantizeLinear whose range begins
at 0. So if such a model keeps real numbers (float32, or a float head), a Clip to the range stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tinytrain_compile.ir.types import Graph, Node, Quant, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import has_trait, op_def
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.shape import EmbedAttrs, ExpandAttrs, ReduceAttrs
from tinytrain_compile.quantize.storage import check_scales

_ANY = (-math.inf, math.inf)


def prepare(graph: Graph, float_head: bool, stored: bool = False) -> Graph:
    """Return a graph in which every quantised value is clamped to its int8 range by a Clip that carries the annotation.

    float_head: the last Conv or Gemm, and everything after it, stays float: annotations there are dropped. stored: the
    model itself has these formats (they were not calibrated): clamps stay even if a format is dropped. Errors: E0307
    for a scale out of bounds.
    """
    check_scales(graph)
    free = _behind_head(graph) if float_head else frozenset[str]()
    return _Saturation(without_inner_clamps(graph, free), free.__contains__, stored).run()


def saturated(graph: Graph) -> Graph:
    """Return a quantised model's graph in real numbers: activations have no formats, but are clamped to their
    ranges."""
    return _Saturation(graph, lambda _: True, True).run()


def without_inner_clamps(graph: Graph, free: frozenset[str]) -> Graph:
    """Store the result of a clamp in place of its operand, if both have one scale and nothing else reads the operand.

    Exporters write ReLU between two such pairs if zero is in the middle of the range. One clamp of the sums in int32
    gives the integers of both. free: values that are not integers; they keep both clamps, as in the file.
    """
    readers, makers = graph.consumers(), graph.producers()
    outputs = {value.name for value in graph.outputs}
    bare: dict[str, Quant | None] = {}
    for node in graph.nodes:
        if not isinstance(node.attrs, ClipAttrs):
            continue
        source, inner, outer = node.inputs[0].name, node.inputs[0].quant, node.outputs[0].quant
        maker = makers.get(source)
        alone = len(readers[source]) == 1 and source not in outputs
        computed = maker is not None and not _keeps_range(maker.op) and not isinstance(maker.attrs, ClipAttrs)
        if node.outputs[0].name in free:
            continue
        if alone and computed and inner and outer and (inner.scale, inner.zero) == (outer.scale, outer.zero):
            low, high = max(inner.low, outer.low), min(inner.high, outer.high)
            bare |= {source: None, node.outputs[0].name: replace(outer, low=low, high=high)}

    def one(value: Value) -> Value:
        return replace(value, quant=bare[value.name]) if value.name in bare else value

    def changed(node: Node) -> Node:
        return replace(node, inputs=tuple(map(one, node.inputs)), outputs=tuple(map(one, node.outputs)))

    return replace(graph, nodes=tuple(map(changed, graph.nodes)), outputs=tuple(map(one, graph.outputs)))


class _Saturation:
    """One walk over a graph. A value is free if its format is dropped; ranges: known ranges of values, by name."""

    def __init__(self, graph: Graph, is_free: Callable[[str], bool], stored: bool) -> None:
        self._graph = graph
        self._is_free = is_free
        self._stored = stored
        self._renamed: dict[str, Value] = {}
        self._ranges: dict[str, tuple[float, float]] = {}
        self._taken = {v.name for node in graph.nodes for v in node.outputs} | set(graph.constants)
        self._taken |= {value.name for value in graph.inputs}
        self._nodes: list[Node] = []

    def run(self) -> Graph:
        inputs = tuple(self._input(value) for value in self._graph.inputs)
        for node in self._graph.nodes:
            self._node(node)
        outputs = tuple(self._renamed.get(v.name, v) for v in self._graph.outputs)
        return replace(self._graph, nodes=tuple(self._nodes), inputs=inputs, outputs=outputs)

    def _input(self, value: Value) -> Value:
        if value.quant is None:
            return value
        if not self._is_free(value.name):  # the caller stores it
            self._ranges[value.name] = real_range(value.quant)
            return value
        bare = replace(value, quant=None)
        self._clamp(value, value.quant)
        return bare

    def _node(self, node: Node) -> None:
        inputs = tuple(self._renamed.get(v.name, v) for v in node.inputs)
        out = node.outputs[0]
        free = self._is_free(out.name)
        quant = out.quant if not free or self._stored else None
        node = replace(node, inputs=inputs)
        if quant is None or self._stays(node, quant, free):
            self._keep(node, free)
        elif isinstance(node.attrs, ClipAttrs):
            low, high = self._ends(quant)
            both = (min(max(bound, low), high) for bound in (node.attrs.low, node.attrs.high))
            self._keep(replace(node, attrs=ClipAttrs(*both)), free)
        else:
            self._keep(replace(node, outputs=(replace(out, quant=None), *node.outputs[1:])), False)
            self._clamp(out, quant)

    def _keep(self, node: Node, free: bool) -> None:
        if free:
            outputs = tuple(replace(v, quant=None) if self._is_free(v.name) else v for v in node.outputs)
            node = replace(node, outputs=outputs)
            self._renamed.update({v.name: v for v in outputs})
        self._ranges[node.outputs[0].name] = self._range(node)
        self._nodes.append(node)

    def _stays(self, node: Node, quant: Quant, free: bool) -> bool:
        """Tell whether a node needs no clamp: its results are in the range.

        A function that approaches its bounds but never reaches them may have bounds half a step beyond the range.
        """
        if not free and not _keeps_range(node.op):  # its integer form requantises where the clamp is
            return False
        if not free and not self._stored:  # ranges are its operands' own
            return True
        (low, high), (least, most) = self._range(node), real_range(quant)
        bounds = op_def(node.op).bounds
        slack = 0.0 if bounds is None or bounds.reached else quant.scale[0] / 2
        return low >= least - slack and high <= most + slack

    def _range(self, node: Node) -> tuple[float, float]:
        """Return the smallest and largest possible result of a node, as far as known without running it."""
        if isinstance(node.attrs, ClipAttrs):
            return node.attrs.low, node.attrs.high
        if (bounds := op_def(node.op).bounds) is not None:
            return bounds.low, bounds.high
        stretched = isinstance(node.attrs, ExpandAttrs) and node.attrs.scale != 1
        if stretched or not (_keeps_range(node.op) or _is_mean(node)):
            return _ANY
        parts = [self._ranges.get(value.name, _ANY) for value in node.inputs]
        if isinstance(node.attrs, EmbedAttrs):
            parts.append((node.attrs.value, node.attrs.value))
        elif _is_mean(node):  # zeros beside the image count too
            parts.append((0.0, 0.0))
        return min(low for low, _ in parts), max(high for _, high in parts)

    def _ends(self, quant: Quant) -> tuple[float, float]:
        """Return the range of a format that the model has. A calibrated one is an estimate: no error stops at it."""
        return real_range(quant) if self._stored else _ANY

    def _clamp(self, value: Value, quant: Quant) -> None:
        free = self._is_free(value.name)
        suffix, count = "clamped" if free else "int8", 1
        name = f"{value.name}.{suffix}"
        while name in self._taken:
            count += 1
            name = f"{value.name}.{suffix}.{count}"
        self._taken.add(name)
        out = replace(value, name=name, quant=None if free else value.quant)
        bounds = self._ends(quant)
        self._nodes.append(Node(name, "Clip", (replace(value, quant=None),), (out,), ClipAttrs(*bounds), value.origin))
        self._renamed[value.name], self._ranges[name] = out, bounds


def storage_clamps(graph: Graph) -> dict[str, str]:
    """Return value -> the result of the clamp that was added for its storage."""
    ends = (".int8", ".clamped")
    return {
        node.inputs[0].name: node.outputs[0].name
        for node in graph.nodes
        if node.op == "Clip" and node.name.startswith(tuple(f"{node.inputs[0].name}{end}" for end in ends))
    }


def inner_clamps(graph: Graph) -> dict[str, tuple[float, float]]:
    """Return value -> the range that its format has in the file, if the clamp after it is stored in its place.

    See `without_inner_clamps`. The clamp saturates at the ends of that range too.
    """
    storage = storage_clamps(graph).values()
    return {
        node.inputs[0].name: real_range(Quant(quant.scale, quant.zero))
        for node in graph.nodes
        if node.op == "Clip"
        and (quant := node.outputs[0].quant) is not None
        and node.inputs[0].quant is None
        and node.outputs[0].name not in storage
    }


def _keeps_range(op: str) -> bool:
    """Tell whether an op's outputs stay in the range of its inputs (Expand: except by its factor), and need no
    clamp."""
    return op == "Expand" or has_trait(op, "moves_data")


def _is_mean(node: Node) -> bool:
    if isinstance(node.attrs, ReduceAttrs):
        count = math.prod(node.inputs[0].shape[axis] for axis in node.attrs.axes)
        return 0 <= node.attrs.scale * count <= 1 + 1e-6
    return node.op == "AveragePool"


def real_range(quant: Quant) -> tuple[float, float]:
    """Return smallest and largest real value that the format holds."""
    return (quant.low - quant.zero) * quant.scale[0], (quant.high - quant.zero) * quant.scale[0]


def _behind_head(graph: Graph) -> frozenset[str]:
    """Return names of the head's output and of everything computed from it."""
    heads = [node for node in graph.nodes if has_trait(node.op, "matrix")]
    if not heads:
        return frozenset()
    behind = {v.name for v in heads[-1].outputs}
    for node in graph.nodes:
        if any(v.name in behind for v in node.inputs):
            behind.update(v.name for v in node.outputs)
    return frozenset(behind)


# ---- biases of layers over tokens -----------------------------------------------------------------------------------


def fuse_biases(graph: Graph) -> Graph:
    """Make a Gemm with bias of one without, Reshapes that keep its columns, and an Add of one constant per column.

    Exporters write linear layers over tokens this way. In float32 fusing gains nothing; in int8 the sum of an int8
    tensor and a float vector would be computed in float32.
    """
    readers, outputs = graph.consumers(), {value.name for value in graph.outputs}

    def sole_reader(value: Value) -> Node | None:
        found = readers.get(value.name, [])
        return found[0] if len(found) == 1 and value.name not in outputs else None

    changed: dict[str, Node | None] = {}
    for node in graph.nodes:
        if node.op != "Gemm" or node.attrs != GemmAttrs():
            continue
        chain = [node]
        reader = sole_reader(node.outputs[0])
        while (
            reader is not None and reader.op == "Reshape" and reader.outputs[0].shape[-1:] == node.outputs[0].shape[1:]
        ):
            chain.append(reader)
            reader = sole_reader(reader.outputs[0])
        bias = None if reader is None else _bias_of(graph, reader, chain[-1].outputs[0])
        if reader is None or bias is None or len(readers[bias.name]) > 1:
            continue
        chain[-1] = replace(chain[-1], outputs=reader.outputs)
        changed.update({part.name: part for part in chain})
        gemm = changed[node.name]
        assert gemm is not None
        changed[node.name] = replace(gemm, inputs=(*node.inputs, bias), attrs=GemmAttrs(bias=True))
        changed[reader.name] = None
    nodes = (changed.get(node.name, node) for node in graph.nodes)
    return replace(graph, nodes=tuple(node for node in nodes if node is not None))


def _bias_of(graph: Graph, add: Node, product: Value) -> Value | None:
    """Return the constant of one number per column that an Add adds to a product, or None."""
    if add.op != "Add" or add.outputs[0].shape != product.shape:
        return None
    others = [value for value in add.inputs if value != product]
    fits = len(others) == 1 and others[0].name in graph.constants and others[0].shape == product.shape[-1:]
    return others[0] if fits else None
