"""Demand-driven reverse mode: only the gradients that lead to an updated parameter are emitted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Node, Value
from tinytrain_compile.ops.base import NonDifferentiable, op_def
from tinytrain_compile.ops.shape import ReduceAttrs, ReshapeAttrs


class ReverseContext:
    """The GradientContext of one forward node."""

    def __init__(self, builder: GraphBuilder, node: Node, wanted: frozenset[str]) -> None:
        self._builder = builder
        self._node = node
        self._wanted = wanted

    def wants(self, index: int) -> bool:
        """Tell whether the gradient of this input leads to an updated parameter."""
        return self._node.inputs[index].name in self._wanted

    def emit(self, op: str, inputs: Iterable[Value], attrs: Attrs = NO_ATTRS) -> Value:
        """Append a backward node, named after the forward node and carrying its origin."""
        return self._builder.emit(op, inputs, attrs, f"{self._node.name}.{op}", self._node.origin)

    def constant(self, hint: str, data: Array) -> Value:
        """Return a table in flash."""
        return self._builder.constant(hint, data)

    def sum_to(self, gradient: Value, like: Value) -> Value:
        """Undo broadcasting: sum over stretched axes, then drop added ones."""
        added = len(gradient.shape) - len(like.shape)
        padded = (1,) * added + like.shape
        axes = tuple(i for i, (a, b) in enumerate(zip(gradient.shape, padded, strict=True)) if a != b)
        if axes:
            gradient = self.emit("Reduce", (gradient,), ReduceAttrs(axes))
        if gradient.shape != like.shape:
            gradient = self.emit("Reshape", (gradient,), ReshapeAttrs(like.shape))
        return gradient


def differentiate(
    builder: GraphBuilder, forward: tuple[Node, ...], loss: Value, targets: Iterable[Value], factor: int = 1
) -> dict[str, Value]:
    """Emit the backward nodes; returns the gradient of every target that the loss depends on, by name.

    factor: of the loss; these are the gradients of the product.
    Raises CompileError E0502 if an operator between a target and the loss has no gradient.
    """
    names = frozenset(value.name for value in targets)
    wanted = _reached(forward, names)
    gradients: dict[str, Value] = {}
    if loss.name not in wanted:
        return gradients
    gradients[loss.name] = builder.constant("loss_gradient", np.asarray(factor, np.float32))
    for node in reversed(forward):
        upstream = tuple(gradients.get(out.name) for out in node.outputs)
        if all(dy is None for dy in upstream) or not any(v.name in wanted for v in node.inputs):
            continue
        rule = op_def(node.op).gradient
        if isinstance(rule, NonDifferentiable):
            where = node.origin or node.name
            raise CompileError("E0502", where, f"{node.op} has no gradient ({rule.why})", "freeze the layers before it")
        found = rule(ReverseContext(builder, node, wanted), node, upstream)
        for index, gradient in sorted(found.items()):
            _add(builder, gradients, node.inputs[index], gradient, node)
    return {name: gradients[name] for name in names if name in gradients}


def _reached(forward: tuple[Node, ...], targets: frozenset[str]) -> frozenset[str]:
    """Return names of all values that depend on a target, targets included; not through operators that are flat."""
    wanted = set(targets)
    for node in forward:
        rule = op_def(node.op).gradient
        if isinstance(rule, NonDifferentiable) and rule.flat:
            continue
        if any(value.name in wanted for value in node.inputs):
            wanted.update(out.name for out in node.outputs)
    return frozenset(wanted)


def _add(builder: GraphBuilder, gradients: dict[str, Value], value: Value, gradient: Value, node: Node) -> None:
    """Sum the gradients of a value that several nodes read."""
    known = gradients.get(value.name)
    if known is not None:
        gradient = builder.emit("Add", (known, gradient), name=f"{value.name}.grad_sum", origin=node.origin)
    gradients[value.name] = gradient
