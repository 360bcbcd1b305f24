"""Weights of which the device chooses the trained channels (ADR 44): scores, and the state of the choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinytrain_compile.ir.choice import OPEN, ChannelChoice, ChosenLayer
from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.names import operand

Changes = list[tuple[Value, Value]]
"""State, and its new content."""


def with_scores(
    builder: GraphBuilder, backward: Sequence[Node], layers: Sequence[ChosenLayer]
) -> tuple[list[Node], Changes]:
    """Return the backward nodes; before each cut to chosen channels, nodes add up all channels' scores."""
    latest = {layer.place.name: layer.scores for layer in layers}
    nodes = list[Node]()
    for node in backward:
        if node.op == "TakeChannels":
            place = operand(node, "place").name
            latest[place] = _added(builder, latest[place], operand(node, "x"), node)
            nodes += [builder.nodes.pop(-2), builder.nodes.pop()]
        nodes.append(node)
    changes = [(layer.scores, latest[layer.place.name]) for layer in layers]
    return nodes, [(state, after) for state, after in changes if state != after]


def _added(builder: GraphBuilder, scores: Value, error: Value, node: Node) -> Value:
    more = builder.emit("ScoreChannels", (error,), name=f"{node.name}.score", origin=node.origin)
    return builder.emit("AddScores", (scores, more), name=f"{scores.name}.add", origin=node.origin)


def choice_of(builder: GraphBuilder, layers: Sequence[ChosenLayer], state: list[Value]) -> ChannelChoice:
    """Return the channels that the generated code chooses. state: gets the choice's tensors that no node changes."""
    flag = builder.constant("channel_choice", np.asarray(OPEN, np.int32))
    state += [flag, *(layer.place for layer in layers)]
    return ChannelChoice(flag, tuple(layers))
