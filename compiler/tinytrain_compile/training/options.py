"""What the user may choose about training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.update import OPTIMIZERS, Settings

Accumulate = Literal["exact", "inplace"]
ClipPer = Literal["model", "layer"]
LOSSES = ("cross-entropy", "mse", "bce")


@dataclass(frozen=True)
class TrainingOptions(Settings):
    """loss None: the default for the model's output; batch: samples per update (1: the update is part of the step).

    accumulate: "exact" sums gradients over the batch; "inplace" updates with every sample, at learning rate / batch.
    micro_batch: samples of one step, a divisor of the batch; 1 unless gradients are summed.
    dropout: the seed of its masks; None leaves every Dropout out.
    seed: of the subspaces that low-rank activations begin with.
    clip_norm: the largest norm that a gradient keeps; None: any. clip_per: of all trained tensors together, or of those
    of each layer.
    integer: whether the graph is rewritten to int8, so that low-rank copies may be made int8 again. fpu: whether the
    core has one; else they always are.
    initial: first values of the optimizer's state by parameter and kind, where they are not 0.
    """

    loss: str | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    batch: int = 1
    accumulate: Accumulate = "exact"
    micro_batch: int = 1
    dropout: int | None = None
    seed: int = 0
    clip_norm: float | None = None
    clip_per: ClipPer = "model"
    integer: bool = False
    fpu: bool = True
    initial: Mapping[tuple[str, str], Array] = field(default_factory=dict[tuple[str, str], Array])

    @property
    def meaning(self) -> tuple[object, ...]:
        """What of the optimizer gives its saved state a meaning."""
        return (self.optimizer, *OPTIMIZERS[self.optimizer].meaning_of(self))

    @property
    def in_place(self) -> bool:
        """Whether the samples of a batch are steps of their own."""
        return self.accumulate == "inplace" and self.batch > 1

    @property
    def sums(self) -> bool:
        """Whether gradients are summed over the samples of a batch."""
        return self.batch > 1 and not self.in_place
