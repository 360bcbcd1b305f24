"""Common parts of ops that make an int8 error: they read peak, p_out, ... (OpDef.error) and write error and peak.

The error is masked where the clamp that it goes back through was active, its largest magnitude is gathered, and then it
is saturated (docs/int8.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import NonDifferentiable, op_def
from tinytrain_compile.ops.names import named

BACKWARD = NonDifferentiable("the quantised graph is made from a differentiated one")


@dataclass(frozen=True)
class MaskAttrs(Attrs):
    """Meaning of the last operand, which shows where a clamp to [low, high] was active.

    kind: "" (no mask), "value" (the clamp's int8 output) or "bits" (one bit per element, set where it passed). low is
    -129, or high 128, if the clamp has no such end: int8 saturates there, and errors pass.
    """

    kind: str = ""
    low: int = -128
    high: int = 127

    @property
    def operands(self) -> tuple[str, ...]:
        """Name of the mask operand, if there is a mask."""
        return ("mask",) if self.kind else ()

    def passes(self, value: Any) -> Any:
        """Tell whether the clamp let an int8 value pass: it is at neither end."""
        return (value > self.low) & (value < self.high)


NO_CLAMP = MaskAttrs()


def expect_dtypes(op: str, values: tuple[Value, ...], dtypes: tuple[str, ...]) -> None:
    """Raise ValueError unless these operands have these element types."""
    if tuple(v.dtype for v in values) != dtypes:
        raise ValueError(f"{op} takes {dtypes}, got {[v.dtype for v in values]}")


def masked(values: Any, mask: Array | None, attrs: MaskAttrs) -> Any:
    """Set elements to zero where the clamp was active."""
    if not attrs.kind:
        return values
    assert mask is not None
    if attrs.kind == "value":
        return np.where(attrs.passes(mask), values, 0)
    shape: tuple[int, ...] = values.shape
    keep: Array = np.unpackbits(mask.astype(np.uint8), bitorder="little")[: math.prod(shape)]
    return np.where(np.reshape(keep, shape), values, 0)


def error_infer(
    op: str, like: TensorType, inputs: tuple[Value, ...], attrs: Attrs, mask: MaskAttrs = NO_CLAMP
) -> tuple[TensorType, ...]:
    """Return types of (error, peak) after checking peak, exponents and mask."""
    o, kept = named(op, inputs, attrs), op_def(op).error
    assert kept is not None
    state = o.several(kept.peak, kept.exponent, *kept.read)
    expect_dtypes(op, state, ("int32",) * len(state))
    if mask.kind:
        expect_dtypes(op, (o["mask"],), ({"value": "int8", "bits": "bits"}[mask.kind],))
        if o["mask"].shape != like.shape:
            raise ValueError(f"{op}: mask {o['mask'].shape}, error {like.shape}")
    return (TensorType(like.shape, "int8", like.layout), TensorType((), "int32"))


def finish_error(values: Any, peak: Array, mask: Array | None = None, attrs: MaskAttrs = NO_CLAMP) -> tuple[Array, ...]:
    """Mask, gather the peak, saturate to +-127."""
    kept = masked(values, mask, attrs)
    return np.clip(kept, -127, 127).astype(np.int8), fx.error_peak(kept, peak)
