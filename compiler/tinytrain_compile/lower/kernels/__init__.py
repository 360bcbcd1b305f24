"""Kernels of all operators. Importing this package fills the kernel table."""

from tinytrain_compile.lower.kernels import float32, int8
from tinytrain_compile.lower.kernels.base import KERNELS, NUMBERS, VECTOR_KERNELS, KernelSpec, kernel_spec
from tinytrain_compile.lower.kernels.context import (
    SIZE,
    SPEED,
    InstructionSet,
    KernelContext,
    OperandLayout,
    kernel_context,
)

__all__ = [
    "KERNELS",
    "NUMBERS",
    "SIZE",
    "SPEED",
    "VECTOR_KERNELS",
    "InstructionSet",
    "KernelContext",
    "KernelSpec",
    "OperandLayout",
    "float32",
    "int8",
    "kernel_context",
    "kernel_spec",
]
