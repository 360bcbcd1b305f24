"""The axis of time of a model's input for `--listen`, and errors for layers that cannot be computed row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import time_axis
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.choice import ReduceMaxAttrs
from tinytrain_compile.ops.linear import GemmAttrs, MatMulAttrs
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs
from tinytrain_compile.ops.shape import EmbedAttrs, ReduceAttrs, ReshapeAttrs, TransposeAttrs

PADS = "has padding in time ({time}), so its rows are not those of a longer recording"
NO_PADDING = "set its padding in time to 0, and train on windows that are as much longer"
_LATER = (
    "put a convolution or pool without padding in time in front: what is behind gets a ring of the whole window "
    "(docs/listening.md)"
)
_SIGNAL = 3


@dataclass(frozen=True)
class HeardTime:
    """Time as the user knows it. flag: as typed; axis: of the graph's input; text: of the file's input, for errors.

    layout: the option that puts the axis outermost, if the input has it inside. recurrent: layers, by their names.
    """

    flag: str
    axis: int
    text: str
    layout: str
    recurrent: frozenset[str]

    def refused(self, layer: str, why: str, way: str = _LATER) -> CompileError:
        """Return the error that names a layer."""
        return CompileError("E0113", self.flag, f"is not possible: {layer} {why.format(time=self.text)}", way)

    def whole(self, node: Node, moving: Mapping[int, int], graph: Graph) -> CompileError:
        """Return the error for a node that needs the whole window of the input. moving: operand -> its axis of time."""
        node = _behind_views(node, graph)
        layer, axis = node.origin or node.name, next(iter(moving.values()))
        if isinstance(node.attrs, TransposeAttrs):
            what = "needs all channels of a moment together, and the input has the moments of each channel together"
            return self.refused(layer, what, self.layout or _LATER)
        if layer in self.recurrent:
            return self.refused(layer, "is recurrent, and begins each window with a state of zeros")
        if isinstance(node.attrs, EmbedAttrs) and node.attrs.shape[axis] != node.inputs[0].shape[axis]:
            return self.refused(layer, PADS, NO_PADDING)
        if isinstance(node.attrs, GemmAttrs) and node.inputs[0].shape[0] > 1:
            what = "is a dense layer of each moment, which has no rows on the device"
            return self.refused(layer, what, "write it as a convolution of kernel 1, its features as channels")
        if isinstance(node.attrs, MatMulAttrs) and len(moving) > 1:
            return self.refused(layer, "multiplies each moment by all others (attention)")
        along = _axes(node)
        if along is not None and axis in along:
            what = "takes a sum over time" if isinstance(node.attrs, ReduceAttrs) else "normalises over time"
            return self.refused(layer, f"{what} ({{time}})")
        return self.refused(layer, "reads the whole window at once: it has no rows along {time}")


def heard_time(model: ImportedModel, listen: int | Literal["off", "on", "only"]) -> HeardTime:
    """Return the axis of time: the outermost of the graph's input with more than one row.

    listen: what the user says; a file with state knows it by itself. E0101 for an axis that the input has not, E0113
    for one that is not the outermost.
    """
    source = model.data[0]
    rank, flag = len(source.shape), f"--listen {listen}"
    other = "--input-layout lc" if rank == _SIGNAL else "--input-layout hwc"
    layout = other if source.perm == tuple(range(rank)) else ""
    found = time_axis(tuple(source.shape[axis] for axis in source.perm))
    wanted = listen if isinstance(listen, int) else model.time_axis
    if isinstance(wanted, int):
        if not -rank < wanted < rank or wanted == 0:
            what = f"{source.name} has axes 0 to {rank - 1} (shape {list(source.shape)})"
            raise CompileError("E0101", flag, what, "count from 0; axis 0 is the batch")
        if source.perm[found] != wanted % rank:
            inside = f"lies inside of axis {source.perm[found]} in the device's input"
            what = f"axis {wanted} of {source.name} (shape {list(source.shape)}) {inside}"
            way = f"{layout or 'leave it out'}, or export the model with time as axis {source.perm[found]}"
            raise CompileError("E0113", flag, what, way)
    text = f"axis {source.perm[found]} of {source.name}"
    return HeardTime(flag, found, text, layout, model.floats)


def _axes(node: Node) -> tuple[int, ...] | None:
    """Return the axes along which a node works as a whole; None if it says nothing of that."""
    if isinstance(node.attrs, AxisAttrs):
        return (node.attrs.axis,)
    return node.attrs.axes if isinstance(node.attrs, NormalizeAttrs | ReduceAttrs | ReduceMaxAttrs) else None


def _behind_views(node: Node, graph: Graph) -> Node:
    """Return the first node behind what only gives a value another shape."""
    while isinstance(node.attrs, ReshapeAttrs):
        reader = next((one for one in graph.nodes if node.outputs[0] in one.inputs), None)
        if reader is None:
            return node
        node = reader
    return node
