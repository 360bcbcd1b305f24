"""Composition of a batch's loss from the losses of calls: the divisor, and the weights of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinytrain_compile.ir.types import Array

Divisor = Literal["samples", "weights", "one"]
"""Divisor of a batch's gradients: the number of samples, the sum of label weights, or 1 (the loss is a sum)."""


@dataclass(frozen=True)
class LabelWeights:
    """Weights of a loss's labels: `table` has a weight per class (empty: 1 for all), `ignored` is a label of weight
    0."""

    table: tuple[float, ...] = ()
    ignored: int | None = None

    def of(self, labels: Array, start: float = 0.0) -> np.float32:
        """Return the sum of labels' weights plus `start`, one after another in float32, as the generated code adds
        them."""
        total = np.float32(start)
        for label in (int(label) for label in labels.flat):
            if label != self.ignored:
                total += np.float32(self.table[label] if self.table else 1.0)
        return total

    @property
    def nothing(self) -> tuple[int, ...]:
        """Labels of weight 0: a call with no others changes nothing."""
        ignored = () if self.ignored is None else (self.ignored,)
        return tuple(dict.fromkeys((*ignored, *(i for i, weight in enumerate(self.table) if weight == 0))))


@dataclass(frozen=True)
class LossTerms:
    """Composition of a batch's loss from the losses of calls: PyTorch's value of `reduction` for all its samples at
    once.

    divisor: of the batch's gradients. weights: None if every label counts 1. divided: whether the graph's loss is a sum
    that the call divides by the weights of its labels.
    """

    divisor: Divisor = "samples"
    weights: LabelWeights | None = None
    divided: bool = False

    def of_call(self, loss: Array, labels: Array) -> Array:
        """Return the loss that a call reports: the graph's, or that divided by the weights of its labels (0 without
        any)."""
        if not self.divided or self.weights is None:
            return loss
        weight = self.weights.of(labels)
        return np.asarray(loss / weight if weight != 0 else np.float32(0.0))

    def of_batch(self, losses: Sequence[float], labels: Sequence[Array]) -> float:
        """Return the loss of a batch from those of its calls, each with its labels."""
        if self.divisor == "one":
            return float(np.sum(losses))
        shares = [1.0 if self.weights is None else float(self.weights.of(y)) for y in labels]
        total = sum(shares)
        return float(np.dot(losses, shares)) / total if total else 0.0


MEAN_OF_SAMPLES = LossTerms()
