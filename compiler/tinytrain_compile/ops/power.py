"""Powers of any exponent, which may be trained; gradients as PyTorch has them where a or b is 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import scalar_math
from tinytrain_compile.ops.base import ELEMENTWISE, GradientContext, OpDef, register
from tinytrain_compile.ops.elementwise import SECOND_ORDER, broadcast_infer, upstream


def _infer_gradient(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    dy, a, b = inputs
    if np.broadcast_shapes(dy.shape, a.shape, b.shape) != dy.shape:
        raise ValueError(f"the gradient of a power: {dy.shape}, {a.shape}, {b.shape}")
    return (dy.type,)


def _rule(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    ops = ("PowerGradBase", "PowerGradExponent")
    operands = (upstream(dys), *node.inputs)
    return {i: ctx.sum_to(ctx.emit(op, operands), node.inputs[i]) for i, op in enumerate(ops) if ctx.wants(i)}


def _of_base(arrays: tuple[Array, ...], power: Any) -> tuple[Array, ...]:
    dy, a, b = arrays
    with np.errstate(all="ignore"):
        slope = b * power(a, b - b.dtype.type(1))
        return (np.asarray(np.where(b == 0, b.dtype.type(0), dy * slope), dy.dtype),)


def _of_exponent(arrays: tuple[Array, ...], power: Any, log: Any) -> tuple[Array, ...]:
    dy, a, b = arrays
    with np.errstate(all="ignore"):
        slope = power(a, b) * log(a)
        return (np.asarray(np.where((a == 0) & (b >= 0), b.dtype.type(0), dy * slope), dy.dtype),)


register(
    OpDef(
        "Power",
        "a to the power of b; of a negative a only for a whole b, else NaN.",
        broadcast_infer,
        lambda arrays, _attrs: (np.power(*arrays),),
        _rule,
        inputs=("a", "b"),
        reuses=("a", "b"),
        traits=ELEMENTWISE,
        exact=lambda arrays, _attrs: (scalar_math.power(*arrays),),
    )
)
register(
    OpDef(
        "PowerGradBase",
        "dy b a^(b - 1), 0 where b is 0.",
        _infer_gradient,
        lambda arrays, _attrs: _of_base(arrays, np.power),
        SECOND_ORDER,
        inputs=("dy", "a", "b"),
        reuses=("dy",),
        outputs=("da",),
        traits=ELEMENTWISE,
        exact=lambda arrays, _attrs: _of_base(arrays, scalar_math.power),
    )
)
register(
    OpDef(
        "PowerGradExponent",
        "dy a^b log(a), 0 where a is 0 and b is not negative.",
        _infer_gradient,
        lambda arrays, _attrs: _of_exponent(arrays, np.power, np.log),
        SECOND_ORDER,
        inputs=("dy", "a", "b"),
        reuses=("dy",),
        outputs=("db",),
        traits=ELEMENTWISE,
        exact=lambda arrays, _attrs: _of_exponent(arrays, scalar_math.power, scalar_math.log),
    )
)
