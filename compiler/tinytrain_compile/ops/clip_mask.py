"""The mask of a clip: one bit per element, kept for the backward pass instead of the clip's output."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops.activation import ClipAttrs, inside
from tinytrain_compile.ops.base import NonDifferentiable, OpDef, register
from tinytrain_compile.ops.elementwise import SECOND_ORDER
from tinytrain_compile.ops.rows import element_rows


def _mask_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (y,) = inputs
    return (TensorType(y.shape, "bits", y.layout),)


def _mask(arrays: tuple[Array, ...], attrs: ClipAttrs) -> tuple[Array, ...]:
    (y,) = arrays
    return (np.packbits(inside(y, attrs).ravel(), bitorder="little"),)


register(
    OpDef(
        "ClipMask",
        "One bit per element: low < y < high. Kept for the backward pass instead of y (32 times smaller).",
        _mask_infer,
        _mask,
        NonDifferentiable("a mask is piecewise constant"),
        ClipAttrs,
        rows=element_rows,
        inputs=("y",),
        outputs=("mask",),
    )
)


def _masked_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    dy, mask = inputs
    if dy.shape != mask.shape or mask.dtype != "bits":
        raise ValueError(f"expected a gradient and its mask, got {dy.type} and {mask.type}")
    return (dy.type,)


def _masked(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    dy, bits = arrays
    keep = np.unpackbits(bits.astype(np.uint8), count=dy.size, bitorder="little").reshape(dy.shape)
    return (np.where(keep, dy, 0).astype(dy.dtype),)


register(
    OpDef(
        "MaskedGrad",
        "dy where the mask is set, else 0.",
        _masked_infer,
        _masked,
        SECOND_ORDER,
        inputs=("dy", "mask"),
        outputs=("dx",),
        reuses=("dy",),
    )
)
