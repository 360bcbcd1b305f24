"""Contents of int8 storage: weights with 8 fraction bits, weights at the end of their range, scales too far apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.summary import Saturations
from tinytrain_compile.ir.types import Array, Graph, Value
from tinytrain_compile.ops.int8.rescale import rescaled_tables, rescales
from tinytrain_compile.ops.names import trained

WeightStore = Literal["sr8", "q8.8", "mixed"]

MIXED_SHARE = 4
"""Trained weights per byte of fractions in a mixed store, at least."""


def fine_weights(trained: Sequence[Value], store: WeightStore) -> tuple[Value, ...]:
    """Return the trained weights that get fraction bits.

    A mixed store uses whole tensors, the smallest first (equal ones in their order), while the bound holds. These are
    the early and the depthwise convolutions, which have few weights and sum each gradient over many pixels.
    """
    if store != "mixed":
        return tuple(trained) if store == "q8.8" else ()
    room = sum(v.elements for v in trained) // MIXED_SHARE
    chosen: list[Value] = []
    for value in sorted(trained, key=lambda v: v.elements):
        room -= value.elements
        if room < 0:
            break
        chosen.append(value)
    return tuple(chosen)


def store_note(trained: Sequence[Value], fine: Sequence[Value]) -> str:
    """Return the report's note on a mixed store (its rows of quant_tensors name the tensors).

    If no tensor is small enough, all weights are rounded by noise, which costs half a point and more at one sample per
    update (docs/results-int8.md).
    """
    extra, weights = sum(v.elements for v in fine), sum(v.elements for v in trained)
    tensors = f"{len(fine)} of {len(trained)} tensors"
    found = f"--weight-store mixed: fractions in {tensors} ({extra} of {weights} B)"
    none = f": none is that small; --weight-store q8.8 takes {weights} B more and loses less at one sample per update"
    return found if fine or not trained else found + none


# ---- range of int8 ---------------------------------------------------------------------------------------------------


SMALLEST, LARGEST = 2.0**-64, 2.0**64
"""Bounds of a scale. A factor is a product or a quotient of up to four, and its exponent is an int8."""


def check_scales(graph: Graph) -> None:
    """Raise E0307 for an activation or a weight whose scale is out of bounds."""
    for value in _stored(graph):
        assert value.quant is not None
        for scale in value.quant.scale:
            if not SMALLEST <= scale <= LARGEST:
                raise out_of_range(value.name, f"its int8 step is {scale:.3g}")


def out_of_range(name: str, what: str) -> CompileError:
    """Return the error for a value that int8 cannot hold."""
    way = "look for samples or weights that are far off, or scale the data to about 1"
    return CompileError("E0307", name, what, way)


def _stored(graph: Graph) -> Iterator[Value]:
    """Yield the values stored with int8 formats; biases follow from them."""
    seen: set[str] = set()
    for value in (*graph.inputs, *(v for node in graph.nodes for v in (*node.inputs, *node.outputs))):
        if value.quant is not None and value.quant.high < 1 << 15 and value.name not in seen:
            seen.add(value.name)
            yield value


# ---- weights at the end of their range ------------------------------------------------------------------------------


LIMIT = 127
"""Largest magnitude of a trained weight (QUpdateAttrs.limit)."""


def count_saturations(train: TrainGraph, state: Mapping[str, Array]) -> Saturations | None:
    """Count saturated weights before training and in a later state (tensor name -> array); None without int8
    weights."""
    values = (trained(node) for node in train.graph.nodes)
    int8 = {value.name for value in values if value is not None and value.dtype == "int8"}
    names = int8 & set(train.graph.constants)  # without values passed from an update to a rescaling
    if not names:
        return None
    before, after = (sum(_at_limit(data[name]) for name in names) for data in (train.graph.constants, state))
    return Saturations(sum(train.graph.constants[name].size for name in names), before, after, _rescaled(train, state))


def _rescaled(train: TrainGraph, state: Mapping[str, Array]) -> int | None:
    """Count channels whose forward shift differs from the initial one; None if no layer can rescale."""
    tables = [rescaled_tables(node)[0].name for node in train.graph.nodes if rescales(node)]
    return sum(int(np.count_nonzero(train.graph.constants[t] != state[t])) for t in tables) if tables else None


def _at_limit(weights: Array) -> int:
    return int(np.count_nonzero(np.abs(weights.astype(np.int32)) >= LIMIT))
