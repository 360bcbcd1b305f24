"""Channels that are chosen on the device: the tensors of the state that hold the choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Graph, Value

OPEN, FIXED, SCORED, SCORING = range(4)
"""Values of the flag of a choice: nothing was scored or trained; channels stay; scores wait for the choice; a call that
scores is running."""


@dataclass(frozen=True)
class ChosenLayer:
    """A weight of which the device chooses the trained output channels.

    part: state, the trained channels. whole: constant, all channels of the file. place: state, int32, each channel's
    place in `part`, -1: none. scores: state, float32, one for each channel.
    """

    part: Value
    whole: Value
    place: Value
    scores: Value


@dataclass(frozen=True)
class ChannelChoice:
    """All weights with chosen channels. flag: state scalar, see OPEN."""

    flag: Value
    layers: tuple[ChosenLayer, ...]


def whole_name(choice: ChannelChoice | None, part: str) -> str:
    """Return the name of the whole weight of a chosen part; for any other tensor its own name."""
    found = (layer.whole.name for layer in (() if choice is None else choice.layers) if layer.part.name == part)
    return next(found, part)


def scoring_nodes(graph: Graph, choice: ChannelChoice) -> frozenset[str]:
    """Return the names of the nodes that only scores need: they run only in calls that score."""
    scores = {layer.scores.name for layer in choice.layers}
    rest = (new for old, new in graph.updates if old.name not in scores)
    loss = (value for node in graph.nodes for value in node.outputs if value.name == graph.guard)
    needed = graph.ancestors((*graph.outputs, *loss, *rest))
    return graph.ancestors(tuple(new for old, new in graph.updates if old.name in scores)) - needed


def chosen_places(scores: Array, count: int) -> Array:
    """Return the place of each of the `count` channels with the best scores (of equal ones the first), -1 for the
    rest."""
    chosen = np.zeros(scores.shape, np.bool_)
    for _ in range(count):
        left = np.flatnonzero(~chosen)
        best = left[0]
        for channel in left[1:]:
            best = channel if scores[channel] > scores[best] else best
        chosen[best] = True
    return np.where(chosen, np.cumsum(chosen) - 1, -1).astype(np.int32)
