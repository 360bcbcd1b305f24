"""Activation functions and their gradients, element by element. A NaN input gives a NaN output, as in numpy."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    address,
    both,
    call,
    call_int,
    f32,
    flat_tensor,
    kernel,
    left_over,
    plain,
    select,
    tensor,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.elementwise import (
    HEAVY,
    LIGHT,
    broadcast,
    element_kernel,
    element_schedule,
    pointwise,
    unary,
)
from tinytrain_compile.ops.activation import ClipAttrs, GeluAttrs, HardSigmoidAttrs, LeakyReluAttrs
from tinytrain_compile.ops.names import operand, result


def clamp(x: Expr, low: float, high: float) -> Expr:
    """x between bounds; comparisons are written so that NaN passes through."""
    if math.isfinite(low):
        x = select(x < f32(low), f32(low), x)
    if math.isfinite(high):
        x = select(x > f32(high), f32(high), x)
    return x


def _inside(y: Expr, attrs: ClipAttrs) -> Expr | None:
    """None: everywhere."""
    above = y > f32(attrs.low) if math.isfinite(attrs.low) else None
    below = y < f32(attrs.high) if math.isfinite(attrs.high) else None
    return both([above, below])


@element_kernel("Clip")
def clip(node: Node, context: KernelContext) -> KernelSpec:
    """Clamp to the bounds."""
    attrs = node.attrs
    assert isinstance(attrs, ClipAttrs)
    return pointwise(node, lambda x: clamp(x, attrs.low, attrs.high), context, LIGHT)


@element_kernel("ClipGrad")
def clip_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Pass dy where the clip was not active."""
    attrs = node.attrs
    assert isinstance(attrs, ClipAttrs)
    if not (math.isfinite(attrs.low) or math.isfinite(attrs.high)):
        return pointwise(node, lambda dy, _y: dy)

    def passed(dy: Expr, y: Expr) -> Expr:
        inside = _inside(y, attrs)
        assert inside is not None
        return select(inside, dy, f32(0))

    return pointwise(node, passed, context, LIGHT)


def packed(
    node: Node, inside: Callable[[Expr], Expr | None], eight: Callable[[Expr], Expr] | None = None
) -> KernelSpec:
    """One bit per element, eight to a byte, the first in the lowest bit; `inside` tests an element (None: always).

    eight: makes a whole byte of the address of its first element.
    """
    size = operand(node, "y").elements
    last = left_over(size, 8)
    x = flat_tensor(node, "y")

    def byte(b: Expr) -> Expr:
        if eight is not None and not last:
            return eight(address(x, b * 8))
        bits: list[Expr] = []
        for j in range(8):
            one, zero = tirx.const(1 << j, "int32"), tirx.const(0, "int32")
            test = inside(x[b * 8 + j])
            bit = select(test, one, zero) if test is not None else one
            if last and j >= last:
                bit = tirx.if_then_else(b * 8 + j < size, bit, zero)
            bits.append(bit)
        return functools.reduce(operator.add, bits).astype("uint8")

    return KernelSpec([x], [te.compute((result(node, "mask").size_bytes,), byte, "mask")], plain)


@element_kernel("ClipMask")
def clip_mask(node: Node, context: KernelContext) -> KernelSpec:
    """Where the clip was not active."""
    attrs = node.attrs
    assert isinstance(attrs, ClipAttrs)
    return packed(node, lambda y: _inside(y, attrs), _eight(attrs) if context.uses_float_vectors else None)


def _eight(attrs: ClipAttrs) -> Callable[[Expr], Expr] | None:
    """Eight bits at a time, on vectors: those of a clip that has a lower bound."""
    if not math.isfinite(attrs.low):
        return None
    bounds = [f32(bound) for bound in (attrs.low, attrs.high) if math.isfinite(bound)]
    name = "tt_above8_f32" if len(bounds) == 1 else "tt_between8_f32"
    return lambda first: call_int(name, first, *bounds, dtype="uint8")


