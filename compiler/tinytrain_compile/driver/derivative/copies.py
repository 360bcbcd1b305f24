"""Low-rank copies that an int8 step expands again, and the part of the derivative check that is theirs.

A copy is as good as the calibration samples resemble the training samples: no bound on a gradient follows from that.
So the gradient is judged as it would be of the exact activation x, and each copy p by a property of every projection: p
and x - p are orthogonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops.names import operands

LOWEST, HIGHEST = -0.05, 0.3
"""Bounds of <p, x - p> / <x, x>. It is 0 of a projection, and c (1 - c) <= 1/4 of one that saturation shortens to c."""
ROUNDED = 0.75
"""Steps by which an element of p is off after the roundings on its way."""


@dataclass
class ExpandedCopy:
    """The copy of an activation that the gradient of a layer reads: int8 values of one format.

    copy, source: names of the two values; zero: their zero point. seen: what each call adds, (<p, x - p>, <x, x>,
    allowed rounding).
    """

    layer: str
    copy: str
    source: str
    zero: int
    seen: list[tuple[float, float, float]] = field(default_factory=list[tuple[float, float, float]])

    def exact(self, values: Mapping[str, Array]) -> Array:
        """Return the activation in place of its copy, and note how the copy compares with it."""
        x, p = (values[name].astype(np.float64) - self.zero for name in (self.source, self.copy))
        rounding = ROUNDED * float(np.abs(x - 2 * p).sum())
        self.seen.append((float((p * (x - p)).sum()), float((x * x).sum()), rounding))
        return values[self.source]

    def check(self) -> None:
        """Raise E0607 if the copy cannot be a projection of its activation."""
        inner, whole, rounding = (sum(column) for column in zip(*self.seen, strict=True)) if self.seen else (0, 0, 0)
        if not LOWEST * whole - rounding <= inner <= HIGHEST * whole + rounding:
            share = inner / (whole or 1)
            what = f"the low-rank copy of its input is no projection of it: <p, x - p> is {share:.2f} <x, x>"
            raise CompileError("E0607", f"layer {self.layer}", what, "please report this; see --explain E0607")


def expanded_copies(train: TrainGraph) -> tuple[ExpandedCopy, ...]:
    """Find all copies whose gradient reads them expanded in all modes, in the activation's own format."""
    made = {value.name: node for node in train.graph.nodes for value in node.outputs}
    shapes = {kept.layer: kept.shape for kept in train.low_rank}
    reads = (
        (node.origin, operands(node)["x"])
        for node in train.graph.nodes
        if node.origin in shapes and "x" in operands(node)
    )
    found = (_expanded(layer, x, shapes[layer], made) for layer, x in dict.fromkeys(reads))
    return tuple({copy.copy: copy for copy in found if copy is not None}.values())


def exact_layers(train: TrainGraph, copies: Iterable[ExpandedCopy]) -> frozenset[str]:
    """Return layers all of whose copies are expanded."""
    layers, wanted = [copy.layer for copy in copies], [kept.layer for kept in train.low_rank]
    return frozenset(layer for layer in layers if layers.count(layer) == wanted.count(layer))


def _expanded(layer: str, x: Value, shape: tuple[int, ...], made: Mapping[str, Node]) -> ExpandedCopy | None:
    """Follow a gradient's input back through its core to the activation."""
    way = [x, *_way_back(layer, x, made)]
    core = min(range(len(way)), key=lambda place: way[place].elements)
    after = next((value for value in reversed(way[:core]) if value.shape == shape), None)
    before = next((value for value in way[core + 1 :] if value.shape == shape), None)
    if after is None or before is None or (after.dtype, before.dtype) != ("int8", "int8"):
        return None
    attrs = [made[value.name].attrs for value in reversed(way[: way.index(before)])]
    zeros = (getattr(own, name) for own in attrs for name in ("x_zero", "zero") if hasattr(own, name))
    return ExpandedCopy(layer, after.name, before.name, next(zeros, 0))


def _way_back(layer: str, value: Value, made: Mapping[str, Node]) -> Iterator[Value]:
    """Yield first inputs, one after another, of nodes of this layer."""
    while (node := made.get(value.name)) is not None and node.origin == layer:
        value = node.inputs[0]
        yield value
