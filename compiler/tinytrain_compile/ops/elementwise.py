"""Arithmetic element by element, with numpy broadcasting for the binary ops."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import scalar_math
from tinytrain_compile.ops._common import expect_float
from tinytrain_compile.ops.base import ELEMENTWISE, GradientContext, GradientRule, NonDifferentiable, OpDef, register
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.ops.rows import element_rows

SECOND_ORDER = NonDifferentiable("second derivatives are never needed")

erf_exact = np.vectorize(math.erf, otypes=[np.float64])
"""The error function in double precision, element by element."""


def erf(x: Array) -> Array:
    """The error function in the dtype of x."""
    return erf_exact(x).astype(x.dtype).reshape(x.shape)


def broadcast_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    """Type of a binary element-wise op: the broadcast shape, the layout of whichever operand has that shape.

    ValueError for truth values and indices, and for shapes that do not broadcast.
    """
    a, b = inputs
    expect_float("arithmetic", a, b)
    shape = np.broadcast_shapes(a.shape, b.shape)
    layout = a.layout if a.shape == shape else b.layout if b.shape == shape else ""
    return (TensorType(tuple(shape), "float32", layout),)


def same_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    """Type of an op whose operands all have the shape of the first and whose output has it too (ValueError: others)."""
    first, *others = inputs
    expect_float("arithmetic", *inputs)
    if any(value.shape != first.shape for value in others):
        raise ValueError(f"shapes differ: {[value.shape for value in inputs]}")
    return (first.type,)


def upstream(dys: tuple[Value | None, ...]) -> Value:
    """The gradient of an op's only output."""
    dy = dys[0]
    assert dy is not None
    return dy


def _binary(
    name: str, doc: str, function: Callable[[Array, Array], Array], gradient: GradientRule | NonDifferentiable
) -> None:
    register(
        OpDef(
            name,
            doc,
            broadcast_infer,
            lambda arrays, _attrs: (function(*arrays),),
            gradient,
            inputs=("a", "b"),
            reuses=("a", "b"),
            rows=element_rows,
            traits=ELEMENTWISE,
        )
    )


def _add_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    return {i: ctx.sum_to(upstream(dys), value) for i, value in enumerate(node.inputs) if ctx.wants(i)}


def _sub_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    dy, (a, b) = upstream(dys), node.inputs
    grads = {0: ctx.sum_to(dy, a)} if ctx.wants(0) else {}
    if ctx.wants(1):
        grads[1] = ctx.emit("Neg", (ctx.sum_to(dy, b),))
    return grads


def _mul_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    dy, (a, b) = upstream(dys), node.inputs
    wanted = [(i, own, other) for i, (own, other) in enumerate(((a, b), (b, a))) if ctx.wants(i)]
    return {i: ctx.sum_to(ctx.emit("Mul", (dy, other)), own) for i, own, other in wanted}


def _div_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    dy, (a, b) = upstream(dys), node.inputs
    quotient = ctx.emit("Div", (dy, b))
    grads = {0: ctx.sum_to(quotient, a)} if ctx.wants(0) else {}
    if ctx.wants(1):  # d(a/b)/db = -(a/b)/b
        product = ctx.sum_to(ctx.emit("Mul", (quotient, result(node, "y"))), b)
        grads[1] = ctx.emit("Neg", (product,))
    return grads


_binary("Add", "a + b", lambda a, b: a + b, _add_gradient)
_binary("Sub", "a - b", lambda a, b: a - b, _sub_gradient)
_binary("Mul", "a * b", lambda a, b: a * b, _mul_gradient)


_binary("Div", "a / b", lambda a, b: a / b, _div_gradient)


def unary(
    name: str,
    doc: str,
    function: Callable[[Array], Array],
    gradient: GradientRule | NonDifferentiable,
    exact: Callable[[Array], Array],
) -> None:
    """Register an op of one operand that works element by element and may overwrite its operand."""
    register(
        OpDef(
            name,
            doc,
            same_infer,
            lambda arrays, _attrs: (function(*arrays),),
            gradient,
            inputs=("x",),
            reuses=("x",),
            rows=element_rows,
            traits=ELEMENTWISE,
            exact=lambda arrays, _attrs: (exact(*arrays),),
        )
    )


