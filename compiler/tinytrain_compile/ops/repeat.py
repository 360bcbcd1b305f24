"""Attributes for several samples at once (OpDef.samples), if they speak of axis 0, which is `count` times as long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinytrain_compile.ir.types import Attrs, Node
from tinytrain_compile.ops.names import operand, result

_MIXES = "it works along the axis of the samples"


def along(attrs: Attrs, axes: tuple[int, ...]) -> Attrs:
    """Return the attributes of an op that works along these axes: not along the samples."""
    if 0 in axes:
        raise ValueError(_MIXES)
    return attrs


def repeat_shape(_node: Node, attrs: Any, count: int) -> Attrs:
    """Reshape, Expand: the samples lie one behind the other, so the new first axis is longer too."""
    return replace(attrs, shape=(count * attrs.shape[0], *attrs.shape[1:]))


def repeat_places(node: Node, attrs: Any, count: int) -> Attrs:
    """Slice, Embed: all of axis 0, or the samples would be cut."""
    rows, out = operand(node, "x").shape[0], result(node, "y").shape
    if attrs.starts[0] != 0 or attrs.steps[0] != 1 or out[0] != rows:
        raise ValueError(_MIXES)
    return replace(attrs, **{"sizes" if node.op == "Slice" else "shape": (count * rows, *out[1:])})
