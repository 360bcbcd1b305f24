"""How every operator is computed; the same file names as in ops/. Importing this package fills the kernel table."""

from tinytrain_compile.lower.kernels import (
    activation,
    conv,
    elementwise,
    linear,
    loss,
    normalise,
    pool,
    qconv,
    qfine,
    qloss,
    qmomentum,
    qpointwise,
    qpool,
    qupdate,
    shape,
    update,
)
from tinytrain_compile.lower.kernels.base import KERNELS, Features, KernelSpec

__all__ = [
    "KERNELS",
    "Features",
    "KernelSpec",
    "activation",
    "conv",
    "elementwise",
    "linear",
    "loss",
    "normalise",
    "pool",
    "qconv",
    "qfine",
    "qloss",
    "qmomentum",
    "qpointwise",
    "qpool",
    "qupdate",
    "shape",
    "update",
]
