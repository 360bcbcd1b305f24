"""Whether a few steps on the user's own samples made the loss explode: the C is right then, and the rate is not."""

from __future__ import annotations

import math

import numpy as np

from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import VerifyReport
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer

SUSPICIOUS, EXPLODED, BEYOND_GUESSING = 3.0, 10.0, 3.0
"""A later loss above so many times the first is looked at. It has exploded above so many times what the same samples
have without training, and so many times what a guess without any model has: an unlucky sample does neither."""


def exploding_note(
    train: TrainGraph, samples: Samples, report: VerifyReport, options: CompileOptions
) -> tuple[str, ...]:
    """Return a note that says what to do; none for random samples, whose losses say nothing."""
    losses = report.losses
    if options.data is None or len(losses) < 2 or max(losses[1:]) <= SUSPICIOUS * losses[0]:
        return ()
    calm, guess = untrained_losses(train, samples, len(losses)), _guessing(train, samples)
    worst = max(range(1, len(losses)), key=lambda step: losses[step] / max(calm[step], guess / EXPLODED))
    if losses[worst] <= max(EXPLODED * calm[worst], BEYOND_GUESSING * guess):
        return ()
    rate = options.learning_rate
    clip = "" if options.clip_norm is not None or options.quant == "int8" else ", add --clip-norm 1"
    return (
        f"the loss on {options.data.name} explodes: {losses[worst]:.3g} in step {worst + 1}, where the untrained model "
        f"has {calm[worst]:.3g}. --lr {rate:g} is too large for this model and data: try --lr {rate / 10:g}{clip}, or "
        "let tinytrain-compile finetune search a rate",
    )


def untrained_losses(train: TrainGraph, samples: Samples, steps: int) -> list[float]:
    """Return the loss of every step's samples by the weights of the file: steps at rate 0."""
    trainer, count, found = Trainer(train), len(samples.x), list[float]()
    trainer.set_rate(0.0)
    for step in range(steps):
        chosen = [(step * train.batch + i) % count for i in range(train.batch)]
        found.append(float(np.mean(trainer.step(samples.x[chosen], samples.y[chosen]))))
    return found


def _guessing(train: TrainGraph, samples: Samples) -> float:
    """Estimate the loss of a guess: all classes alike, or 0 for every value."""
    if samples.y.dtype.kind in "iu":
        return math.log(max(train.logits.shape[-1], 2))
    return max(float(np.mean(np.square(samples.y, dtype=np.float64))), math.log(2) / 10)
