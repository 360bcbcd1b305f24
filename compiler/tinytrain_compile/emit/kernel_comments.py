"""Comments of kernels: the layers that call a kernel, then its operator and its computation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tinytrain_compile.emit.c_text import comment_text
from tinytrain_compile.ir.kernels import Kernel, KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import has_trait, shown_name
from tinytrain_compile.ops.describe import comment
from tinytrain_compile.ops.stream import StreamAttrs

MOST_NAMES = 4
"""Largest number of layers that a comment names, so that it stays a line or two; beyond it the comment counts them."""

Call = tuple[Node, str, str]
"""A node, its part in the gradient of a layer ("bias gradient of ", or ""), and the layer."""


def with_layers(kernels: KernelSet, plans: Sequence[tuple[TrainGraph, MemoryPlan]]) -> list[Kernel]:
    """Return all C functions; comments begin with the layers that call them."""
    calls: dict[str, list[Call]] = {}
    for train, plan in plans:
        for call in _calls(train, plan):
            node, name = call[0], kernels.calls.get(call[0].name, "")
            calls.setdefault(name, []).append(call)
            if isinstance(node.attrs, StreamAttrs):
                for index, inner in enumerate(node.attrs.nodes):
                    calls.setdefault(f"{name}_{index}", []).append((inner, "", comment_text(inner.origin)))
    return [_labelled(kernel, calls.get(kernel.name, [])) for kernel in kernels.functions]


def _calls(train: TrainGraph, plan: MemoryPlan) -> Iterable[Call]:
    """Yield every node with the layer that it belongs to."""
    layers = {node.origin for node in plan.order if has_trait(node.op, "layer")}
    after_loss = False
    for node in plan.order:
        yield node, _role(node) if after_loss and node.origin in layers else "", _layer(node)
        after_loss = after_loss or train.loss in node.outputs
    for node in (node for each in plan.beside for node in each.plan.order):
        yield node, "", _layer(node)


def _layer(node: Node) -> str:
    return comment_text(node.origin or node.name)


def _role(node: Node) -> str:
    """Say what a node of the backward pass of a layer with a weight computes, if its operator alone does not."""
    if has_trait(node.op, "reduces"):
        return "bias gradient of "
    return "dL/dx of " if has_trait(node.op, "data_gradient") else ""


def _labelled(kernel: Kernel, calls: Sequence[Call]) -> Kernel:
    """Begin a kernel's comment with its layers, and end it with the layers that have other shapes."""
    if not calls or not calls[0][2]:
        return kernel
    first, operator = comment(calls[0][0]), shown_name(calls[0][0])
    head = f"/* {operator}: "
    if not kernel.source.startswith(head):
        return kernel
    same = [call for call in calls if kernel.small or kernel.numbers or comment(call[0]) == first]
    others = [call for call in calls if call not in same]
    said, mark, code = kernel.source.removeprefix(head).partition(" */\n")
    also = f" Also for {_listed(others)}, with other shapes." if others else ""
    return replace(kernel, source=f"/* {_listed(same)} ({operator}): {said}{also}{mark}{code}")


def _listed(calls: Sequence[Call]) -> str:
    """List layers once each, the first few of them."""
    roles = {role for _, role, _ in calls}
    if len(roles) == 1:
        return f"{roles.pop()}{_few(layer for _, _, layer in calls)}"
    return _few(f"{role}{layer}" for _, role, layer in calls)


def _few(texts: Iterable[str]) -> str:
    names = list(dict.fromkeys(texts))
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {len(names) - MOST_NAMES + 1} more"