@kernel("MaskedGrad")
def masked_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Pass dy where the mask bit is set."""
    size = result(node, "dx").elements
    dy, mask = flat_tensor(node, "dy"), tensor(node, "mask")

    schedule = element_schedule(size, context, LIGHT)

    def element(i: Expr) -> Expr:
        bits = tirx.shift_right(mask[tirx.indexdiv(i, 8)].astype("int32"), tirx.indexmod(i, 8))
        if schedule is not plain:
            return call("tt_kept_f32x4", bits, dy[i])
        return select(tirx.NE(tirx.bitwise_and(bits, 1), 0), dy[i], f32(0))

    return KernelSpec([dy, mask], [te.compute((size,), element, "out")], schedule)


def _leaky(node: Node, context: KernelContext) -> KernelSpec:
    attrs = node.attrs
    assert isinstance(attrs, LeakyReluAttrs)
    slope = f32(attrs.alpha)
    return pointwise(node, lambda v, *sign: select((sign or (v,))[0] > f32(0), v, v * slope), context, LIGHT)


element_kernel("LeakyRelu", "LeakyReluGrad")(_leaky)
kernel("PRelu")(lambda node, _f: broadcast(node, lambda x, slope: select(x > f32(0), x, x * slope)))
kernel("PReluGrad")(lambda node, _f: broadcast(node, lambda dy, x, slope: select(x > f32(0), dy, dy * slope)))

unary("Sigmoid", lambda x: call("tt_sigmoidf", x))
unary("SigmoidGrad", lambda dy, y: dy * y * (f32(1) - y), LIGHT)
unary("Tanh", lambda x: call("tt_tanhf", x))
unary("TanhGrad", lambda dy, y: dy * (f32(1) - y * y), LIGHT)
unary("Silu", lambda x: x * call("tt_sigmoidf", x))


def _silu_grad(dy: Expr, x: Expr) -> Expr:
    s = call("tt_sigmoidf", x)
    return dy * (s * (f32(1) + x * (f32(1) - s)))


unary("SiluGrad", _silu_grad)


@element_kernel("HardSigmoid", "HardSigmoidGrad")
def hard_sigmoid(node: Node, _context: KernelContext) -> KernelSpec:
    """clip(alpha x + beta, 0, 1), and its slope from the output."""
    attrs = node.attrs
    assert isinstance(attrs, HardSigmoidAttrs)
    if node.op == "HardSigmoid":
        return pointwise(node, lambda x: clamp(x * f32(attrs.alpha) + f32(attrs.beta), 0, 1))
    slope = f32(attrs.alpha)
    return pointwise(node, lambda dy, y: select(tirx.And(y > f32(0), y < f32(1)), dy * slope, f32(0)))


unary("HardSwish", lambda x: x * clamp(x * f32(1 / 6) + f32(0.5), 0, 1))
unary(
    "HardSwishGrad",
    lambda dy, x: dy * select(x <= f32(-3), f32(0), select(x >= f32(3), f32(1), x * f32(1 / 3) + f32(0.5))),
)

_SCALE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh(x: Expr) -> Expr:
    return call("tt_tanhf", f32(_SCALE) * (x + f32(_CUBIC) * x * x * x))


def _normal(x: Expr) -> Expr:
    return f32(0.5) * (f32(1) + call("tt_erff", x * f32(math.sqrt(0.5))))


@element_kernel("Gelu", "GeluGrad")
def gelu(node: Node, context: KernelContext) -> KernelSpec:
    """x times the normal distribution function, and its slope."""
    attrs = node.attrs
    assert isinstance(attrs, GeluAttrs)

    def slope(x: Expr) -> Expr:
        if attrs.tanh:
            t = _gelu_tanh(x)
            inner = f32(_SCALE) * (f32(1) + f32(3 * _CUBIC) * x * x)
            return f32(0.5) * (f32(1) + t) + f32(0.5) * x * (f32(1) - t * t) * inner
        density = call("tt_expf", f32(-0.5) * x * x) * f32(1 / math.sqrt(2 * math.pi))
        return _normal(x) + x * density

    most = 0 if attrs.tanh else HEAVY
    if node.op == "GeluGrad":
        return pointwise(node, lambda dy, x: dy * slope(x), context, most)
    if attrs.tanh:
        return pointwise(node, lambda x: f32(0.5) * x * (f32(1) + _gelu_tanh(x)))
    return pointwise(node, lambda x: x * _normal(x), context, most)
