"""What a training step keeps of the inputs of its trained layers, read off its graph."""

from __future__ import annotations

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.fused_update import taken_apart

GRADIENTS = ("ConvGradWeight", "GemmGradWeight", "QUpdate", "QSum")
"""Beginnings of the names of operators that make gradients of weights."""


def kept_bytes(train: TrainGraph) -> int:
    """Of inputs that gradients of weights read as the forward pass made them, each once, and of low-rank copies."""
    forward, makers = _forward(train), {value.name: node for node in train.graph.nodes for value in node.outputs}
    parts = (part for node in train.graph.nodes for part in taken_apart(node))
    gradients = (part for part in parts if part.op.startswith(GRADIENTS))
    read = (_shown(value, forward, makers) for node in gradients for value in node.inputs)
    whole = {value.name: value.size_bytes for value in read if value.name in forward}
    return sum(whole.values()) + sum(item.kept_bytes for item in train.low_rank)


def _forward(train: TrainGraph) -> set[str]:
    """Values that the loss depends on."""
    names = train.graph.ancestors((train.loss,))
    made = {value.name for node in train.graph.nodes if node.name in names for value in node.outputs}
    return made | {value.name for value in train.graph.inputs}


def _shown(value: Value, forward: set[str], makers: dict[str, Node]) -> Value:
    """What a value is a part or another view of: a gradient that is summed sample by sample reads slices."""
    while value.name not in forward and value.name in makers:
        maker = makers[value.name]
        if maker.op != "Slice" and not op_def(maker.op).view:
            break
        value = maker.inputs[0]
    return value
