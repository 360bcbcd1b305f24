"""A clip keeps its output only if somebody else keeps it too; otherwise one bit per element does."""

from __future__ import annotations

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import NO_ATTRS, Node
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.names import operand, operands, result

BITS = 8
"""Bits of a mask in what an element of a kept value takes, at least."""


def keep_masks(builder: GraphBuilder, forward: list[Node], backward: list[Node]) -> tuple[list[Node], list[Node]]:
    """Replace ClipGrad(dy, y) by MaskedGrad(dy, ClipMask(y)) wherever no other backward node reads y.

    Returns the forward nodes (with masks right behind the clips) and the backward nodes.
    """
    kept = _kept_by_others(forward, backward)
    masks: dict[str, Node] = {}
    rewritten: list[Node] = []
    for node in backward:
        if node.op != "ClipGrad" or operand(node, "y").name in kept:
            rewritten.append(node)
            continue
        dy, y = node.inputs
        if y.name not in masks:
            builder.emit("ClipMask", (y,), node.attrs, f"{y.name}.mask", node.origin)
            masks[y.name] = builder.nodes.pop()
        mask = result(masks[y.name], "mask")
        rewritten.append(Node(node.name, "MaskedGrad", (dy, mask), node.outputs, NO_ATTRS, node.origin))
    return _insert(forward, masks), rewritten


def _kept_by_others(forward: list[Node], backward: list[Node]) -> set[str]:
    """Values that a backward node other than a ClipGrad reads, directly or through a view.

    Not if only some of its channels are (Slices, which run in the forward pass, as scores do): those and the bits take
    less.
    """
    base: dict[str, str] = {}
    for node in (*forward, *backward):
        if op_def(node.op).view:
            source = node.inputs[0].name
            base[node.outputs[0].name] = base.get(source, source)
    kept: set[str] = set()
    cut: dict[str, int] = {}
    for node in backward:
        if op_def(node.op).view or node.op == "ScoreChannels":
            continue
        for name, value in operands(node).items():
            if node.op in ("Slice", "TakeChannels"):
                cut[value.name] = cut.get(value.name, 0) + node.outputs[0].elements
                if cut[value.name] + value.elements // BITS < value.elements:
                    continue
            if not (node.op == "ClipGrad" and name == "y"):
                kept.update((value.name, base.get(value.name, value.name)))
    return kept


def _insert(forward: list[Node], masks: dict[str, Node]) -> list[Node]:
    result: list[Node] = []
    for node in forward:
        result.append(node)
        result += [masks[out.name] for out in node.outputs if out.name in masks]
    return result
