"""What the user may choose about training."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
LOSSES = ("cross-entropy", "mse", "bce")


@dataclass(frozen=True)
class TrainingOptions:
    """loss None: the default for the model's output; batch: samples per update (1: the update is part of the step)."""

    loss: str | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch: int = 1
