"""Element-wise operators, activations (also written as several nodes), and nodes that only pass a tensor on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import defs

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import Entry, constant_entry, plain
from tinytrain_compile.frontend.graph.operands import (
    broadcast,
    broadcasted,
    common_order,
    constant_input,
    number,
    scalar,
)
from tinytrain_compile.ir.types import NO_ATTRS, Attrs, DType, Value
from tinytrain_compile.ops.activation import ClipAttrs, EluAttrs, GeluAttrs, HardSigmoidAttrs, LeakyReluAttrs
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.dropout import DropoutAttrs
from tinytrain_compile.ops.integers import CastAttrs


def _unary(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import an operator of each element that the compiler has, under this or another name."""
    op, attrs = _RENAMED.get(node.op, (node.op, lambda _: NO_ATTRS))
    return ctx.mapped(node, x, op, attrs=attrs(node))


def _signed(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import Abs or Neg, also of integers."""
    if x.value is None or x.dtype != "int32":
        return _unary(ctx, node, x)
    zero = ctx.constant(np.zeros((), np.int32), f"{node.name}.zero", node)
    minus = ctx.emit(node, "IntegerSub", (zero, x.value), suffix="" if node.op == "Neg" else "minus")
    return replace(x, value=minus if node.op == "Neg" else larger(ctx, node, (x.value, minus)))


def larger(ctx: ImportContext, node: OnnxNode, pair: tuple[Value, Value], smaller: bool = False) -> Value:
    """Return the larger of two integers, or the smaller one."""
    above = ctx.emit(node, "Greater", reversed(pair) if smaller else pair, suffix="above")
    return ctx.emit(node, "Where", (above, *pair))


def _clip(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    for name in filter(None, (node.input(1), node.input(2))):  # scalars in the standard, of one axis in onnxruntime
        if ctx.has(name) and ctx.entry(name).rank > max(1, x.rank):
            raise ValueError(f"the bound {name} must be a scalar")
    if x.dtype == "int32":
        return _clip_integers(ctx, node, x)
    low, high = number(ctx, node, 1, "min", -math.inf), number(ctx, node, 2, "max", math.inf)
    attrs = ClipAttrs(min(low, high), high)  # ONNX: max wins where min > max
    return ctx.mapped(node, x, "Clip", attrs=attrs)


def _clip_integers(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    y = x.computed
    for index, what in ((1, "min"), (2, "max")):
        bound = constant_input(ctx, node, index, what)
        if bound is not None:
            limit = np.clip(bound.reshape(()), -(2**31), 2**31 - 1)
            y = larger(ctx, node, (y, ctx.constant(limit, f"{node.name}.{what}", node)), what == "max")
    return replace(x, value=y)


_GATES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Sigmoid": (("Mul",), "Silu"),
    "HardSigmoid": (("Mul",), "HardSwish"),
    "Softplus": (("Tanh", "Mul"), "Mish"),
}
"""Operator -> what follows if the result, multiplied by the operand, is an activation of the compiler; and that."""


def _gate(ctx: ImportContext, node: OnnxNode) -> None:
    ops, fused = _GATES[node.op]
    usual = math.isclose(node.number("alpha", 0.2), 1 / 6, rel_tol=1e-5) and node.number("beta", 0.5) == 0.5
    chain = ctx.links.chain(node, *ops) if node.op != "HardSigmoid" or usual else ()
    if not chain or other_input(chain[-1], (node, *chain)[-2].output(0)) != node.input(0):
        of_one(_unary)(ctx, node)
        return
    ctx.done.update(part.name for part in chain)
    ctx.define(chain[-1].output(0), ctx.mapped(node, ctx.entry(node.input(0)), fused))


def _exponential(alpha: float, scale: float = 1.0, rate: float = 1.0) -> EluAttrs:
    if not (0 <= alpha < math.inf and 0 < scale < math.inf and 0 < rate < math.inf):
        raise Refused("alpha", "a negative slope has no gradient from the output", "alpha and gamma above 0")
    return EluAttrs(alpha, scale, rate)


def _gelu(node: OnnxNode) -> GeluAttrs:
    approximate = node.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise Refused("approximate", f"{approximate} is no known approximation", "none or tanh")
    return GeluAttrs(approximate == "tanh")


def _swish(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import x sigmoid(alpha x)."""
    alpha = node.number("alpha", 1.0)
    if alpha == 1.0:
        return ctx.mapped(node, x, "Silu")
    scaled = ctx.mapped(node, x, "Mul", (ctx.number(node, "alpha", alpha),), suffix="scaled")
    gate = ctx.mapped(node, scaled, "Sigmoid", suffix="gate")
    return ctx.mapped(node, x, "Mul", (gate.computed,))


def _binary(ctx: ImportContext, node: OnnxNode) -> None:
    if node.op in ("Mul", "Div") and fuse_gelu(ctx, node):
        return
    a, b = (ctx.entry(name) for name in node.inputs)
    integer = "int32" in (a.dtype, b.dtype) and node.op in INTEGER
    ctx.define(node.output(0), _broadcast(ctx, node, INTEGER[node.op] if integer else node.op, (a, b)))


INTEGER: Mapping[str, str] = {"Add": "IntegerAdd", "Sub": "IntegerSub", "Mul": "IntegerMul"}
"""Operators of real numbers -> those of integers."""


def _broadcast(ctx: ImportContext, node: OnnxNode, op: str, operands: tuple[Entry, Entry]) -> Entry:
    values, shape, order = broadcasted(ctx, node, operands)
    return Entry(shape, ctx.emit(node, op, values), order)


def _prelu(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    slope = ctx.entry(node.input(1))
    if broadcast(x.shape, slope.shape) != x.shape:
        raise ValueError(f"slope {slope.shape} does not broadcast to {x.shape}")
    order = common_order((x,), x.rank)
    operands = (ctx.value(node, x, order), ctx.operand(node, slope, order, x.rank))
    return Entry(x.shape, ctx.emit(node, "PRelu", operands), order)


def _pow(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    exponent = ctx.entry(node.input(1))
    if exponent.is_constant and exponent.data.dtype.kind in "iu":  # the one operand that may be of another type
        exponent = replace(exponent, array=exponent.data.astype(np.float32))
    power, value = None if exponent.value is not None else scalar(exponent), x.value
    simple = power in (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0) and broadcast(x.shape, exponent.shape) == x.shape
    if not simple or power is None or value is None or ctx.is_trained(exponent.origin):
        if value is None or not exponent.is_constant or exponent.elements != 1 or exponent.rank > x.rank:
            return _broadcast(ctx, node, "Power", (x, exponent))
        return ctx.mapped(node, x, "Power", (ctx.operand(node, exponent, plain(0), 0),))
    if abs(power) == 0.5:
        value = ctx.emit(node, "Sqrt", (value,), suffix="" if power > 0 else "root")
    elif power >= 2:
        square = ctx.emit(node, "Mul", (value, value), suffix="" if power == 2 else "square")
        value = square if power == 2 else ctx.emit(node, "Mul", (square, value))
    if power < 0:
        value = ctx.emit(node, "Div", (ctx.number(node, "one", 1.0), value))
    return replace(x, value=value)


def _reciprocal(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    return replace(x, value=ctx.emit(node, "Div", (ctx.number(node, "one", 1.0), x.computed)))


def _dropout(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    ratio = number(ctx, node, 1, "ratio", 0.5)
    training = number(ctx, node, 2, "training_mode", 0.0) and ratio
    if training and ctx.options.dropout:
        return _real_dropout(ctx, node, x, ratio)
    if training:
        ctx.notes.append(f"node {node.name}: Dropout in training mode is left out, as in inference (--dropout on)")
    if ctx.links.is_used(node.output(1)):  # at inference everything is kept
        ctx.define(node.output(1), constant_entry(np.ones(x.shape, np.bool_)))
    return x


def _real_dropout(ctx: ImportContext, node: OnnxNode, x: Entry, ratio: float) -> Entry:
    """Import a Dropout that training computes: m_infer leaves it out."""
    if x.value is None or ctx.links.is_constant(node.input(0)):
        raise Refused("data", "it drops weights, which no sample leads to", "Dropout of activations, or --dropout off")
    if ctx.links.is_used(node.output(1)):
        raise Refused("mask", "its mask is read", "a Dropout whose mask is not used, or --dropout off")
    if not 0.0 < ratio < 1.0:
        raise Refused("ratio", f"it drops a share of {ratio:g}", "a ratio between 0 and 1")
    return ctx.mapped(node, x, "Dropout", attrs=DropoutAttrs(ratio))


_T = onnx.TensorProto
_TYPES: Mapping[int, DType] = {
    **dict.fromkeys((_T.FLOAT, _T.DOUBLE), "float32"),
    **dict.fromkeys((_T.INT32, _T.INT64), "int32"),
    _T.BOOL: "uint8",
}
"""Types that a Cast makes in the graph; narrower integers would wrap around elsewhere."""


def _cast(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    to = node.integer("to", 0)
    if to not in _TYPES:
        raise Refused("to", "computed tensors are float32, int32 or truth values", "Cast to FLOAT, INT64 or BOOL")
    if to == _T.DOUBLE:
        ctx.notes.append(f"node {node.name}: Cast to double computes in float32")
    return in_type(ctx, node, x, _TYPES[to])


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


_RENAMED: Mapping[str, tuple[str, Callable[[OnnxNode], Attrs]]] = {
    "Relu": ("Clip", lambda _: ClipAttrs(0.0, math.inf)),
    "LeakyRelu": ("LeakyRelu", lambda node: LeakyReluAttrs(node.number("alpha", 0.01))),
    "HardSigmoid": ("HardSigmoid", lambda n: HardSigmoidAttrs(n.number("alpha", 0.2), n.number("beta", 0.5))),
    "Elu": ("Elu", lambda node: _exponential(node.number("alpha", 1.0))),
    "Selu": (
        "Elu",
        lambda n: _exponential(n.number("alpha", 1.6732632423543772), n.number("gamma", 1.0507009873554805)),
    ),
    "Celu": ("Elu", lambda n: _exponential(n.number("alpha", 1.0), rate=1.0 / (n.number("alpha", 1.0) or math.nan))),
    "Gelu": ("Gelu", _gelu),
}
"""ONNX operators of each element -> those of the compiler, and how attributes are read; defaults as in the standard."""

_PLAIN = [op for op in OPS.values() if "elementwise" in op.traits and len(op.inputs) == 1 and op.attrs is Attrs]
PLAIN = [op.name for op in _PLAIN if defs.has(op.name)]
"""Operators of each element that ONNX has under the same name, without attributes: an entry in ops/ imports them."""

UNARY: Mapping[str, Handler] = {
    **dict.fromkeys((*PLAIN, *_RENAMED), of_one(_unary)),
    **dict.fromkeys(("Abs", "Neg"), of_one(_signed)),
    **dict.fromkeys(_GATES, _gate),
    "Clip": of_one(_clip),
    "Swish": of_one(_swish),
    "Pow": of_one(_pow),
    "Reciprocal": of_one(_reciprocal),
    "Identity": of_one(lambda _ctx, _node, x: x),
    "Dropout": of_one(_dropout),
    "Cast": of_one(_cast),
    "CastLike": of_one(lambda ctx, node, x: in_type(ctx, node, x, ctx.entry(node.input(1)).dtype)),
}
"""Operators with one computed operand, the first, that do not care in which order its elements lie."""

HANDLERS: Mapping[str, Handler] = {
    **UNARY,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _binary),
    "PRelu": of_one(_prelu),
}


# ---- activations that exporters write as several nodes ---------------------------------------------------------------


def fuse_gelu(ctx: ImportContext, node: OnnxNode) -> bool:
    """Turn 0.5 * x * (1 + erf(x / sqrt(2))), of which `node` scales x, into one Gelu; False if it is not that.

    The three factors may be grouped in any way.
    """
    tensor = _scaled_input(ctx, node, math.sqrt(2.0) if node.op == "Div" else math.sqrt(0.5))
    chain = ctx.links.chain(node, "Erf", "Add", "Mul") if tensor else ()
    if not chain or _number(ctx, other_input(chain[1], chain[0].output(0))) != 1.0:
        return False
    factor = other_input(chain[2], chain[1].output(0))
    half = ctx.links.maker(factor)
    if half is None or half.op != "Mul" or _scaled_input(ctx, half, 0.5) != tensor:
        chain += ctx.links.chain(chain[2], "Mul")
        pair = factor, other_input(chain[-1], chain[2].output(0))
        if len(chain) < 4 or not any(x == tensor and _number(ctx, rest) == 0.5 for x, rest in (pair, pair[::-1])):
            return False
    ctx.done.update(part.name for part in chain)
    ctx.define(chain[-1].output(0), ctx.mapped(node, ctx.entry(tensor), "Gelu", attrs=GeluAttrs(False)))
    return True


def _scaled_input(ctx: ImportContext, node: OnnxNode, factor: float) -> str:
    """Return the tensor that a Mul or Div scales by this constant; "" if it does not."""
    constants = [name for name in node.inputs if ctx.links.is_constant(name)]
    if len(constants) != 1 or (node.op == "Div" and constants[0] != node.inputs[1]):
        return ""
    found = _number(ctx, constants[0])
    return other_input(node, constants[0]) if found is not None and math.isclose(found, factor, rel_tol=1e-4) else ""


def _number(ctx: ImportContext, tensor: str) -> float | None:
    """Return the single number that a constant holds."""
    if not ctx.has(tensor) or ctx.entry(tensor).elements != 1:
        return None
    return scalar(ctx.entry(tensor))


def other_input(node: OnnxNode, tensor: str) -> str:
    """Return the operand of a two-operand node beside `tensor` (`tensor` itself if it is both)."""
    return node.inputs[1] if node.inputs[0] == tensor else node.inputs[0]
