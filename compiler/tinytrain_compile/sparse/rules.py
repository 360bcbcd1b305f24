"""Rules of what training is worth, as tables: on which one to rely is a question for samples that are held back.

Sources of the rules: TinyTrain (Kwon et al., ICML 2024) for the Fisher information of channels; MCUNetV3 (Lin et al.,
NeurIPS 2022) for biases before weights. Which of them is best differs from task to task (ADR 33).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.sparse.gains import MOST, PRIOR, UNITS, GainTable, Key, Part, axes_of
from tinytrain_compile.sparse.layers import Layer, weight_axis

STEEP = 1.6
"""How much more a layer is worth than the one before it, where the order is what counts."""
BIAS_FIRST = 1000.0
"""How much more a bias is worth than a weight, where biases come first."""

SPREAD, LAST, FRONT, BIAS = "spread over layers", "last layers first", "first layers first", "biases first"
GRADIENTS, FISHER = "per-sample gradients", "Fisher information"
Scores = Mapping[str, Array]
"""Parameter -> a number for every element."""


def tables_without_data(layers: Sequence[Layer]) -> list[GainTable]:
    """Rules that look at the network alone."""
    last = len(layers) - 1
    return [
        PRIOR,
        _by_size(LAST, layers, lambda index: STEEP ** (index - last)),
        _by_size(FRONT, layers, lambda index: 1.0 if index == last else STEEP**-index),
        _by_size(BIAS, layers, lambda _: 1.0, BIAS_FIRST),
    ]


def tables_of_gradients(layers: Sequence[Layer], gradients: Iterable[Scores], weights: Scores) -> list[GainTable]:
    """Rules that look at the gradients of samples: squared and summed, by channel, alone and times the weights."""
    squares = {name: np.zeros(array.shape) for name, array in weights.items()}
    fisher = {name: np.zeros(array.shape) for name, array in weights.items()}
    for sample in gradients:
        for name, gradient in sample.items():
            squares[name] += np.square(gradient, dtype=np.float64)
            fisher[name] += np.square(np.multiply(gradient, weights[name], dtype=np.float64))
    return [_by_channel(GRADIENTS, layers, squares), _by_channel(FISHER, layers, fisher)]


def _by_size(name: str, layers: Sequence[Layer], factor: Callable[[int], float], bias: float = 1.0) -> GainTable:
    """The square root of parameters of a part, times what its layer's place is worth."""
    whole = dict[Key, int]()
    for index, layer in enumerate(layers):
        parts: tuple[tuple[Part, tuple[Value, ...], float], ...]
        parts = ("bias", layer.biases, bias), ("weight", layer.weights, 1.0)
        for part, values, more in parts:
            size = sum(value.elements for value in values)
            gain = max(1, round(UNITS * math.sqrt(size) * factor(index) * more))
            for axis in (axes_of(layer) if part == "weight" else ()) or ("",):
                if size:
                    whole[Key(layer.name, part, axis)] = gain
    return GainTable(name, whole)


def _by_channel(name: str, layers: Sequence[Layer], scores: Scores) -> GainTable:
    """Sums of the scores of parts, and of channels where a layer has any; the largest part of all has UNITS * 1000."""
    whole, channels = dict[Key, float](), dict[Key, Array]()
    for layer in layers:
        if layer.biases:
            whole[Key(layer.name, "bias", "")] = sum(float(scores[value.name].sum()) for value in layer.biases)
        axes = axes_of(layer)
        for axis in axes:
            first = scores[layer.weights[0].name]
            along = 0 if weight_axis(layer.node, axis) == "out" else first.ndim - 1
            channels[Key(layer.name, "weight", axis)] = first.sum(
                axis=tuple(i for i in range(first.ndim) if i != along)
            )
        if layer.weights and not axes:
            whole[Key(layer.name, "weight", "")] = sum(float(scores[value.name].sum()) for value in layer.weights)
    most = max((*whole.values(), *(float(array.sum()) for array in channels.values())), default=0.0)
    unit = min(MOST, 1000.0) * UNITS / most if most > 0 else 0.0
    return GainTable(
        name,
        {key: round(value * unit) for key, value in whole.items()},
        {key: {i: round(float(x) * unit) for i, x in enumerate(array)} for key, array in channels.items()},
    )
