"""Where the bytes of a Concat are its inputs', and those of a Slice a run of its input: nothing has to move."""

from __future__ import annotations

import itertools
import math

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.names import operand, result


def run_starts(node: Node, axis: int) -> tuple[int, ...] | None:
    """Where inputs begin that follow each other on an axis, in bytes; None unless every axis before it has extent 1."""
    if math.prod(result(node, "y").shape[:axis]) != 1:
        return None
    *before, _ = node.inputs
    return (0, *itertools.accumulate(value.size_bytes for value in before))


def cut_starts(
    node: Node, starts: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Where a slice's input begins, counted from the slice (so 0 or less); None unless the slice is one run of bytes:
    one index of every axis up to the one that is cut, all of every axis behind it."""
    x = operand(node, "x")
    cut = next((axis for axis, size in enumerate(sizes) if size > 1), len(sizes))
    whole = sizes[cut + 1 :] == x.shape[cut + 1 :]
    forward = all(step == 1 for step, size in zip(steps, sizes, strict=True) if size > 1)
    if not whole or not forward:
        return None
    place = 0
    for start, dim in zip(starts, x.shape, strict=True):
        place = place * dim + start
    return (-place * (x.size_bytes // x.elements),)
