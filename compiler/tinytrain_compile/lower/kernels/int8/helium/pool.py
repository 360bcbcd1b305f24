"""The largest int8 under windows, sixteen channels at a time: one call of a helper (tt_mve_pool.h)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    called,
    first,
    i32,
    plain,
    struct,
    tensor,
    vector_kernel,
    written,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.ops.names import attrs_of, operand, result
from tinytrain_compile.ops.pool import PoolAttrs


@vector_kernel("MaxPool")
def vector_max_pool(node: Node, _context: KernelContext) -> KernelSpec | None:
    """Compute a MaxPool of int8, without dilations."""
    attrs, image, shape = attrs_of(node, PoolAttrs), operand(node, "x"), result(node, "y").shape
    if image.dtype != "int8" or attrs.dilations != (1, 1):
        return None
    x = tensor(node, "x")
    geometry = struct("tt_image_of", (*image.shape, *attrs.pads[:2], 0))
    window = struct("tt_taps_of", (*attrs.kernel, *attrs.strides, *attrs.kernel))

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called("tt_max_pool8", first(y), first(given[0]), geometry, window, *map(i32, shape[1:3]))

    return KernelSpec([x], [written([x], shape, "int8", body)], plain)
