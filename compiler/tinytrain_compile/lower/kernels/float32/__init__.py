"""How the float32 operators are computed; the same file names as in ops/."""

from tinytrain_compile.lower.kernels.float32 import (
    activation,
    choice,
    conv,
    dropout,
    elementwise,
    embedding,
    fused_update,
    linear,
    loss,
    normalise,
    pool,
    power,
    resize,
    rows,
    smooth,
    update,
)

__all__ = [
    "activation",
    "choice",
    "conv",
    "dropout",
    "elementwise",
    "embedding",
    "fused_update",
    "linear",
    "loss",
    "normalise",
    "pool",
    "power",
    "resize",
    "rows",
    "smooth",
    "update",
]
