"""Derivative check of low-rank copies that an int8 step expands to whole activations.

A copy loses little of samples that resemble the calibration samples, and any share of others: no bound on the gradient
follows from --rank-error. So the gradient is judged with the exact activation x, and each copy p by itself: p and x - p
are orthogonal, as of every projection.
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
"""Bounds of <p, x - p> / <x, x>, which is 0 of a projection. If saturation shortens a copy to c times its length, it is
c (1 - c), at most 1/4. Digits: within 0.002, and -0.21 if the rows of one product are in another place."""
ROUNDED = 0.75
"""Allowed error of an element of p, in its steps: half a step by its own rounding, a quarter by the products before."""


@dataclass
class ExpandedCopy:
    """Copy of an activation that the gradient of a layer reads. Both are int8 values of one format.

    copy, source: names of the two values; zero: their zero point. seen: (<p, x - p>, <x, x>, allowed rounding) of each
    call.
    """

    layer: str
    copy: str
    source: str
    zero: int
    seen: list[tuple[float, float, float]] = field(default_factory=list[tuple[float, float, float]])

    def exact(self, values: Mapping[str, Array]) -> Array:
        """Return the activation in place of its copy, and record how the copy compares with it."""
        x, p = (values[name].astype(np.float64) - self.zero for name in (self.source, self.copy))
        rounding = ROUNDED * float(np.abs(x - 2 * p).sum())
        self.seen.append((float((p * (x - p)).sum()), float((x * x).sum()), rounding))
        return values[self.source]

    def check(self) -> None:
        """Raise E0607 if the copy cannot be a projection of its activation."""
        inner, whole, rounding = (sum(row[column] for row in self.seen) for column in range(3))
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
