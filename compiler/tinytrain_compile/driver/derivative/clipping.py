"""What `--clip-norm` makes of gradients (docs/clipping.md): two updates by one gradient, each scaled by a norm.

The gradients themselves are judged without clipping: the same graph with a norm that no gradient reaches. Then the
clipped updates must be these gradients times their factors, over all numbers and without an evaluation of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tinytrain_compile.driver.derivative.judged import Part
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.clip import ClipAttrs
from tinytrain_compile.training import TrainingOptions

Norms = Mapping[str, float]
"""The norm of a gradient, by the name of its part."""


def unclipped(train: TrainGraph) -> TrainGraph:
    """Return the same step with a norm that no gradient reaches."""
    nodes = tuple(
        replace(node, attrs=replace(node.attrs, norm=math.inf)) if isinstance(node.attrs, ClipAttrs) else node
        for node in train.graph.nodes
    )
    return replace(train, graph=replace(train.graph, nodes=nodes))


@dataclass(frozen=True, eq=False)
class Clipped:
    """Which factors two updates on the same samples must have. model: tells which tensors make a layer."""

    how: TrainingOptions
    model: ImportedModel
    parts: tuple[Part, ...]

    def factors(self, first: Norms, second: Norms) -> tuple[Norms, Norms]:
        """Return those of both updates, by part.

        With sums over a batch each update is scaled by its own norm; else the first by none and the second by that of
        the first.
        """
        if self.how.sums:
            return self._of(first), self._of(second)
        return dict.fromkeys(first, 1.0), self._of(first)

    def _of(self, norms: Norms) -> Norms:
        most, squares = self.how.clip_norm or math.inf, dict[str, float]()
        groups = {part.name: self._group(part) for part in self.parts}
        for name, length in norms.items():
            squares[groups[name]] = squares.get(groups[name], 0.0) + length**2
        return {name: min(1.0, most / (math.sqrt(squares[groups[name]]) or 1e-300)) for name in norms}

    def _group(self, part: Part) -> str:
        """Name the group of tensors that are clipped together: all, or those that one node of the graph reads first."""
        if self.how.clip_per == "model":
            return ""
        nodes = self.model.graph.nodes
        return next((n.name for n in nodes if any(v.name == part.parameter for v in n.inputs)), part.parameter)