def gradient_op(
    name: str,
    doc: str,
    function: Callable[[Array, Array], Array],
    kept: str,
    exact: Callable[[Array, Array], Array] | None = None,
) -> None:
    """Register the backward op of a unary op: (dy, kept: x or y) -> dx, which may overwrite either operand."""
    register(
        OpDef(
            name,
            doc,
            same_infer,
            lambda arrays, _attrs: (function(*arrays),),
            SECOND_ORDER,
            inputs=("dy", kept),
            outputs=("dx",),
            reuses=("dy", kept),
            rows=element_rows,
            traits=ELEMENTWISE,
            exact=None if exact is None else lambda arrays, _attrs: (exact(*arrays),),
        )
    )


def from_output(op: str) -> GradientRule:
    """Gradient rule of a unary op whose backward op reads (dy, y)."""
    return lambda ctx, node, dys: {0: ctx.emit(op, (upstream(dys), result(node, "y")), node.attrs)}


def from_input(op: str) -> GradientRule:
    """Gradient rule of a unary op whose backward op reads (dy, x)."""
    return lambda ctx, node, dys: {0: ctx.emit(op, (upstream(dys), operand(node, "x")), node.attrs)}


def _sin_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    return {0: ctx.emit("Mul", (upstream(dys), ctx.emit("Cos", (operand(node, "x"),))))}


def _cos_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    product = ctx.emit("Mul", (upstream(dys), ctx.emit("Sin", (operand(node, "x"),))))
    return {0: ctx.emit("Neg", (product,))}


_SLOPE = 2 / math.sqrt(math.pi)

unary("Neg", "-x", lambda x: -x, lambda ctx, _node, dys: {0: ctx.emit("Neg", (upstream(dys),))}, lambda x: 0 - x)
unary("Abs", "|x|", np.abs, from_input("AbsGrad"), np.abs)
gradient_op(
    "AbsGrad",
    "dy times the sign of x (0 at 0)",
    lambda dy, x: np.where(x > 0, dy, np.where(x < 0, 0 - dy, 0)).astype(dy.dtype),
    "x",
)
unary(
    "Sign",
    "1 above 0, -1 below 0, else 0.",
    lambda x: np.where(x > 0, 1, np.where(x < 0, -1, 0)).astype(x.dtype),
    NonDifferentiable("a sign is piecewise constant", flat=True),
    lambda x: np.where(x > 0, 1, np.where(x < 0, -1, 0)).astype(np.float32),
)
unary("Sin", "Sine of an angle in radians.", np.sin, _sin_gradient, scalar_math.sin)
unary("Cos", "Cosine of an angle in radians.", np.cos, _cos_gradient, scalar_math.cos)
unary("Sqrt", "Square root.", np.sqrt, from_output("SqrtGrad"), scalar_math.sqrt)
unary(
    "Exp",
    "e to the x.",
    np.exp,
    lambda ctx, n, dys: {0: ctx.emit("Mul", (upstream(dys), result(n, "y")))},
    scalar_math.exp,
)
unary(
    "Log",
    "Natural logarithm.",
    np.log,
    lambda ctx, n, dys: {0: ctx.emit("Div", (upstream(dys), operand(n, "x")))},
    scalar_math.log,
)
unary("Erf", "Error function.", erf, from_input("ErfGrad"), scalar_math.erf)
unary(
    "Norm",
    "Square root of a sum of squares: its gradient at 0 is 0.",
    np.sqrt,
    from_output("NormGrad"),
    scalar_math.sqrt,
)
gradient_op(
    "NormGrad", "dy / (2 y), 0 where y is 0", lambda dy, y: np.where(y > 0, dy / (2 * y), 0).astype(dy.dtype), "y"
)
gradient_op("SqrtGrad", "dy / (2 y)", lambda dy, y: dy / (2 * y), "y")
gradient_op(
    "ErfGrad",
    "dy * 2/sqrt(pi) exp(-x^2)",
    lambda dy, x: dy * np.exp(-x * x) * x.dtype.type(_SLOPE),
    "x",
    lambda dy, x: dy * (scalar_math.exp(0 - x * x) * np.float32(_SLOPE)),
)
