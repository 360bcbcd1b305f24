"""Which trained int8 weights are kept with 8 fraction bits: none (sr8), all (q8.8), or the small ones (mixed)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tinytrain_compile.ir.types import Value

WeightStore = Literal["sr8", "q8.8", "mixed"]

MIXED_SHARE = 4
"""Fractions of a mixed store take at most one byte for so many trained weights."""


def fine_weights(trained: Sequence[Value], store: WeightStore) -> tuple[Value, ...]:
    """The weights with fraction bits, of all trained ones.

    A mixed store takes whole tensors, the smallest first (equal ones in their order), while the bound holds: the early
    and the depthwise convolutions, which have few weights and sum each one's gradient over many pixels.
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
    """What the report says of a mixed store (its rows of quant_tensors name the tensors)."""
    extra, weights = sum(v.elements for v in fine), sum(v.elements for v in trained)
    tensors = f"{len(fine)} of {len(trained)} tensors"
    return f"--weight-store mixed: fractions in {tensors} ({extra} of {weights} B)"
