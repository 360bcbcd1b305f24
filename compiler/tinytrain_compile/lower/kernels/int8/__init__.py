"""How the integer operators are computed; the same file names as in ops/int8/."""

from tinytrain_compile.lower.kernels.int8 import (
    channels,
    clip,
    conv,
    loss,
    pointwise,
    pool,
    rescale,
    rows,
    subspace,
    targets,
    update,
)
from tinytrain_compile.lower.kernels.int8.helium import conv as helium_conv
from tinytrain_compile.lower.kernels.int8.helium import pointwise as helium_pointwise
from tinytrain_compile.lower.kernels.int8.helium import pool as helium_pool

__all__ = [
    "channels",
    "clip",
    "conv",
    "helium_conv",
    "helium_pointwise",
    "helium_pool",
    "loss",
    "pointwise",
    "pool",
    "rescale",
    "rows",
    "subspace",
    "targets",
    "update",
]
