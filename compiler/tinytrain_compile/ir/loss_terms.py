"""How the losses of calls make the loss of a batch: what divides them, and what labels weigh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinytrain_compile.ir.types import Array

Divisor = Literal["samples", "weights", "one"]
"""What divides the gradients of a batch: its samples, what its labels weigh, or nothing (the loss is a sum)."""


@dataclass(frozen=True)
class LabelWeights:
    """What the labels of a loss weigh: `table` has a weight per class (empty: 1 for all), `ignored` is a label of 0."""

    table: tuple[float, ...] = ()
    ignored: int | None = None

    def of(self, labels: Array, start: float = 0.0) -> np.float32:
        """Return their sum on top of `start`, one after another in float32, as the generated code adds them."""
        total = np.float32(start)
        for label in (int(label) for label in labels.flat):
            if label != self.ignored:
                total += np.float32(self.table[label] if self.table else 1.0)
        return total

    @property
    def nothing(self) -> tuple[int, ...]:
        """Labels of weight 0: where a call has no others, it changes nothing."""
        ignored = () if self.ignored is None else (self.ignored,)
        return tuple(dict.fromkeys((*ignored, *(i for i, weight in enumerate(self.table) if weight == 0))))


@dataclass(frozen=True)
class LossTerms:
    """How the losses of calls make the loss of a batch: PyTorch's value of `reduction` for all its samples at once.

    divisor: of the batch's gradients. weights: None where every label counts 1. divided: whether the graph's loss is a
    sum that the call divides by the weights of its labels.
    """

    divisor: Divisor = "samples"
    weights: LabelWeights | None = None
    divided: bool = False

    def of_call(self, loss: Array, labels: Array) -> Array:
        """Return what a call reports: the graph's loss, or that over the weights of its labels (0 without any)."""
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
