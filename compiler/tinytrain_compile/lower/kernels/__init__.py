"""How every operator is computed. Importing this package fills the kernel table."""

from tinytrain_compile.lower.kernels import float32, int8, shape
from tinytrain_compile.lower.kernels.base import (
    KERNELS,
    SIZE,
    SPEED,
    VECTOR_KERNELS,
    Features,
    KernelSpec,
    features_of,
    kernel_spec,
)

__all__ = [
    "KERNELS",
    "SIZE",
    "SPEED",
    "VECTOR_KERNELS",
    "Features",
    "KernelSpec",
    "features_of",
    "float32",
    "int8",
    "kernel_spec",
    "shape",
]
