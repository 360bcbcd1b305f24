"""What the integer operators mean. Importing this package fills their part of the op table."""

from tinytrain_compile.ops.int8 import (
    channels,
    clip,
    conv,
    exponents,
    loss,
    pointwise,
    pool,
    rescale,
    subspace,
    targets,
    update,
    weighted_loss,
)

__all__ = [
    "channels",
    "clip",
    "conv",
    "exponents",
    "loss",
    "pointwise",
    "pool",
    "rescale",
    "subspace",
    "targets",
    "update",
    "weighted_loss",
]
