"""Channels that a table in the state chooses: cut out of a tensor, and scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops.base import operator, traits
from tinytrain_compile.ops.exact import sequential_sum
from tinytrain_compile.ops.names import BACKWARD, expect_float, expect_same_shape
from tinytrain_compile.ops.owned import Owned


@dataclass(frozen=True)
class TakeAttrs(Attrs):
    """Number of channels to take."""

    count: int


def _take_infer(inputs: tuple[Value, ...], attrs: TakeAttrs) -> tuple[TensorType, ...]:
    x, place = inputs
    total = x.shape[-1]
    if place.dtype != "int32" or place.shape != (total,) or not 0 < attrs.count <= total:
        raise ValueError(f"TakeChannels: {place.shape} {place.dtype} are no places of {attrs.count}")
    return (TensorType((*x.shape[:-1], attrs.count), x.dtype, x.layout),)


def _take(arrays: tuple[Any, ...], attrs: TakeAttrs) -> tuple[Array, ...]:
    x, place = arrays
    taken = np.zeros((*x.shape[:-1], attrs.count), x.dtype)
    for channel in np.flatnonzero(place >= 0):
        taken[..., min(int(place[channel]), attrs.count - 1)] = x[..., channel]
    return (taken,)


def _score_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    expect_float("ScoreChannels", x)
    return (TensorType(x.shape[-1:]),)


def _score(arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (np.square(x).reshape(-1, x.shape[-1]).sum(axis=0),)


def _score_exact(arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (sequential_sum((x * x).reshape(-1, x.shape[-1])),)


def _add_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_float("AddScores", *inputs)
    expect_same_shape("AddScores", *inputs)
    scores, _ = inputs
    return (TensorType(scores.shape),)


def _add(arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    scores, more = arrays
    return (scores + more,)


operator(
    "TakeChannels",
    "The channels (last axis) that have a place, each at its own; place is -1 for all others.",
    _take_infer,
    _take,
    BACKWARD,
    TakeAttrs,
    inputs=("x", "place"),
    traits=traits("cuts"),
)
operator(
    "ScoreChannels",
    "For every channel (last axis) the sum of the squares of its elements.",
    _score_infer,
    _score,
    BACKWARD,
    exact=_score_exact,
    inputs=("x",),
    traits=traits("scores"),
)
operator(
    "AddScores",
    "Adds the scores of a sample to those that are known.",
    _add_infer,
    _add,
    BACKWARD,
    inputs=("scores", "more"),
    outputs=("scores",),
    owned=Owned({"scores": "FINITE"}, "float"),
)
