"""How many trained int8 weights stand at the end of their range, and how many channels got another scale."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.summary import Saturations
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.int8.rescale import rescaled_tables, rescales
from tinytrain_compile.ops.names import trained

LIMIT = 127


def count_saturations(train: TrainGraph, state: Mapping[str, Array]) -> Saturations | None:
    """Before training and in a later state (tensor name -> array); None for a graph that trains no int8 weight."""
    values = (trained(node) for node in train.graph.nodes)
    int8 = {value.name for value in values if value is not None and value.dtype == "int8"}
    names = int8 & set(train.graph.constants)  # without what a node hands on to the next (an update to a rescaling)
    if not names:
        return None
    before, after = (sum(_at_limit(data[name]) for name in names) for data in (train.graph.constants, state))
    return Saturations(sum(train.graph.constants[name].size for name in names), before, after, _rescaled(train, state))


def _rescaled(train: TrainGraph, state: Mapping[str, Array]) -> int | None:
    """Channels whose forward shift differs from the first one; None without any layer that can rescale."""
    tables = [rescaled_tables(node)[0].name for node in train.graph.nodes if rescales(node)]
    return sum(int(np.count_nonzero(train.graph.constants[t] != state[t])) for t in tables) if tables else None


def _at_limit(weights: Array) -> int:
    return int(np.count_nonzero(np.abs(weights.astype(np.int32)) >= LIMIT))
