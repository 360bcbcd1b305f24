"""Rules for the gain of training, as tables: held-back samples decide which rule to use.

Sources of the rules: TinyTrain (Kwon et al., ICML 2024) for the Fisher information of channels; MCUNetV3 (Lin et al.,
NeurIPS 2022) for biases before weights. The best one differs from task to task (ADR 33).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinytrain_compile.ir.stages import channel_axis
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.sparse.gains import UNITS, GainTable, Key, Part, axes_of
from tinytrain_compile.sparse.select import Layer, weight_axis

STEEP, WHOLE = 1.6, 8.0
"""Ratio of a layer's gain to its neighbour's, if order counts; and if whole layers precede all others."""
BIAS_FIRST = 1000.0
"""Ratio of a bias's gain to a weight's, if biases come first."""
HIGHEST = 1000.0
"""Gain of the part with the largest score by gradients."""

SPREAD, LAST, FRONT = "spread over layers", "last layers first", "first layers first"
BIAS, BIAS_ALONE = "biases first", "biases and the last layer"
GRADIENTS, FISHER = "per-sample gradients", "Fisher information"
Scores = Mapping[str, Array]
"""Parameter -> a number for every element."""


def tables_without_data(layers: Sequence[Layer]) -> list[GainTable]:
    """Return rules, besides the prior, that depend only on the network."""
    last = len(layers) - 1
    return [
        _by_size(LAST, layers, lambda index: WHOLE ** (index - last)),
        _by_size(FRONT, layers, lambda index: 1.0 if index == last else STEEP**-index),
        _by_size(BIAS, layers, lambda _: 1.0, lambda _: BIAS_FIRST),
        _by_size(BIAS_ALONE, layers, lambda index: float(index == last), lambda _: BIAS_FIRST),
    ]


def tables_of_gradients(layers: Sequence[Layer], gradients: Iterable[Scores], weights: Scores) -> list[GainTable]:
    """Return rules that depend on the gradients of samples, by channel: sums of squares; and Fisher information.

    For one sample the latter is the square of the sum over a channel of weight times gradient. That sum equals the one
    of the channel's outputs times their gradients. For several samples it is the mean.
    """
    squares, fisher = _Sums(layers), _Sums(layers)
    for sample in gradients:
        squares.add({name: np.square(gradient, dtype=np.float64) for name, gradient in sample.items()}, lambda x: x)
        products = {name: np.multiply(g, weights[name], dtype=np.float64) for name, g in sample.items()}
        fisher.add(products, np.square)
    return [squares.table(GRADIENTS), fisher.table(FISHER)]


def _by_size(
    name: str, layers: Sequence[Layer], weight: Callable[[int], float], bias: Callable[[int], float] | None = None
) -> GainTable:
    """Return the square root of a part's parameters times the weight of its layer's place (0: no gain); bias: for
    biases."""
    whole = dict[Key, int]()
    for index, layer in enumerate(layers):
        parts: tuple[tuple[Part, tuple[Value, ...], Callable[[int], float]], ...]
        parts = ("bias", layer.biases, bias or weight), ("weight", layer.weights, weight)
        for part, values, worth in parts:
            size = sum(value.elements for value in values)
            if not size or not worth(index):
                continue
            gain = max(1, round(UNITS * math.sqrt(size) * worth(index)))
            for axis in (axes_of(layer) if part == "weight" else ()) or ("",):
                whole[Key(layer.name, part, axis)] = gain
    return GainTable(name, whole)


@dataclass
class _Sums:
    """Sums over samples, for parts of layers and for their channels."""

    layers: Sequence[Layer]
    whole: dict[Key, float] = field(default_factory=dict[Key, float])
    channels: dict[Key, Array] = field(default_factory=dict[Key, Array])

    def add(self, sample: Scores, then: Callable[[Array], Array]) -> None:
        """Add a sample: sums over each part and channel, and `then` of each. Parameters without a number add
        nothing."""
        for layer in self.layers:
            axes = axes_of(layer)
            for axis in axes:
                if layer.weights[0].name in sample:
                    first = sample[layer.weights[0].name]
                    along = channel_axis(weight_axis(layer.node, axis), first.ndim)
                    sums = then(first.sum(axis=tuple(i for i in range(first.ndim) if i != along)))
                    key = Key(layer.name, "weight", axis)
                    self.channels[key] = self.channels.get(key, np.zeros(len(sums))) + sums
            parts: tuple[tuple[Part, tuple[Value, ...]], ...]
            parts = ("bias", layer.biases), ("weight", () if axes else layer.weights)
            for part, values in parts:
                key = Key(layer.name, part, "")
                for value in values:
                    if value.name in sample:
                        self.whole[key] = self.whole.get(key, 0.0) + float(then(sample[value.name]).sum())

    def table(self, name: str) -> GainTable:
        """Return gains; the largest part of all has HIGHEST."""
        most = max((*self.whole.values(), *(float(array.sum()) for array in self.channels.values())), default=0.0)
        unit = HIGHEST * UNITS / most if most > 0 else 0.0
        return GainTable(
            name,
            {key: round(value * unit) for key, value in self.whole.items()},
            {key: {i: round(float(x) * unit) for i, x in enumerate(array)} for key, array in self.channels.items()},
        )
