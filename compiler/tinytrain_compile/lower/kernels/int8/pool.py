"""The int8 error of a MaxPool whose windows overlap."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, call_int, i32, kernel, tensors
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.pool import PoolWindow, channel_tiles, won_gradient
from tinytrain_compile.lower.kernels.int8.operands import error_output
from tinytrain_compile.lower.schedules import tile_reduction
from tinytrain_compile.ops.int8.pointwise import LIFT
from tinytrain_compile.ops.int8.pool import QMaxPoolGradAttrs
from tinytrain_compile.ops.names import attrs_of, result


@kernel("QMaxPoolGrad")
def qmax_pool_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """Sum, for every pixel, the errors of the windows in which it won, then shift to the resulting error's exponent."""
    attrs, shape = attrs_of(node, QMaxPoolGradAttrs), result(node, "error").shape
    peak, p_out, p_in, g, index = tensors(node, "peak", "p_out", "p_in", "g", "index")
    window = PoolWindow(attrs.pool, attrs.input_hw)
    acc = te.compute(shape, won_gradient(attrs, window, index, lambda *i: i32(g[i]), i32(0)), "acc")

    def element(*i: Expr) -> Expr:
        exponent = p_in[0] - p_out[0] - i32(LIFT)
        return error_output(call_int("tt_shift", acc[i] * i32(1 << LIFT), exponent), peak)

    out = te.compute(shape, element, "out")
    tiles = channel_tiles(shape[3])
    return KernelSpec([peak, p_out, p_in, g, index], [out, None], lambda sch: tile_reduction(sch, tiles))
