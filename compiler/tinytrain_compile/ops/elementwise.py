"""Arithmetic element by element: each operator is one formula, with its gradient (see ops/arithmetic.py).

`unary` enters an operator of one operand and its backward operator. Its reference, exact twin, kernel and, if ONNX has
an operator of this name, import follow. Besides, an addition needs only a test case (testing/ops/case_pointwise.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.arithmetic import EXACT, REFERENCE, Arithmetic, Formula
from tinytrain_compile.ops.base import (
    ELEMENTWISE,
    Bounds,
    GradientContext,
    GradientRule,
    InferRule,
    NonDifferentiable,
    ReferenceRule,
    Trait,
    operator,
    traits,
)
from tinytrain_compile.ops.names import emits, expect_float, operand, operands, result
from tinytrain_compile.ops.rows import element_rows

SECOND_ORDER = NonDifferentiable("second derivatives are never needed")
LIGHT, HEAVY = 4, 1
"""Vectors per turn of a kernel's loop: for functions of a few instructions, and for others."""


@dataclass(frozen=True)
class Elementwise:
    """Formula of an elementwise operator.

    lanes: vectors per turn of the kernel's loop, on cores that have vectors; 0: vectors cannot compute the formula. A
    function of the attributes, if the formula depends on them.
    """

    formula: Formula
    lanes: int | Callable[[Any], int]
    has_attrs: bool

    def of(self, m: Arithmetic, elements: tuple[Any, ...], attrs: Attrs) -> Any:
        """Return an element of the result."""
        formula = cast("Callable[..., Any]", self.formula)  # with one argument per operand
        return formula(m, *elements, *((attrs,) if self.has_attrs else ()))

    def lanes_of(self, attrs: Attrs) -> int:
        """Return the vectors in a turn of the loop."""
        return self.lanes if isinstance(self.lanes, int) else self.lanes(attrs)


FORMULAS: dict[str, Elementwise] = {}
"""Formulas by the name of the operator."""


def broadcast_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    """Infer the broadcast shape, with the layout of whichever operand has that shape.

    ValueError for truth values and indices, and for shapes that do not broadcast.
    """
    a, b = inputs
    expect_float("arithmetic", a, b)
    shape = np.broadcast_shapes(a.shape, b.shape)
    layout = a.layout if a.shape == shape else b.layout if b.shape == shape else ""
    return (TensorType(tuple(shape), "float32", layout),)


def same_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    """Infer the type of the first operand; ValueError if shapes differ."""
    first, *others = inputs
    expect_float("arithmetic", *inputs)
    if any(value.shape != first.shape for value in others):
        raise ValueError(f"shapes differ: {[value.shape for value in inputs]}")
    return (first.type,)


def upstream(dys: tuple[Value | None, ...]) -> Value:
    """Return the gradient of an op's only output."""
    dy = dys[0]
    assert dy is not None
    return dy


def elementwise(
    name: str,
    doc: str,
    formula: Formula,
    gradient: GradientRule | NonDifferentiable,
    inputs: tuple[str, ...],
    *,
    output: str = "y",
    infer: InferRule = same_infer,
    attrs: type[Attrs] = Attrs,
    lanes: int | Callable[[Any], int] = 0,
    reuses: tuple[str, ...] | None = None,
    by_rows: bool = True,
    traits: frozenset[Trait] = ELEMENTWISE,
    bounds: Bounds | None = None,
    says: Callable[[Node], str] | None = None,
) -> None:
    """Register an operator by its formula. reuses: None: all operands; see OpDef and Elementwise."""
    entry = FORMULAS[name] = Elementwise(formula, lanes, attrs is not Attrs)

    def reading(m: Arithmetic) -> ReferenceRule:
        def rule(arrays: tuple[Array, ...], given: Attrs) -> tuple[Array, ...]:
            with np.errstate(all="ignore"):  # infinite and invalid elements are results
                element = entry.of(m, arrays, given)
            return (np.asarray(element).astype(np.result_type(*arrays), copy=False),)

        return rule

    more: dict[str, Any] = {"rows": element_rows} if by_rows else {}
    operator(
        name,
        doc,
        infer,
        reading(REFERENCE),
        gradient,
        attrs,
        inputs=inputs,
        outputs=(output,),
        reuses=inputs if reuses is None else reuses,
        traits=traits,
        bounds=bounds,
        says=says,
        exact=reading(EXACT),
        **more,
    )


@dataclass(frozen=True)
class Slope:
    """The backward operator of a unary one, named <op>Grad: formula(m, dy, kept[, attributes]) -> dx.

    kept: the tensor that it reads besides dy, "x" or "y". lanes: see Elementwise. traits, says: of the backward
    operator.
    """

    kept: str
    doc: str
    formula: Formula
    lanes: int | Callable[[Any], int] = 0
    traits: frozenset[Trait] = ELEMENTWISE
    says: Callable[[Node], str] | None = None


def unary(
    name: str,
    doc: str,
    formula: Formula,
    gradient: Slope | GradientRule | NonDifferentiable,
    attrs: type[Attrs] = Attrs,
    lanes: int | Callable[[Any], int] = 0,
    traits: frozenset[Trait] = ELEMENTWISE,
    bounds: Bounds | None = None,
    says: Callable[[Node], str] | None = None,
) -> None:
    """Register an operator of one operand, which it may overwrite, and its backward operator if that is a Slope."""
    rule = emits(f"{name}Grad", gradient.kept) if isinstance(gradient, Slope) else gradient
    elementwise(name, doc, formula, rule, ("x",), attrs=attrs, lanes=lanes, traits=traits, bounds=bounds, says=says)
    if isinstance(gradient, Slope):
        backward(f"{name}Grad", gradient, attrs)


