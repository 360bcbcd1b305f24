"""Options of how weights follow gradients: a part of CompileOptions (`options/compile_options.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tinytrain_compile.ops.update import defaults_of, optimizers_with
from tinytrain_compile.options.option import option, within
from tinytrain_compile.options.values import parse_betas, parse_epsilon, parse_norm


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """Loss, optimizer and accumulation, but for what everyone needs (optimizer, learning rate, batch)."""

    gains: Path | None = field(
        default=None,
        metadata=option(
            "training",
            "What training each layer is worth, for --update auto (docs/update-schemes.md). Default: a prior.",
            "--gains",
            metavar="FILE.csv",
        ),
    )
    pareto: bool = field(
        default=False,
        metadata=option(
            "training",
            "What --update auto would train in some other arenas, beside this one (takes minutes).",
            "--pareto",
        ),
    )
    loss: Literal["cross-entropy", "mse", "bce"] | None = field(
        default=None,
        metadata=option(
            "training", "Default: bce behind a Sigmoid, else cross-entropy for (batch, classes).", "--loss"
        ),
    )
    dropout: Literal["off", "on"] = field(
        default="off",
        metadata=option("training", "Dropout that the file has in training mode (float32).", "--dropout"),
    )
    momentum: float = field(
        default=0.9,
        metadata=option(
            "training",
            f"Of {optimizers_with('momentum')}. Not given: rmsprop has none.",
            "--momentum",
            check=within(0.0, 1.0),
        ),
    )
    nesterov: bool = field(default=False, metadata=option("training", "Nesterov's momentum.", "--nesterov"))
    dampening: float = field(
        default=0.0,
        metadata=option("training", "Of momentum, from the second update on.", "--dampening", check=within(0.0, 1.0)),
    )
    betas: tuple[float, float] | None = field(
        default=None,
        metadata=option(
            "training",
            f"Decay rates of {optimizers_with('betas')}. {defaults_of('betas')}",
            "--betas",
            metavar="B1,B2",
            read=parse_betas,
        ),
    )
    alpha: float = field(
        default=0.99,
        metadata=option("training", "Decay rate of rmsprop's squares.", "--alpha", check=within(0.0, 1.0)),
    )
    centered: bool = field(
        default=False, metadata=option("training", "rmsprop by the spread of gradients.", "--centered")
    )
    epsilon: float | None = field(
        default=None,
        metadata=option("training", defaults_of("epsilon"), "--epsilon", metavar="E", read=parse_epsilon),
    )
    epsilon_place: Literal["corrected", "raw"] = field(
        default="corrected",
        metadata=option("training", "Of adam: beside the corrected root, or sqrt(v) itself (ORT).", "--epsilon-place"),
    )
    weight_decay: float = field(
        default=0.0,
        metadata=option(
            "training",
            "Pulls float32 weights towards 0.",
            "--weight-decay",
            check=within(0.0, 1e6),
        ),
    )
    clip_norm: float | None = field(
        default=None,
        metadata=option(
            "training",
            "Largest norm of a gradient; a longer one is scaled down (docs/clipping.md).",
            "--clip-norm",
            metavar="NORM",
            read=parse_norm,
        ),
    )
    clip_per: Literal["model", "layer"] = field(
        default="model",
        metadata=option("training", "Whose norm: of all that is trained, or of each layer alone.", "--clip-per"),
    )
    activations: Literal["exact", "asi", "subspace"] = field(
        default="exact",
        metadata=option(
            "training",
            "What layers keep of their inputs for gradients: all, or a low-rank copy in subspaces that follow (asi) or"
            " are fixed (subspace) (docs/activations.md; needs --data).",
            "--activations",
        ),
    )
    rank_error: float = field(
        default=0.1,
        metadata=option(
            "training",
            "Of --activations: largest relative error of a layer's gradient on --data.",
            "--rank-error",
            check=within(0.0, 1.0),
        ),
    )
    accumulate: Literal["exact", "inplace"] = field(
        default="exact",
        metadata=option(
            "training",
            "Over --batch N samples: sum gradients, or update with each at once, at a learning rate of 1/N.",
            "--accumulate",
        ),
    )
    epochs: int | None = field(
        default=None,
        metadata=option(
            "training",
            "Passes over the samples that the firmware is to make: a macro for its loop (finetune recommends them).",
            "--epochs",
            metavar="N",
            limits=(1, 1000000),
        ),
    )
    warm_up: int | None = field(
        default=None,
        metadata=option(
            "training",
            "Updates in which the firmware's rate is to grow first: a macro for its schedule (finetune recommends it).",
            "--warm-up",
            metavar="N",
            limits=(1, 4294967295),
        ),
    )
