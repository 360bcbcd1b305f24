"""What the templates know of a training step besides its calls: where its scalars lie, and what it does with labels."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.emit.labels import label_data
from tinytrain_compile.emit.names import Names
from tinytrain_compile.emit.parts.choice import choice_data
from tinytrain_compile.emit.sequence import Sequencer
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.int8.update import error_exponents


def training_data(train: TrainGraph, sequencer: Sequencer, prefix: str, tables: Names) -> dict[str, object]:
    """For the templates."""
    return {
        "loss": sequencer.pointer(train.loss.name),
        "rate": sequencer.pointer(train.learning_rate.name),
        "rate_float": sequencer.typed("F32", train.learning_rate.name),
        "rate_int": sequencer.typed("I32", train.rate.name) if train.rate else "",
        "momentum": None if train.momentum is None else f"{float(np.float32(train.momentum))!r}f",
        "first_rate": float(train.graph.constants[train.learning_rate.name]),
        "exponent": _first_exponent(train, sequencer),
        "batch": train.batch,
        "choice": choice_data(train, sequencer, tables),
        "in_place": train.in_place,
        "dropout": sequencer.typed("I32", train.dropout.name) if train.dropout else "",
        "inverse": sequencer.typed("F32", train.inverse_count.name) if train.inverse_count else "",
        **label_data(train, sequencer, prefix),
    }


def _first_exponent(train: TrainGraph, sequencer: Sequencer) -> str:
    """Where an exponent lies that tells whether a step has found all of them; "" where errors have none."""
    exponents = error_exponents(train.graph.nodes)
    return sequencer.typed("I32", exponents[0]) if exponents else ""
