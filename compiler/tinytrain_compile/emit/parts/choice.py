"""What the templates know of channels that the device chooses."""

from __future__ import annotations

from tinytrain_compile.emit.c_text import Names
from tinytrain_compile.emit.sequence import Sequencer
from tinytrain_compile.ir.choice import FIXED, OPEN, SCORED, SCORING
from tinytrain_compile.ir.stages import TrainGraph


def choice_data(train: TrainGraph, sequencer: Sequencer, tables: Names) -> dict[str, object] | None:
    """The flag, what it holds, and of every layer where its tables lie; None where nothing is chosen."""
    if train.choice is None:
        return None
    return {
        "flag": sequencer.typed("I32", train.choice.flag.name),
        "values": (("OPEN", OPEN), ("FIXED", FIXED), ("SCORED", SCORED), ("SCORING", SCORING)),
        "state": choice_state(train),
        "layers": [
            {
                "place": sequencer.typed("I32", layer.place.name),
                "scores": sequencer.typed("F32", layer.scores.name),
                "part": sequencer.pointer(layer.part.name),
                "whole": tables.of(layer.whole.name),
                "total": layer.place.elements,
                "count": layer.part.shape[0],
                "row_bytes": part.size_bytes // part.shape[0],
            }
            for layer in train.choice.layers
            for part in (next(v for v in train.graph.state if v.name == layer.part.name),)
        ],
    }


def choice_state(train: TrainGraph) -> frozenset[str]:
    """Names of the state that says what was chosen, which outlives a choice."""
    if train.choice is None:
        return frozenset()
    tables = (value.name for layer in train.choice.layers for value in (layer.place, layer.scores))
    return frozenset((train.choice.flag.name, *tables))
