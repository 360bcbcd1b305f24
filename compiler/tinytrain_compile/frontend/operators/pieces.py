"""A slice that is exactly one input of a Concat: that input, so that nothing else of the whole has to be kept.

(The last step of a recurrent layer, which exporters take out of the sequence of all.)
"""

from __future__ import annotations

import math

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.shape import ConcatAttrs, SliceAttrs


def piece_of(ctx: ImportContext, node: OnnxNode, value: Value, attrs: SliceAttrs) -> Value | None:
    """What the slice takes, in its shape, if a Concat has joined it as one piece that lies in one run; else None."""
    start = _run_start(value.shape, attrs)
    maker = ctx.maker(value)
    while maker is not None and maker.op == "Reshape":
        maker = ctx.maker(maker.inputs[0])
    if start is None or maker is None or not isinstance(maker.attrs, ConcatAttrs):
        return None
    if math.prod(maker.outputs[0].shape[: maker.attrs.axis]) != 1:
        return None
    for piece in maker.inputs:
        if start == 0 and piece.elements == math.prod(attrs.sizes):
            return ctx.reshape(node, piece, attrs.sizes)
        start -= piece.elements
    return None


def _run_start(shape: tuple[int, ...], attrs: SliceAttrs) -> int | None:
    """Where the elements begin, if they are neighbours that lie in order; else None."""
    start, whole = 0, True
    for axis in reversed(range(len(shape))):
        size = attrs.sizes[axis]
        if size != 1 and (attrs.steps[axis] != 1 or not whole):
            return None
        start += attrs.starts[axis] * math.prod(shape[axis + 1 :])
        whole = whole and size == shape[axis]
    return start
