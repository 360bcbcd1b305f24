"""Dropout with computed masks, which are not kept: a hash of an element's place and step decides about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.base import ELEMENTWISE, Placed, Samples, operator
from tinytrain_compile.ops.names import BACKWARD, emits, expect_float, like, only
from tinytrain_compile.ops.owned import Owned
from tinytrain_compile.ops.scalar_math import random_bits

HASH_BITS = 24
"""Bits of the hash of an element."""


@dataclass(frozen=True)
class DropoutAttrs(Attrs):
    """ratio: probability that an element is dropped; samples: number of samples in x, one after the other."""

    ratio: float
    samples: int = 1


@dataclass(frozen=True)
class RandomDropoutAttrs(Attrs):
    """limit: elements with a lower hash are dropped; scale: factor for the others; seed: of this mask; samples: in
    x."""

    limit: int
    scale: float
    seed: int
    samples: int = 1


@dataclass(frozen=True)
class CountAttrs(Attrs):
    """Samples of a step."""

    samples: int = 1


def _same(inputs: tuple[Value, ...], attrs: DropoutAttrs) -> tuple[TensorType, ...]:
    expect_float("Dropout", inputs[0])
    if not 0.0 <= attrs.ratio < 1.0:
        raise ValueError(f"Dropout: ratio {attrs.ratio}")
    return like(inputs[0])


def _infer(inputs: tuple[Value, ...], attrs: RandomDropoutAttrs) -> tuple[TensorType, ...]:
    x, count, active = inputs
    expect_float("RandomDropout", x)
    if any(value.dtype != "int32" or value.elements != 1 for value in (count, active)):
        raise ValueError("RandomDropout: count and active are int32 scalars")
    if attrs.samples < 1 or x.elements % attrs.samples:
        raise ValueError(f"RandomDropout: {attrs.samples} samples in {x.shape}")
    return like(x)


def _repeat(_node: Node, attrs: DropoutAttrs, count: int) -> DropoutAttrs:
    return replace(attrs, samples=attrs.samples * count)


def _one_count(_node: Node, _attrs: RandomDropoutAttrs, _count: int) -> RandomDropoutAttrs:
    raise ValueError("every sample has a mask of its own, by its count")


def _drop(arrays: tuple[Array, ...], attrs: RandomDropoutAttrs) -> tuple[Array, ...]:
    x, count, active = arrays
    if not active:
        return (x.copy(),)
    each = x.size // attrs.samples
    samples = [random_bits(attrs.seed, int(count) + i, each) for i in range(attrs.samples)]
    dropped = (np.concatenate(samples) if samples else np.zeros(0, np.int64)).reshape(x.shape) < attrs.limit
    return (np.where(dropped, x.dtype.type(0), x * attrs.scale).astype(x.dtype),)


def _counted(arrays: tuple[Array, ...], attrs: CountAttrs) -> tuple[Array, ...]:
    (count,) = arrays
    after = (int(count) + attrs.samples) & 0xFFFFFFFF
    return (np.asarray(after, np.uint32).view(np.int32).reshape(count.shape),)


operator(
    "Dropout",
    "Where training drops elements (RandomDropout takes its place there); as it stands, nothing is changed.",
    _same,
    lambda arrays, _attrs: (arrays[0],),
    lambda _ctx, _node, gradients: {0: only(gradients)},
    DropoutAttrs,
    samples=Samples(_repeat),
    placed=Placed(True, lambda _node: (0,)),
    inputs=("x",),
    traits=ELEMENTWISE,
)
operator(
    "RandomDropout",
    "0 where a hash of seed, sample (count: samples before this step) and element is below a limit, else x scaled; "
    "x itself where active is 0.",
    _infer,
    _drop,
    emits("RandomDropout", "count", "active"),
    RandomDropoutAttrs,
    samples=Samples(_one_count),
    reuses=("x",),
    inputs=("x", "count", "active"),
)
operator(
    "CountSamples",
    "count += samples of a step, modulo 2**32.",
    lambda inputs, _attrs: (inputs[0].type,),
    _counted,
    BACKWARD,
    CountAttrs,
    inputs=("count",),
    outputs=("count",),
    owned=Owned({"count": "ANY"}, "float"),
)
