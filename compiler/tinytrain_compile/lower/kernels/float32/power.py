"""Powers, by exponential and logarithm."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from tinytrain_compile.lower.kernels.base import call, f32, kernel, select
from tinytrain_compile.lower.kernels.float32.elementwise import broadcast


def _of_base(dy: Expr, a: Expr, b: Expr) -> Expr:
    slope = b * call("tt_powf", a, b - f32(1))
    return select(tirx.EQ(b, f32(0)), f32(0), dy * slope)


def _of_exponent(dy: Expr, a: Expr, b: Expr) -> Expr:
    slope = dy * (call("tt_powf", a, b) * call("tt_logf", a))
    return select(tirx.EQ(a, f32(0)), select(b < f32(0), slope, f32(0)), slope)


kernel("Power")(lambda node, _context: broadcast(node, lambda a, b: call("tt_powf", a, b)))
kernel("PowerGradBase")(lambda node, _context: broadcast(node, _of_base))
kernel("PowerGradExponent")(lambda node, _context: broadcast(node, _of_exponent))
