"""What the user may choose about training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
Accumulate = Literal["exact", "inplace"]
LOSSES = ("cross-entropy", "mse", "bce")


@dataclass(frozen=True)
class TrainingOptions:
    """loss None: the default for the model's output; batch: samples per update (1: the update is part of the step).

    accumulate: "exact" sums gradients over the batch; "inplace" updates with every sample, at learning rate / batch.
    micro_batch: samples of one step, a divisor of the batch; 1 unless gradients are summed.
    """

    loss: str | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch: int = 1
    accumulate: Accumulate = "exact"
    micro_batch: int = 1

    @property
    def in_place(self) -> bool:
        """Whether the samples of a batch are steps of their own."""
        return self.accumulate == "inplace" and self.batch > 1

    @property
    def sums(self) -> bool:
        """Whether gradients are summed over the samples of a batch."""
        return self.batch > 1 and not self.in_place
