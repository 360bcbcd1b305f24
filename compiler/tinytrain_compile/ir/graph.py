"""Building of graphs node by node, the check after every stage, and dependencies between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, count

import numpy as np

from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Graph, Node, Phase, TensorType, Value, first_free

InferFn = Callable[[str, tuple[Value, ...], Attrs], tuple[TensorType, ...]]

_DTYPES = {"float32": "float32", "int32": "int32", "int8": "int8", "uint8": "uint8"}


class GraphBuilder:
    """Builder of nodes and constants; `emit` infers the outputs' types through `infer(op, inputs, attrs)`."""

    def __init__(self, infer: InferFn, taken: Iterable[str] = ()) -> None:
        self._infer = infer
        self._names = set(taken)
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}

    def unique(self, hint: str) -> str:
        """Return an unused name: the hint itself, or the hint with a number appended."""
        return first_free(chain((hint,), (f"{hint}.{number}" for number in count(2))), self._names)

    def forget(self, nodes: Iterable[Node]) -> None:
        """Free the names of removed nodes."""
        for node in nodes:
            self._names -= {node.name, *(value.name for value in node.outputs)}

    def constant(self, hint: str, data: Array, origin: str = "") -> Value:
        """Return a value with fixed initial data (float32, int32, int8 or uint8)."""
        dtype = _DTYPES[str(data.dtype)]
        value = Value(self.unique(hint), tuple(data.shape), dtype, "", origin)  # type: ignore[arg-type]
        self.constants[value.name] = np.ascontiguousarray(data).reshape(data.shape)
        return value

    def emit_all(
        self,
        op: str,
        inputs: Iterable[Value],
        attrs: Attrs = NO_ATTRS,
        name: str = "",
        origin: str = "",
        phase: Phase = "step",
    ) -> tuple[Value, ...]:
        """Append a node; its outputs are named after it (`name`, `name.1`, ...)."""
        operands = tuple(inputs)
        types = self._infer(op, operands, attrs)
        node_name = self.unique(name or op.lower())
        outputs = tuple(
            Value(node_name if i == 0 else self.unique(f"{node_name}.{i}"), *kind, origin)
            for i, kind in enumerate(types)
        )
        self.nodes.append(Node(node_name, op, operands, outputs, attrs, origin, phase))
        return outputs

    def emit(
        self,
        op: str,
        inputs: Iterable[Value],
        attrs: Attrs = NO_ATTRS,
        name: str = "",
        origin: str = "",
        phase: Phase = "step",
    ) -> Value:
        """Append a node and return its first output."""
        return self.emit_all(op, inputs, attrs, name, origin, phase)[0]


# ---- the check -------------------------------------------------------------------------------------------------------
# The gate after every stage that makes a graph: an invalid graph never reaches the next stage.


class GraphError(Exception):
    """An internal inconsistency: a bug in the compiler, never the user's fault."""


def check_graph(graph: Graph, infer: InferFn) -> None:
    """Raise GraphError unless names are unique, order is topological, every type is what its op infers."""
    known: dict[str, Value] = {}
    for value in (*graph.inputs, *graph.accumulators):
        _define(known, value)
    _define_constants(graph, known)
    node_names: set[str] = set()
    for node in graph.nodes:
        if node.name in node_names:
            raise GraphError(f"two nodes are named {node.name!r}")
        node_names.add(node.name)
        for value in node.inputs:
            if known.get(value.name) != value:
                raise GraphError(f"node {node.name!r} ({node.op}) reads {value}, which is not defined before it")
        inferred = infer(node.op, node.inputs, node.attrs)
        if tuple(out.type for out in node.outputs) != tuple(inferred):
            raise GraphError(f"node {node.name!r} ({node.op}): outputs {node.outputs}, inferred {inferred}")
        for value in node.outputs:
            _define(known, value)
    for value in (*graph.outputs, *(new for _, new in graph.updates), *(old for old, _ in graph.updates)):
        if known.get(value.name) != value:
            raise GraphError(f"graph output or update {value} is not defined")
    for value in graph.state:
        if value.name not in graph.constants:
            raise GraphError(f"state {value.name!r} has no initial data")


def _define_constants(graph: Graph, known: dict[str, Value]) -> None:
    read = [value for node in graph.nodes for value in node.inputs]
    for value in dict.fromkeys((*read, *graph.state, *graph.parameters, *graph.outputs)):
        if value.name not in graph.constants:
            continue
        if graph.constants[value.name].shape != value.shape:
            raise GraphError(f"constant {value.name!r}: data {graph.constants[value.name].shape}, value {value.shape}")
        _define(known, value)


def _define(known: dict[str, Value], value: Value) -> None:
    if value.name in known:
        raise GraphError(f"value {value.name!r} is defined twice")
    if any(dim <= 0 for dim in value.shape):
        raise GraphError(f"value {value.name!r} has shape {value.shape}")
    known[value.name] = value


# ---- dependencies ----------------------------------------------------------------------------------------------------


class Dependencies:
    """Dependencies of nodes: a bit set for each node, made once, for callers that ask about many pairs."""

    def __init__(self, graph: Graph) -> None:
        self._bit = {node.name: 1 << place for place, node in enumerate(graph.nodes)}
        self._needed: dict[str, int] = {}
        made: dict[str, int] = {}
        for node in graph.nodes:
            needed = 0
            for value in node.inputs:
                needed |= made.get(value.name, 0)
            self._needed[node.name] = needed
            made.update(dict.fromkeys((value.name for value in node.outputs), needed | self._bit[node.name]))

    def after(self, node: Node, first: Node) -> bool:
        """Tell whether a node can only run after another one."""
        return self.any_after((node.name,), (first.name,))

    def any_after(self, late: Iterable[str], first: Iterable[str]) -> bool:
        """Tell whether any of the nodes `late` depends, directly or indirectly, on one of `first`; both by name."""
        bits = sum(self._bit[name] for name in set(first))
        return any(self._needed[name] & bits for name in late)
