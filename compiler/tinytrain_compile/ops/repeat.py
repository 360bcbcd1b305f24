"""Attributes for several samples at once (OpDef.samples), if they depend on axis 0, which is `count` times as long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinytrain_compile.ir.types import Attrs, Node
from tinytrain_compile.ops.names import operand, result

_MIXES = "it works along the axis of the samples"


def along(attrs: Attrs, axes: tuple[int, ...]) -> Attrs:
    """Return the attributes of an op that works along these axes; ValueError if axis 0, the samples, is one."""
    if 0 in axes:
        raise ValueError(_MIXES)
    return attrs


def repeat_shape(_node: Node, attrs: Any, count: int) -> Attrs:
    """Reshape, Expand: samples follow one another, so the new first axis is longer too."""
    return replace(attrs, shape=(count * attrs.shape[0], *attrs.shape[1:]))


def repeat_places(node: Node, attrs: Any, count: int) -> Attrs:
    """Slice, Embed: keep all of axis 0; anything else would cut the samples."""
    rows, out = operand(node, "x").shape[0], result(node, "y").shape
    if attrs.starts[0] != 0 or attrs.steps[0] != 1 or out[0] != rows:
        raise ValueError(_MIXES)
    return replace(attrs, **{"sizes" if node.op == "Slice" else "shape": (count * rows, *out[1:])})