def backward(name: str, slope: Slope, attrs: type[Attrs]) -> None:
    """Register a backward operator, which may overwrite either operand."""
    inputs = ("dy", slope.kept)
    more: dict[str, Any] = {
        "output": "dx",
        "attrs": attrs,
        "lanes": slope.lanes,
        "traits": slope.traits,
        "says": slope.says,
    }
    elementwise(name, slope.doc, slope.formula, SECOND_ORDER, inputs, **more)


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


_BINARY: dict[str, Any] = {"infer": broadcast_infer, "inputs": ("a", "b")}
_PLAIN = traits("elementwise", "ieee")
_SUM, _DIFFERENCE = _PLAIN | traits("requantised", "adds", "offset"), _PLAIN | traits("offset")
elementwise("Add", "a + b", lambda _m, a, b: a + b, _add_gradient, **_BINARY, lanes=LIGHT, traits=_SUM)
elementwise("Sub", "a - b", lambda _m, a, b: a - b, _sub_gradient, **_BINARY, lanes=LIGHT, traits=_DIFFERENCE)
elementwise("Mul", "a * b", lambda _m, a, b: a * b, _mul_gradient, **_BINARY, lanes=LIGHT, traits=_PLAIN)
elementwise("Div", "a / b", lambda _m, a, b: a / b, _div_gradient, **_BINARY, traits=_PLAIN)


def _sin_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    return {0: ctx.emit("Mul", (upstream(dys), ctx.emit("Cos", (operand(node, "x"),))))}


def _cos_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    product = ctx.emit("Mul", (upstream(dys), ctx.emit("Sin", (operand(node, "x"),))))
    return {0: ctx.emit("Neg", (product,))}


unary("Neg", "-x", lambda _m, x: 0 - x, lambda ctx, _n, dys: {0: ctx.emit("Neg", (upstream(dys),))}, lanes=LIGHT)
unary(
    "Abs",
    "|x|",
    lambda m, x: m.abs(x),
    Slope(
        "x",
        "dy times the sign of x (0 at 0)",
        lambda m, dy, x: m.where(x > 0, dy, m.where(x < 0, 0 - dy, 0.0)),
    ),
)
unary(
    "Sign",
    "1 above 0, -1 below 0, else 0.",
    lambda m, x: m.sign(x),
    NonDifferentiable("a sign is piecewise constant", flat=True),
)
unary("Sin", "Sine of an angle in radians.", lambda m, x: m.sin(x), _sin_gradient)
unary("Cos", "Cosine of an angle in radians.", lambda m, x: m.cos(x), _cos_gradient)
unary(
    "Sqrt",
    "Square root.",
    lambda m, x: m.sqrt(x),
    Slope("y", "dy / (2 y)", lambda _m, dy, y: dy / (y + y)),
)
unary(
    "Exp",
    "e to the x.",
    lambda m, x: m.exp(x),
    lambda ctx, n, dys: {0: ctx.emit("Mul", (upstream(dys), result(n, "y")))},
    lanes=HEAVY,
)
unary(
    "Log",
    "Natural logarithm.",
    lambda m, x: m.log(x),
    lambda ctx, n, dys: {0: ctx.emit("Div", (upstream(dys), operand(n, "x")))},
)
unary(
    "Erf",
    "Error function.",
    lambda m, x: m.erf(x),
    Slope(
        "x",
        "dy * 2/sqrt(pi) exp(-x^2)",
        lambda m, dy, x: dy * (m.exp(0 - x * x) * (2 / math.sqrt(math.pi))),
        HEAVY,
    ),
    lanes=HEAVY,
)
unary(
    "Norm",
    "Square root of a sum of squares: its gradient at 0 is 0.",
    lambda m, x: m.sqrt(x),
    Slope("y", "dy / (2 y), 0 where y is 0", lambda m, dy, y: m.where(y > 0, dy / (y + y), 0.0)),
)


# ---- powers of any exponent, which may be trained; gradients as PyTorch has them where a or b is 0 -------------------


def _power_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    dy, a, b = inputs
    if np.broadcast_shapes(dy.shape, a.shape, b.shape) != dy.shape:
        raise ValueError(f"the gradient of a power: {dy.shape}, {a.shape}, {b.shape}")
    return (dy.type,)


def _power_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    ops, given = ("PowerGradBase", "PowerGradExponent"), (upstream(dys), *operands(node).values())
    return {i: ctx.sum_to(ctx.emit(op, given), node.inputs[i]) for i, op in enumerate(ops) if ctx.wants(i)}


def _of_base(m: Arithmetic, dy: Any, a: Any, b: Any) -> Any:
    return m.where(m.equal(b, 0), 0.0, dy * (b * m.power(a, b - 1)))


def _of_exponent(m: Arithmetic, dy: Any, a: Any, b: Any) -> Any:
    slope = dy * (m.power(a, b) * m.log(a))
    return m.where(m.equal(a, 0), m.where(b < 0, slope, 0.0), slope)


elementwise(
    "Power",
    "a to the power of b; of a negative a only for a whole b, else NaN.",
    lambda m, a, b: m.power(a, b),
    _power_gradient,
    **_BINARY,
    by_rows=False,
)
for _name, _doc, _output, _formula in (
    ("PowerGradBase", "dy b a^(b - 1), 0 where b is 0.", "da", _of_base),
    ("PowerGradExponent", "dy a^b log(a), 0 where a is 0 and b is not negative.", "db", _of_exponent),
):
    elementwise(
        _name,
        _doc,
        _formula,
        SECOND_ORDER,
        ("dy", "a", "b"),
        output=_output,
        infer=_power_infer,
        reuses=("dy",),
        by_rows=False,
    )
