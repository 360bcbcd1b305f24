"""Element-wise operators, activations, and nodes that only pass a tensor on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import defs

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, constant_entry, plain
from tinytrain_compile.frontend.graph.operands import broadcast, common_order, constant_input, number, scalar
from tinytrain_compile.frontend.operators.patterns import fuse_gate, fuse_gelu, fuse_mish
from tinytrain_compile.ir.types import NO_ATTRS, Attrs, DType, Value
from tinytrain_compile.ops.activation import ClipAttrs, EluAttrs, GeluAttrs, HardSigmoidAttrs, LeakyReluAttrs
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.dropout import DropoutAttrs
from tinytrain_compile.ops.integers import CastAttrs


def _unary(ctx: ImportContext, node: OnnxNode) -> None:
    """Import an operator of each element that the compiler has, under this or another name."""
    op, attrs = _RENAMED.get(node.op, (node.op, _no_attrs))
    ctx.define(node.output(0), ctx.mapped(node, ctx.entry(node.input(0)), op, attrs=attrs(node)))


def _no_attrs(_node: OnnxNode) -> Attrs:
    return NO_ATTRS


def _signed(ctx: ImportContext, node: OnnxNode) -> None:
    """Import Abs or Neg, also of integers."""
    x = ctx.entry(node.input(0))
    if x.value is None or x.dtype != "int32":
        _unary(ctx, node)
        return
    zero = ctx.constant(np.zeros((), np.int32), f"{node.name}.zero", node)
    minus = ctx.emit(node, "IntegerSub", (zero, x.value), suffix="" if node.op == "Neg" else "minus")
    ctx.define(node.output(0), replace(x, value=minus if node.op == "Neg" else larger(ctx, node, (x.value, minus))))


def larger(ctx: ImportContext, node: OnnxNode, pair: tuple[Value, Value], smaller: bool = False) -> Value:
    """Return the larger of two integers, or the smaller one."""
    above = ctx.emit(node, "Greater", reversed(pair) if smaller else pair, suffix="above")
    return ctx.emit(node, "Where", (above, *pair))


def _clip(ctx: ImportContext, node: OnnxNode) -> None:
    rank = max(1, ctx.entry(node.input(0)).rank)
    for name in filter(None, (node.input(1), node.input(2))):  # scalars in the standard, of one axis in onnxruntime
        if ctx.has(name) and ctx.entry(name).rank > rank:
            raise ValueError(f"the bound {name} must be a scalar")
    if ctx.entry(node.input(0)).dtype == "int32":
        _clip_integers(ctx, node)
        return
    low, high = number(ctx, node, 1, "min", -math.inf), number(ctx, node, 2, "max", math.inf)
    attrs = ClipAttrs(min(low, high), high)  # ONNX: max wins where min > max
    ctx.define(node.output(0), ctx.mapped(node, ctx.entry(node.input(0)), "Clip", attrs=attrs))


def _clip_integers(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    y = x.computed
    for index, what in ((1, "min"), (2, "max")):
        bound = constant_input(ctx, node, index, what)
        if bound is not None:
            limit = np.clip(bound.reshape(()), -(2**31), 2**31 - 1)
            y = larger(ctx, node, (y, ctx.constant(limit, f"{node.name}.{what}", node)), what == "max")
    ctx.define(node.output(0), replace(x, value=y))


def _gate(ctx: ImportContext, node: OnnxNode) -> None:
    """Import Sigmoid or HardSigmoid, with the product of its input and itself if the model computes that."""
    gated = "Silu" if node.op == "Sigmoid" else "HardSwish" if _is_hard_gate(node) else ""
    if not gated or not fuse_gate(ctx, node, gated):
        _unary(ctx, node)


def _is_hard_gate(node: OnnxNode) -> bool:
    return math.isclose(node.number("alpha", 0.2), 1 / 6, rel_tol=1e-5) and node.number("beta", 0.5) == 0.5


def _softplus(ctx: ImportContext, node: OnnxNode) -> None:
    if not fuse_mish(ctx, node):
        _unary(ctx, node)


def _exponential(alpha: float, scale: float = 1.0, rate: float = 1.0) -> EluAttrs:
    if not (0 <= alpha < math.inf and 0 < scale < math.inf and 0 < rate < math.inf):
        raise Unsupported("alpha", "a negative slope has no gradient from the output", "alpha and gamma above 0")
    return EluAttrs(alpha, scale, rate)


def _celu(node: OnnxNode) -> EluAttrs:
    alpha = node.number("alpha", 1.0)
    return _exponential(alpha, rate=1.0 / alpha if alpha else math.inf)


def _gelu(node: OnnxNode) -> GeluAttrs:
    approximate = node.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise Unsupported("approximate", f"{approximate} is no known approximation", "none or tanh")
    return GeluAttrs(approximate == "tanh")


def _swish(ctx: ImportContext, node: OnnxNode) -> None:
    """Import x sigmoid(alpha x)."""
    x, alpha = ctx.entry(node.input(0)), node.number("alpha", 1.0)
    if alpha == 1.0:
        ctx.define(node.output(0), ctx.mapped(node, x, "Silu"))
        return
    scaled = ctx.mapped(node, x, "Mul", (ctx.number(node, "alpha", alpha),), suffix="scaled")
    gate = ctx.mapped(node, scaled, "Sigmoid", suffix="gate")
    ctx.define(node.output(0), ctx.mapped(node, x, "Mul", (gate.computed,)))


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
            ctx.define(node.output(0), ctx.mapped(node, x, "Power", (ctx.operand(node, exponent, plain(0), 0),)))
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
    ctx.define(node.output(0), replace(x, value=ctx.emit(node, "Div", (ctx.number(node, "one", 1.0), x.computed))))


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
    """Import a Dropout that training computes: m_infer leaves it out."""
    x = ctx.entry(node.input(0))
    if x.value is None or ctx.links.is_constant(node.input(0)):
        raise Unsupported(
            "data", "it drops weights, which no sample leads to", "Dropout of activations, or --dropout off"
        )
    if ctx.links.is_used(node.output(1)):
        raise Unsupported("mask", "its mask is read", "a Dropout whose mask is not used, or --dropout off")
    if not 0.0 < ratio < 1.0:
        raise Unsupported("ratio", f"it drops a share of {ratio:g}", "a ratio between 0 and 1")
    ctx.define(node.output(0), ctx.mapped(node, x, "Dropout", attrs=DropoutAttrs(ratio)))


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


_RENAMED: Mapping[str, tuple[str, Callable[[OnnxNode], Attrs]]] = {
    "Relu": ("Clip", lambda _: ClipAttrs(0.0, math.inf)),
    "LeakyRelu": ("LeakyRelu", lambda node: LeakyReluAttrs(node.number("alpha", 0.01))),
    "HardSigmoid": (
        "HardSigmoid",
        lambda node: HardSigmoidAttrs(node.number("alpha", 0.2), node.number("beta", 0.5)),
    ),
    "Elu": ("Elu", lambda node: _exponential(node.number("alpha", 1.0))),
    "Selu": (
        "Elu",
        lambda node: _exponential(node.number("alpha", 1.6732632423543772), node.number("gamma", 1.0507009873554805)),
    ),
    "Celu": ("Elu", _celu),
    "Gelu": ("Gelu", _gelu),
}
"""ONNX operators of each element -> those of the compiler, and how attributes are read; defaults as in the standard."""

_PLAIN = [op for op in OPS.values() if "elementwise" in op.traits and len(op.inputs) == 1 and op.attrs is Attrs]
PLAIN = [op.name for op in _PLAIN if defs.has(op.name)]
"""Operators of each element that ONNX has under the same name, without attributes: an entry in ops/ imports them."""

UNARY: Mapping[str, Handler] = {
    **dict.fromkeys((*PLAIN, *_RENAMED), _unary),
    **dict.fromkeys(("Abs", "Neg"), _signed),
    **dict.fromkeys(("Sigmoid", "HardSigmoid"), _gate),
    "Clip": _clip,
    "Softplus": _softplus,
    "Swish": _swish,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
}
"""Operators with one computed operand, the first, that do not care in which order its elements lie."""

HANDLERS: Mapping[str, Handler] = {
    **UNARY,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _binary),
    "PRelu": _prelu,
}
