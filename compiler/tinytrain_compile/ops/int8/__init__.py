"""What the integer operators mean. Importing this package fills their part of the op table."""

from tinytrain_compile.ops.int8 import (
    channels,
    clip,
    conv,
    loss,
    momentum,
    pointwise,
    pool,
    rescale,
    rounded,
    shared_parameter,
    subspace,
    targets,
    update,
    update_fine,
    weighted_loss,
)

__all__ = [
    "channels",
    "clip",
    "conv",
    "loss",
    "momentum",
    "pointwise",
    "pool",
    "rescale",
    "rounded",
    "shared_parameter",
    "subspace",
    "targets",
    "update",
    "update_fine",
    "weighted_loss",
]
