"""Activations that are made of exponentials, and their gradients, element by element."""

from __future__ import annotations

from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, call, f32, select
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.elementwise import element_kernel, magnitude, pointwise, unary
from tinytrain_compile.ops.smooth import EluAttrs


def _softplus(x: Expr) -> Expr:
    above = select(x > f32(0), x, f32(0))
    return above + call("tt_log1pf", call("tt_expf", select(x > f32(0), f32(0) - x, x)))


def _mish_grad(dy: Expr, x: Expr) -> Expr:
    s, t = call("tt_sigmoidf", x), call("tt_tanhf", _softplus(x))
    return dy * (t + x * s * (f32(1) - t * t))


def _softsign_grad(dy: Expr, y: Expr) -> Expr:
    left = f32(1) - magnitude(y)
    return dy * (left * left)


unary("Softplus", _softplus)
unary("SoftplusGrad", lambda dy, x: dy * call("tt_sigmoidf", x))
unary("Mish", lambda x: x * call("tt_tanhf", _softplus(x)))
unary("MishGrad", _mish_grad)
unary("Softsign", lambda x: x / (f32(1) + magnitude(x)))
unary("SoftsignGrad", _softsign_grad)


@element_kernel("Elu")
def elu(node: Node, _context: KernelContext) -> KernelSpec:
    """A line above 0, an exponential below."""
    attrs = node.attrs
    assert isinstance(attrs, EluAttrs)

    def value(x: Expr) -> Expr:
        power = call("tt_expf", select(x > f32(0), f32(0), x) * f32(attrs.rate))
        return select(x > f32(0), x * f32(attrs.scale), (power - f32(1)) * f32(attrs.scale * attrs.alpha))

    return pointwise(node, value)


@element_kernel("EluGrad")
def elu_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """The slope, from the output."""
    attrs = node.attrs
    assert isinstance(attrs, EluAttrs)

    def value(dy: Expr, y: Expr) -> Expr:
        below = dy * ((y + f32(attrs.scale * attrs.alpha)) * f32(attrs.rate))
        return select(y > f32(0), dy * f32(attrs.scale), below)

    return pointwise(node, value)
