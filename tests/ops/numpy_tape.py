"""A gradient context that evaluates every node as it is emitted, and a small reverse mode on top of it.

It shares nothing with the `training` stage, so that a bug there cannot hide a wrong gradient rule here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from testing.ops.case import DTYPES, Case
from tinytrain_compile.ir.types import NO_ATTRS, Attrs, Node, Value
from tinytrain_compile.ops import OPS, NonDifferentiable, new_builder, run_node
from tinytrain_compile.ops.shape import ReduceAttrs, ReshapeAttrs


class NumpyTape:
    """Builds a graph and its values side by side; float values have the dtype of what is fed."""

    def __init__(self) -> None:
        self._builder = new_builder()
        self._wanted: frozenset[int] = frozenset()
        self.arrays: dict[str, np.ndarray] = {}

    def feed(self, value: Value, array: np.ndarray) -> Value:
        """Enter an operand of a case under its own name."""
        assert self._builder.unique(value.name) == value.name
        self.arrays[value.name] = array
        return value

    def input(self, hint: str, array: np.ndarray) -> Value:
        """Enter a new value of the array's shape."""
        data = np.asarray(array)
        dtype = DTYPES.get(str(data.dtype), str(data.dtype))
        return self.feed(Value(self._builder.unique(hint) + "_fed", data.shape, dtype), data)  # type: ignore[arg-type]

    def emit_all(self, op: str, inputs: Iterable[Value], attrs: Attrs = NO_ATTRS) -> tuple[Value, ...]:
        """Append a node and run its reference."""
        outputs = self._builder.emit_all(op, inputs, attrs)
        node = self._builder.nodes[-1]
        results = run_node(node, tuple(self.arrays[value.name] for value in node.inputs))
        self.arrays.update({out.name: array for out, array in zip(outputs, results, strict=True)})
        return outputs

    # ---- GradientContext ----

    def wants(self, index: int) -> bool:
        return index in self._wanted

    def emit(self, op: str, inputs: Iterable[Value], attrs: Attrs = NO_ATTRS) -> Value:
        return self.emit_all(op, inputs, attrs)[0]

    def sum_to(self, gradient: Value, like: Value) -> Value:
        added = len(gradient.shape) - len(like.shape)
        padded = (1,) * added + like.shape
        axes = tuple(i for i, (a, b) in enumerate(zip(gradient.shape, padded, strict=True)) if i < added or a != b)
        if axes:
            gradient = self.emit("Reduce", (gradient,), ReduceAttrs(axes))
        if gradient.shape != like.shape:
            gradient = self.emit("Reshape", (gradient,), ReshapeAttrs(like.shape))
        return gradient

    def constant(self, hint: str, data: np.ndarray) -> Value:
        value = self._builder.constant(hint, data)
        self.arrays[value.name] = data.astype(np.float64) if data.dtype == np.float32 else data
        return value

    # ---- reverse mode ----

    def backward(self, seeds: Mapping[str, np.ndarray], targets: Iterable[Value]) -> dict[str, np.ndarray]:
        """Gradients of sum(seed * value) with respect to the targets, by name (absent: no path leads there)."""
        forward = tuple(self._builder.nodes)
        needed = _descendants(forward, {value.name for value in targets})
        grads = {name: self.input(f"d_{name}", seed) for name, seed in seeds.items()}
        for node in reversed(forward):
            dys = tuple(grads.get(out.name) for out in node.outputs)
            wanted = frozenset(i for i, value in enumerate(node.inputs) if value.name in needed)
            if not wanted or all(dy is None for dy in dys):
                continue
            for index, dx in self._differentiate(node, dys, wanted).items():
                name = node.inputs[index].name
                assert dx.shape == node.inputs[index].shape, (node.op, index, dx.shape, node.inputs[index].shape)
                grads[name] = self.emit("Add", (grads[name], dx)) if name in grads else dx
        return {value.name: self.arrays[grads[value.name].name] for value in targets if value.name in grads}

    def _differentiate(self, node: Node, dys: tuple[Value | None, ...], wanted: frozenset[int]) -> dict[int, Value]:
        rule = OPS[node.op].gradient
        assert not isinstance(rule, NonDifferentiable), node.op
        self._wanted = wanted
        gradients = rule(self, node, dys)
        assert wanted <= gradients.keys(), f"{node.op}: wanted {sorted(wanted)}, the rule gave {sorted(gradients)}"
        return {index: gradients[index] for index in wanted}


def _descendants(nodes: Iterable[Node], names: set[str]) -> set[str]:
    """The names and everything that is computed from them."""
    reached = set(names)
    for node in nodes:
        if any(value.name in reached for value in node.inputs):
            reached.update(out.name for out in node.outputs)
    return reached


def vjp(case: Case, arrays: tuple[np.ndarray, ...], seed: np.ndarray, wanted: Iterable[int]) -> dict[int, np.ndarray]:
    """Gradient of sum(seed * output 0) of a case with respect to the wanted operands."""
    tape = NumpyTape()
    values = [tape.feed(value, array) for value, array in zip(case.inputs, arrays, strict=True)]
    outputs = tape.emit_all(case.op, values, case.attrs)
    indices = tuple(wanted)
    found = tape.backward({outputs[0].name: seed}, [values[i] for i in indices])
    return {i: found[values[i].name] for i in indices}
