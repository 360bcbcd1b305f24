"""Channels that are chosen on the device: which parts of the state say it, and what the state of the choice is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Graph, Value

OPEN, FIXED, SCORED, SCORING = range(4)
"""What the flag of a choice holds: nothing was scored or trained; channels stay; scores wait for the choice; a call
that scores is running."""


@dataclass(frozen=True)
class ChosenLayer:
    """A weight of which some output channels are trained that the device chooses.

    part: state, the channels that are trained. whole: constant, all of them as the file has them. place: state, int32,
    for each channel where it lies in `part`, -1: nowhere. scores: state, float32, one for each channel.
    """

    part: Value
    whole: Value
    place: Value
    scores: Value


@dataclass(frozen=True)
class ChannelChoice:
    """All of them. flag: state scalar, see OPEN."""

    flag: Value
    layers: tuple[ChosenLayer, ...]


def whole_name(choice: ChannelChoice | None, part: str) -> str:
    """Return the name of the weight that a part of the state is chosen of; of another tensor its own."""
    found = (layer.whole.name for layer in (() if choice is None else choice.layers) if layer.part.name == part)
    return next(found, part)


def scoring_nodes(graph: Graph, choice: ChannelChoice) -> frozenset[str]:
    """Return the names of the nodes that only scores need: they run in calls that score, and in no others."""
    scores = {layer.scores.name for layer in choice.layers}
    rest = (new for old, new in graph.updates if old.name not in scores)
    loss = (value for node in graph.nodes for value in node.outputs if value.name == graph.guard)
    needed = graph.ancestors((*graph.outputs, *loss, *rest))
    return graph.ancestors(tuple(new for old, new in graph.updates if old.name in scores)) - needed


def chosen_places(scores: Array, count: int) -> Array:
    """Return the place of each of the `count` channels of best score (of equal ones the first), -1 of the rest."""
    chosen = np.zeros(scores.shape, np.bool_)
    for _ in range(count):
        left = np.flatnonzero(~chosen)
        best = left[0]
        for channel in left[1:]:
            best = channel if scores[channel] > scores[best] else best
        chosen[best] = True
    return np.where(chosen, np.cumsum(chosen) - 1, -1).astype(np.int32)
