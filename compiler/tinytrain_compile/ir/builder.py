"""Builds graphs node by node, with inferred types and unique names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Node, Phase, TensorType, Value

InferFn = Callable[[str, tuple[Value, ...], Attrs], tuple[TensorType, ...]]

_DTYPES = {"float32": "float32", "int32": "int32", "int8": "int8", "uint8": "uint8"}


class GraphBuilder:
    """Collects nodes and constants; `emit` infers the outputs' types through `infer(op, inputs, attrs)`."""

    def __init__(self, infer: InferFn, taken: Iterable[str] = ()) -> None:
        self._infer = infer
        self._names = set(taken)
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}

    def unique(self, hint: str) -> str:
        """A name that is not used yet: the hint itself, or the hint with a number behind it."""
        name, count = hint, 1
        while name in self._names:
            count += 1
            name = f"{hint}.{count}"
        self._names.add(name)
        return name

    def forget(self, nodes: Iterable[Node]) -> None:
        """The names of nodes that were taken out again are free."""
        for node in nodes:
            self._names -= {node.name, *(value.name for value in node.outputs)}

    def constant(self, hint: str, data: Array, origin: str = "") -> Value:
        """A value with fixed initial data (float32, int32, int8 or uint8)."""
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
