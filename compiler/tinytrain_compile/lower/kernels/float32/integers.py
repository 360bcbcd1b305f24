"""Arithmetic of integers, and conversion of types."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, f32, kernel
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.elementwise import broadcast, pointwise
from tinytrain_compile.ops.integers import CastAttrs
from tinytrain_compile.ops.names import attrs_of

_LIMIT = 2.0**31
"""The smallest float32 above all int32."""


def wrapped(function: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """Return a function of two int32 that wraps around: it computes on unsigned numbers, whose sums C defines."""
    return function(a.astype("uint32"), b.astype("uint32")).astype("int32")


def _enter(op: str, function: Callable[[Expr, Expr], Expr]) -> None:
    kernel(op)(lambda node, _context: broadcast(node, lambda a, b: wrapped(function, a, b)))


_enter("IntegerAdd", lambda a, b: a + b)
_enter("IntegerSub", lambda a, b: a - b)
_enter("IntegerMul", lambda a, b: a * b)


def _whole(x: Expr) -> Expr:
    """Cut the fraction off a real number. Only numbers in the range of int32 are converted: C leaves others
    undefined."""
    low, high = tirx.const(-(2**31), "int32"), tirx.const(2**31 - 1, "int32")
    beyond = tirx.if_then_else(x >= f32(_LIMIT), high, tirx.if_then_else(x < f32(-_LIMIT), low, tirx.const(0, "int32")))
    return tirx.if_then_else(tirx.And(x >= f32(-_LIMIT), x < f32(_LIMIT)), x.astype("int32"), beyond)


@kernel("Cast")
def cast(node: Node, _context: KernelContext) -> KernelSpec:
    """Convert element by element."""
    attrs = attrs_of(node, CastAttrs)
    cuts = attrs.to == "int32" and node.inputs[0].dtype == "float32"
    return pointwise(node, _whole if cuts else _converted(attrs.to))


def _converted(to: str) -> Callable[[Expr], Expr]:
    def convert(x: Expr) -> Expr:
        return x.astype(to)

    return convert
