"""What the templates know of a project that does not train: the calls of an inference, and nothing of a step."""

from __future__ import annotations

from collections.abc import Iterator

from tinytrain_compile.emit.checkpoint import stored
from tinytrain_compile.emit.sequence import Sequencer
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.input_lines import takes_lines


def inference_data(train: TrainGraph, plan: MemoryPlan, sequencer: Sequencer) -> dict[str, object]:
    """For the templates."""
    order = plan.order
    until = next((1 + index for index, node in enumerate(order) if takes_lines(node)), 0)
    return {
        "infer_parts": sequencer.parts("infer", order[until:]),
        "choice": None,
        "batch_parts": [],
        "own_step_parts": [],
        "apply_parts": [],
        "begin_parts": sequencer.parts("begin", order[: max(until - 1, 0)]),
        "row_parts": sequencer.parts("take_row", order[max(until - 1, 0) : until]),
        "output": sequencer.pointer(train.graph.outputs[0].name),
        "classes": None,
        "label_array": False,
        "features_asked": False,
        "feature_bytes": 0,
        "slices": (),
        "dropout": "",
    }


def pieces(train: TrainGraph) -> Iterator[tuple[Value, int]]:
    """The tensors of a checkpoint that are kept, in its order, each with the bytes in front of it that are not."""
    kept = {value.name for value in train.graph.state}
    skipped = 0
    for value in stored(train.training_step):
        if value.name in kept:
            yield value, skipped
            skipped = 0
        else:
            skipped += value.size_bytes


def behind(train: TrainGraph) -> int:
    """Bytes behind the last tensor that is kept."""
    whole = sum(value.size_bytes for value in train.training_step.graph.state)
    return whole - sum(value.size_bytes + skipped for value, skipped in pieces(train))
