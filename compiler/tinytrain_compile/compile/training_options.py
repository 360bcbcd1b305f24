"""What the options ask of training."""

from __future__ import annotations

from tinytrain_compile.compile.options import CompileOptions
from tinytrain_compile.training import TrainingOptions


def training_options(o: CompileOptions, batch: int = 1, micro_batch: int = 1) -> TrainingOptions:
    """For so many samples an update, of which a step takes so many."""
    momentum = o.momentum if o.optimizer != "rmsprop" or "momentum" in o.given else 0.0
    return TrainingOptions(
        loss=o.loss,
        optimizer=o.optimizer,
        learning_rate=o.learning_rate,
        momentum=momentum,
        weight_decay=o.weight_decay,
        batch=batch,
        accumulate=o.accumulate,
        micro_batch=micro_batch,
        nesterov=o.nesterov,
        dampening=o.dampening,
        alpha=o.alpha,
        betas=o.betas,
        epsilon=o.epsilon,
        raw_epsilon=o.epsilon_place == "raw",
    )
