"""Element-wise operators, activations, and nodes that only pass a tensor on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, constant_entry, plain
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.graph.operands import broadcast, common_order, constant_input, number, scalar
from tinytrain_compile.frontend.operators.patterns import fuse_gate, fuse_gelu, fuse_mish
from tinytrain_compile.ir.types import NO_ATTRS, Attrs, DType, Value
from tinytrain_compile.ops.activation import ClipAttrs, GeluAttrs, HardSigmoidAttrs, LeakyReluAttrs
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.dropout import DropoutAttrs
from tinytrain_compile.ops.integers import CastAttrs
from tinytrain_compile.ops.smooth import EluAttrs


def unary(ctx: ImportContext, node: OnnxNode, op: str, attrs: Attrs = NO_ATTRS, to: str = "") -> None:
    """Emit an op that keeps shape, axis order and columns; `to` is the ONNX tensor that it computes."""
    x = ctx.entry(node.input(0))
    assert x.value is not None
    y = ctx.emit(node, op, (x.value,), attrs)
    ctx.define(to or node.output(0), replace(x, value=y))


def _same_name(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    if x.value is not None and x.dtype == "int32" and node.op in ("Abs", "Neg"):
        zero = ctx.constant(np.zeros((), np.int32), f"{node.name}.zero", node)
        minus = ctx.emit(node, "IntegerSub", (zero, x.value), suffix="" if node.op == "Neg" else "minus")
        y = minus if node.op == "Neg" else larger(ctx, node, (x.value, minus))
        ctx.define(node.output(0), replace(x, value=y))
        return
    unary(ctx, node, node.op)


def larger(ctx: ImportContext, node: OnnxNode, pair: tuple[Value, Value], smaller: bool = False) -> Value:
    """Return the larger of two integers, or the smaller one."""
    above = ctx.emit(node, "Greater", reversed(pair) if smaller else pair, suffix="above")
    return ctx.emit(node, "Where", (above, *pair))


def _relu(ctx: ImportContext, node: OnnxNode) -> None:
    unary(ctx, node, "Clip", ClipAttrs(0.0, math.inf))


def _clip(ctx: ImportContext, node: OnnxNode) -> None:
    rank = max(1, ctx.entry(node.input(0)).rank)
    for name in filter(None, (node.input(1), node.input(2))):  # scalars in the standard, of one axis in onnxruntime
        if ctx.has(name) and ctx.entry(name).rank > rank:
            raise ValueError(f"the bound {name} must be a scalar")
    if ctx.entry(node.input(0)).dtype == "int32":
        _clip_integers(ctx, node)
        return
    low, high = number(ctx, node, 1, "min", -math.inf), number(ctx, node, 2, "max", math.inf)
    unary(ctx, node, "Clip", ClipAttrs(min(low, high), high))  # ONNX: max wins where min > max


def _clip_integers(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    assert x.value is not None
    y = x.value
    for index, what in ((1, "min"), (2, "max")):
        bound = constant_input(ctx, node, index, what)
        if bound is not None:
            limit = np.clip(bound.reshape(()), -(2**31), 2**31 - 1)
            y = larger(ctx, node, (y, ctx.constant(limit, f"{node.name}.{what}", node)), what == "max")
    ctx.define(node.output(0), replace(x, value=y))


def _leaky_relu(ctx: ImportContext, node: OnnxNode) -> None:
    unary(ctx, node, "LeakyRelu", LeakyReluAttrs(node.number("alpha", 0.01)))


def _hard_sigmoid(ctx: ImportContext, node: OnnxNode) -> None:
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5 and fuse_gate(ctx, node, "HardSwish"):
        return
    unary(ctx, node, "HardSigmoid", HardSigmoidAttrs(alpha, beta))


def _sigmoid(ctx: ImportContext, node: OnnxNode) -> None:
    if not fuse_gate(ctx, node, "Silu"):
        unary(ctx, node, "Sigmoid")


def _softplus(ctx: ImportContext, node: OnnxNode) -> None:
    if not fuse_mish(ctx, node):
        unary(ctx, node, "Softplus")


def _exponential(ctx: ImportContext, node: OnnxNode, alpha: float, scale: float = 1.0, rate: float = 1.0) -> None:
    if not (0 <= alpha < math.inf and 0 < scale < math.inf and 0 < rate < math.inf):
        raise Unsupported("alpha", "a negative slope has no gradient from the output", "alpha and gamma above 0")
    unary(ctx, node, "Elu", EluAttrs(alpha, scale, rate))


def _elu(ctx: ImportContext, node: OnnxNode) -> None:
    _exponential(ctx, node, node.number("alpha", 1.0))


def _selu(ctx: ImportContext, node: OnnxNode) -> None:
    _exponential(ctx, node, node.number("alpha", 1.6732632423543772), node.number("gamma", 1.0507009873554805))


def _celu(ctx: ImportContext, node: OnnxNode) -> None:
    alpha = node.number("alpha", 1.0)
    _exponential(ctx, node, alpha, rate=1.0 / alpha if alpha else math.inf)


def _swish(ctx: ImportContext, node: OnnxNode) -> None:
    alpha = node.number("alpha", 1.0)
    if alpha == 1.0:
        unary(ctx, node, "Silu")
        return
    x = ctx.entry(node.input(0))
    assert x.value is not None
    factor = ctx.number(node, "alpha", alpha)
    gate = ctx.emit(node, "Sigmoid", (ctx.emit(node, "Mul", (x.value, factor), suffix="scaled"),), suffix="gate")
    ctx.define(node.output(0), replace(x, value=ctx.emit(node, "Mul", (x.value, gate))))


def _gelu(ctx: ImportContext, node: OnnxNode) -> None:
    approximate = node.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise Unsupported("approximate", f"{approximate} is no known approximation", "none or tanh")
    unary(ctx, node, "Gelu", GeluAttrs(approximate == "tanh"))


def _binary(ctx: ImportContext, node: OnnxNode) -> None:
    if node.op in ("Mul", "Div") and fuse_gelu(ctx, node):
        return
    a, b = (ctx.entry(name) for name in node.inputs)
    integer = "int32" in (a.dtype, b.dtype) and node.op in INTEGER
    _broadcast(ctx, node, INTEGER[node.op] if integer else node.op, (a, b))


INTEGER: Mapping[str, str] = {"Add": "IntegerAdd", "Sub": "IntegerSub", "Mul": "IntegerMul"}
"""Operators of real numbers -> those of integers."""


def _broadcast(ctx: ImportContext, node: OnnxNode, op: str, operands: tuple[Entry, Entry]) -> None:
    a, b = operands
    shape = broadcast(a.shape, b.shape)
    order = common_order((a, b), len(shape))
    values = [ctx.operand(node, e, order, len(shape)) for e in (a, b)]
    ctx.define_value(node.output(0), ctx.emit(node, op, values), shape, order)


def _prelu(ctx: ImportContext, node: OnnxNode) -> None:
    x, slope = (ctx.entry(name) for name in node.inputs)
    if broadcast(x.shape, slope.shape) != x.shape:
        raise ValueError(f"slope {slope.shape} does not broadcast to {x.shape}")
    order = common_order((x,), x.rank)
    operands = (ctx.value(node, x, order), ctx.operand(node, slope, order, x.rank))
    ctx.define_value(node.output(0), ctx.emit(node, "PRelu", operands), x.shape, order)


def _pow(ctx: ImportContext, node: OnnxNode) -> None:
    x, exponent = ctx.entry(node.input(0)), ctx.entry(node.input(1))
    if exponent.is_constant and exponent.data.dtype.kind in "iu":  # the one operand that may be of another type
        exponent = replace(exponent, array=exponent.data.astype(np.float32))
    power, value = None if exponent.value is not None else scalar(exponent), x.value
    simple = power in (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0) and broadcast(x.shape, exponent.shape) == x.shape
    if not simple or power is None or value is None or ctx.is_trained(exponent.origin):
        if value is None or not exponent.is_constant or exponent.elements != 1 or exponent.rank > x.rank:
            _broadcast(ctx, node, "Power", (x, exponent))
        else:
            operands = (value, ctx.operand(node, exponent, plain(0), 0))
            ctx.define(node.output(0), replace(x, value=ctx.emit(node, "Power", operands)))
        return
    if abs(power) == 0.5:
        value = ctx.emit(node, "Sqrt", (value,), suffix="" if power > 0 else "root")
    elif power >= 2:
        square = ctx.emit(node, "Mul", (value, value), suffix="" if power == 2 else "square")
        value = square if power == 2 else ctx.emit(node, "Mul", (square, value))
    if power < 0:
        one = ctx.number(node, "one", 1.0)
        value = ctx.emit(node, "Div", (one, value))
    ctx.define(node.output(0), replace(x, value=value))


def _reciprocal(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    assert x.value is not None
    ctx.define(node.output(0), replace(x, value=ctx.emit(node, "Div", (ctx.number(node, "one", 1.0), x.value))))


def _identity(ctx: ImportContext, node: OnnxNode) -> None:
    ctx.define(node.output(0), ctx.entry(node.input(0)))


def _dropout(ctx: ImportContext, node: OnnxNode) -> None:
    ratio = number(ctx, node, 1, "ratio", 0.5)
    training = number(ctx, node, 2, "training_mode", 0.0) and ratio
    if training and ctx.options.dropout:
        _real_dropout(ctx, node, ratio)
        return
    if training:
        ctx.notes.append(f"node {node.name}: Dropout in training mode is left out, as in inference (--dropout on)")
    if ctx.links.is_used(node.output(1)):  # at inference everything is kept
        ctx.define(node.output(1), constant_entry(np.ones(ctx.entry(node.input(0)).shape, np.bool_)))
    _identity(ctx, node)


def _real_dropout(ctx: ImportContext, node: OnnxNode, ratio: float) -> None:
    """One that training computes: m_infer leaves it out."""
    x = ctx.entry(node.input(0))
    if x.value is None or ctx.links.is_constant(node.input(0)):
        raise Unsupported(
            "data", "it drops weights, which no sample leads to", "Dropout of activations, or --dropout off"
        )
    if ctx.links.is_used(node.output(1)):
        raise Unsupported("mask", "its mask is read", "a Dropout whose mask is not used, or --dropout off")
    if not 0.0 < ratio < 1.0:
        raise Unsupported("ratio", f"it drops a share of {ratio:g}", "a ratio between 0 and 1")
    value = ctx.emit(node, "Dropout", (x.value,), DropoutAttrs(ratio))
    ctx.define(node.output(0), replace(x, value=value))


_T = onnx.TensorProto
_TYPES: Mapping[int, DType] = {
    **dict.fromkeys((_T.FLOAT, _T.DOUBLE), "float32"),
    **dict.fromkeys((_T.INT32, _T.INT64), "int32"),
    _T.BOOL: "uint8",
}
"""Types that a Cast makes in the graph; narrower integers would wrap around elsewhere."""


def _cast(ctx: ImportContext, node: OnnxNode) -> None:
    to = node.integer("to", 0)
    if to not in _TYPES:
        raise Unsupported("to", "computed tensors are float32, int32 or truth values", "Cast to FLOAT, INT64 or BOOL")
    if to == _T.DOUBLE:
        ctx.notes.append(f"node {node.name}: Cast to double computes in float32")
    ctx.define(node.output(0), in_type(ctx, node, ctx.entry(node.input(0)), _TYPES[to]))


def in_type(ctx: ImportContext, node: OnnxNode, x: Entry, dtype: DType) -> Entry:
    """Return the entry with its numbers in another type."""
    if x.value is None:
        return x if x.dtype == dtype else replace(x, array=x.data.astype(_NUMPY[dtype]))
    if x.dtype == dtype:
        return x
    if dtype == "uint8":
        zero = ctx.constant(np.zeros((), x.dtype), f"{node.name}.zero", node)
        value = ctx.emit(node, "Not", (ctx.emit(node, "Equal", (x.value, zero), suffix="none"),))
    elif x.dtype == "uint8" and dtype == "float32":
        numbers = (ctx.number(node, "true", 1.0), ctx.number(node, "false", 0.0))
        value = ctx.emit(node, "Where", (x.value, *numbers))
    else:
        value = ctx.emit(node, "Cast", (x.value,), CastAttrs(dtype))
    return replace(x, value=value)


_NUMPY: Mapping[DType, type] = {"float32": np.float32, "int32": np.int32, "uint8": np.bool_}


def _cast_like(ctx: ImportContext, node: OnnxNode) -> None:
    x, like = ctx.entry(node.input(0)), ctx.entry(node.input(1))
    ctx.define(node.output(0), in_type(ctx, node, x, like.dtype))


@dataclass(frozen=True)
class Unary:
    """An ONNX operator with one computed operand, the first; becomes: the operators of the compiler that it may be."""

    handler: Handler
    becomes: tuple[str, ...]


_PLAIN = ("Abs", "Cos", "Erf", "Exp", "HardSwish", "Log", "Mish", "Neg", "Sign", "Sin", "Softsign", "Sqrt", "Tanh")

UNARY: Mapping[str, Unary] = {
    **{op: Unary(_same_name, (op,)) for op in _PLAIN},
    "Relu": Unary(_relu, ("Clip",)),
    "Clip": Unary(_clip, ("Clip",)),
    "LeakyRelu": Unary(_leaky_relu, ("LeakyRelu",)),
    "HardSigmoid": Unary(_hard_sigmoid, ("HardSigmoid", "HardSwish")),
    "Sigmoid": Unary(_sigmoid, ("Sigmoid", "Silu")),
    "Softplus": Unary(_softplus, ("Softplus", "Mish")),
    "Elu": Unary(_elu, ("Elu",)),
    "Selu": Unary(_selu, ("Elu",)),
    "Celu": Unary(_celu, ("Elu",)),
    "Swish": Unary(_swish, ("Silu", "Sigmoid", "Mul")),
    "Gelu": Unary(_gelu, ("Gelu",)),
    "Pow": Unary(_pow, ("Sqrt", "Mul", "Div", "Power")),
    "Reciprocal": Unary(_reciprocal, ("Div",)),
    "Identity": Unary(_identity, ()),
    "Dropout": Unary(_dropout, ("Dropout",)),
    "Cast": Unary(_cast, ()),
    "CastLike": Unary(_cast_like, ()),
}

HANDLERS: Mapping[str, Handler] = {
    **{op: unary.handler for op, unary in UNARY.items()},
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _binary),
    "PRelu": _prelu,
}


def is_elementwise(op: str) -> bool:
    """Whether an ONNX operator has one computed operand and does not care in which order its elements lie."""
    return op in UNARY and all(has_trait(name, "elementwise") for name in UNARY[op].becomes)
