"""Matrix products: Gemm (a dense layer), its two gradients, and MatMul of two activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.base import GradientContext, NonDifferentiable, Samples, Split, has_trait, operator, traits
from tinytrain_compile.ops.exact import product
from tinytrain_compile.ops.names import attrs_of, expect_float, named, operand, operands, result


@dataclass(frozen=True)
class GemmAttrs(Attrs):
    """bias: whether a bias operand follows the weight; split: the two parts of the weight, if it is split."""

    bias: bool = False
    split: Split | None = None


@dataclass(frozen=True)
class MatMulAttrs(Attrs):
    """Flags that swap the last two axes of an operand before multiplying."""

    transpose_a: bool = False
    transpose_b: bool = False


def join_split(arrays: tuple[Array, ...], split: Split | None, out_axis: int, in_axis: int) -> Array:
    """Return the whole weight from its arena part and, if split, its flash part."""
    if split is None:
        (w,) = arrays
        return w
    w, rest = arrays
    axis = out_axis if split.axis == "out" else in_axis
    order = np.argsort(np.asarray((*split.channels, *split.rest)))
    return np.take(np.concatenate([w, rest.astype(w.dtype)], axis=axis), order, axis=axis)


def whole_shape(inputs: tuple[Value, ...], split: Split | None, out_axis: int, in_axis: int) -> tuple[int, ...]:
    """Return the shape of the whole weight whose part(s) are `inputs`; raises ValueError if the parts do not fit."""
    if split is None:
        (w,) = inputs
        return w.shape
    w, rest = inputs
    shape = list(w.shape)
    axis = out_axis if split.axis == "out" else in_axis
    if w.shape[axis] != len(split.channels) or rest.shape[axis] != len(split.rest):
        raise ValueError(f"split {split} does not fit parts {w.shape} and {rest.shape}")
    shape[axis] = split.total
    return tuple(shape)


WEIGHT = ("w", "w_rest?")
"""Names of the operands that hold a weight: the second only if it is in two parts."""
LAYER_KINDS = {
    "Conv": "conv",
    "ConvGradInput": "transposed conv",
    "Gemm": "fc",
    "MatMul": "matmul",
    "Normalize": "norm",
}
"""Operators that read weights, as reports call them."""


def present_parts(split: Split | None) -> tuple[str, ...]:
    """Return the names of the operands that a weight in two parts has beside w."""
    return () if split is None else ("w_rest",)


def weight_dtypes(split: Split | None) -> tuple[str, ...]:
    """Return the element types of the operands that hold an int8 weight."""
    return ("int8", *("int8" for _ in present_parts(split)))


def _present(attrs: GemmAttrs) -> tuple[str, ...]:
    return present_parts(attrs.split) + (("bias",) if attrs.bias else ())


def _gemm_infer(inputs: tuple[Value, ...], attrs: GemmAttrs) -> tuple[TensorType, ...]:
    o = named("Gemm", inputs, attrs)
    x, bias = o["x"], o.get("bias")
    expect_float("Gemm", *o.values())
    n, k = whole_shape(o.several(*WEIGHT), attrs.split, 0, 1)
    if len(x.shape) != 2 or x.shape[1] != k:
        raise ValueError(f"x {x.shape} does not fit weight {(n, k)}")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"bias {bias.shape}, expected {(n,)}")
    return (TensorType((x.shape[0], n)),)


def _gemm(arrays: tuple[Array, ...], attrs: GemmAttrs) -> tuple[Array, ...]:
    o = named("Gemm", arrays, attrs)
    y = o["x"] @ join_split(o.several(*WEIGHT), attrs.split, 0, 1).T
    return (y + o["bias"] if attrs.bias else y,)


def _gemm_exact(arrays: tuple[Array, ...], attrs: GemmAttrs) -> tuple[Array, ...]:
    o = named("Gemm", arrays, attrs)
    y = product(o["x"], join_split(o.several(*WEIGHT), attrs.split, 0, 1).T)
    return (y + o["bias"] if attrs.bias else y,)


def _gemm_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    attrs, dy = node.attrs, dys[0]
    assert isinstance(attrs, GemmAttrs) and dy is not None
    o = operands(node)
    grads: dict[int, Value] = {}
    if ctx.wants(o.position("w")):
        x, part_dy = split_operands(ctx, o["x"], dy, attrs.split)
        grads[o.position("w")] = ctx.emit("GemmGradWeight", (x, part_dy))
    if attrs.bias and ctx.wants(o.position("bias")):
        grads[o.position("bias")] = ctx.sum_to(dy, o["bias"])
    if ctx.wants(o.position("x")):
        attrs = GemmAttrs(split=attrs.split)
        grads[o.position("x")] = ctx.emit("GemmGradInput", (dy, *o.several(*WEIGHT)), attrs)
    return grads


def split_operands(ctx: GradientContext, x: Value, dy: Value, split: Split | None) -> tuple[Value, Value]:
    """Return the operands of a weight gradient, cut to the channels (last axis) that the updated slice needs."""
    if split is None:
        return x, dy
    if split.axis == "in":
        return take_channels(ctx, x, split.channels), dy
    return x, take_channels(ctx, dy, split.channels)


def take_channels(ctx: GradientContext, value: Value, channels: tuple[int, ...]) -> Value:
    """Return the given channels of the last axis: one Slice per run of neighbours, joined by a Concat if there are
    several."""
    from tinytrain_compile.ops.shape import ConcatAttrs, SliceAttrs

    rank = len(value.shape)
    pieces: list[Value] = []
    for first, count in runs(channels):
        starts = (0,) * (rank - 1) + (first,)
        sizes = (*value.shape[:-1], count)
        pieces.append(ctx.emit("Slice", (value,), SliceAttrs(starts, (1,) * rank, sizes)))
    return pieces[0] if len(pieces) == 1 else ctx.emit("Concat", pieces, ConcatAttrs(rank - 1))


def runs(channels: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return increasing indices as (first, count) runs: (0, 1, 4) -> [(0, 2), (4, 1)]."""
    found: list[tuple[int, int]] = []
    for channel in channels:
        if found and channel == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((channel, 1))
    return found


def _gemm_macs(node: Node) -> int:
    return result(node, "y").elements * operand(node, "x").shape[-1]


def _gemm_says(node: Node) -> str:
    x, y = operand(node, "x").shape, result(node, "y").shape
    bias = " + bias[n]" if attrs_of(node, GemmAttrs).bias else ""
    return f"dense {x[-1]} -> {y[-1]}, y[m,n] = sum_k x[m,k] w[n,k]{bias}"


def _grad_input_says(node: Node) -> str:
    into, out = result(node, "dx").shape[-1], operand(node, "dy").shape[-1]
    return f"dx[m,k] = sum_n dy[m,n] w[n,k], {into} -> {out} in the forward pass"


def _grad_weight_says(node: Node) -> str:
    into, out = operand(node, "x").shape[-1], operand(node, "dy").shape[-1]
    return f"dw[n,k] = sum_m dy[m,n] x[m,k], {into} -> {out} in the forward pass"


def _matmul_says(node: Node) -> str:
    a = attrs_of(node, MatMulAttrs)
    first, second = "transposed a" if a.transpose_a else "a", "transposed b" if a.transpose_b else "b"
    return f"y = {first} times {second}, for each matrix"


operator(
    "Gemm",
    "Dense layer: y[m,n] = sum_k x[m,k] w[n,k] + bias[n].",
    _gemm_infer,
    _gemm,
    _gemm_gradient,
    GemmAttrs,
    macs=_gemm_macs,
    exact=_gemm_exact,
    inputs=("x", *WEIGHT, "bias?"),
    present=_present,
    traits=traits("matrix", "layer", "requantised"),
    says=_gemm_says,
)


def _gemm_grad_input_infer(inputs: tuple[Value, ...], attrs: GemmAttrs) -> tuple[TensorType, ...]:
    dy, *weights = inputs
    n, k = whole_shape(tuple(weights), attrs.split, 0, 1)
    if dy.shape[1] != n:
        raise ValueError(f"dy {dy.shape} does not fit weight {(n, k)}")
    return (TensorType((dy.shape[0], k)),)


def _gemm_grad_input(arrays: tuple[Array, ...], attrs: GemmAttrs) -> tuple[Array, ...]:
    dy, *weights = arrays
    return (dy @ join_split(tuple(weights), attrs.split, 0, 1),)


def _gemm_grad_input_exact(arrays: tuple[Array, ...], attrs: GemmAttrs) -> tuple[Array, ...]:
    dy, *weights = arrays
    return (product(dy, join_split(tuple(weights), attrs.split, 0, 1)),)


operator(
    "GemmGradInput",
    "Gradient of Gemm for its data: dx[m,k] = sum_n dy[m,n] w[n,k].",
    _gemm_grad_input_infer,
    _gemm_grad_input,
    NonDifferentiable("second derivatives are never needed"),
    GemmAttrs,
    macs=lambda node: result(node, "dx").elements * operand(node, "dy").shape[-1],
    exact=_gemm_grad_input_exact,
    inputs=("dy", *WEIGHT),
    outputs=("dx",),
    present=lambda attrs: present_parts(attrs.split),
    traits=traits("data_gradient"),
    says=_grad_input_says,
)


def _gemm_grad_weight_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    x, dy = inputs
    if x.shape[0] != dy.shape[0]:
        raise ValueError(f"x {x.shape} and dy {dy.shape} have different row counts")
    return (TensorType((dy.shape[1], x.shape[1])),)


def _gemm_grad_weight(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    x, dy = arrays
    return (dy.T @ x,)


def _gemm_grad_weight_exact(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    x, dy = arrays
    return (dy.T * x if len(x) == 1 else product(dy.T, x),)  # a product that no sum begins before keeps a -0


GEMM_GRAD_WEIGHT = operator(
    "GemmGradWeight",
    "Gradient of Gemm for its weight: dw[n,k] = sum_m dy[m,n] x[m,k].",
    _gemm_grad_weight_infer,
    _gemm_grad_weight,
    NonDifferentiable("second derivatives are never needed"),
    macs=lambda node: result(node, "dw").elements * operand(node, "x").shape[0],
    exact=_gemm_grad_weight_exact,
    samples=Samples(sums=lambda _attrs: True),
    inputs=("x", "dy"),
    outputs=("dw",),
    traits=traits("weight_gradient"),
    says=_grad_weight_says,
)


def _swap(shape: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def _matmul_infer(inputs: tuple[Value, ...], attrs: MatMulAttrs) -> tuple[TensorType, ...]:
    left, right = inputs
    expect_float("MatMul", left, right)
    a, b = _swap(left.shape, attrs.transpose_a), _swap(right.shape, attrs.transpose_b)
    if len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2] or a[-1] != b[-2]:
        raise ValueError(f"cannot multiply {a} by {b}")
    return (TensorType((*a[:-1], b[-1])),)


def _factors(arrays: tuple[Array, ...], attrs: MatMulAttrs) -> tuple[Array, Array]:
    a, b = arrays
    return np.swapaxes(a, -1, -2) if attrs.transpose_a else a, np.swapaxes(b, -1, -2) if attrs.transpose_b else b


def _matmul(arrays: tuple[Array, ...], attrs: MatMulAttrs) -> tuple[Array, ...]:
    a, b = _factors(arrays, attrs)
    return (a @ b,)


def _matmul_macs(node: Node) -> int:
    return result(node, "y").elements * _swap(operand(node, "a").shape, attrs_of(node, MatMulAttrs).transpose_a)[-1]


def _matmul_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    attrs, dy = node.attrs, dys[0]
    assert isinstance(attrs, MatMulAttrs) and dy is not None
    a, b = node.inputs
    ta, tb = attrs.transpose_a, attrs.transpose_b
    grads: dict[int, Value] = {}
    if ctx.wants(0):
        grads[0] = (
            ctx.emit("MatMul", (b, dy), MatMulAttrs(tb, True))
            if ta
            else ctx.emit("MatMul", (dy, b), MatMulAttrs(False, not tb))
        )
    if ctx.wants(1):
        grads[1] = (
            ctx.emit("MatMul", (dy, a), MatMulAttrs(True, ta))
            if tb
            else ctx.emit("MatMul", (a, dy), MatMulAttrs(not ta, False))
        )
    return grads


operator(
    "MatMul",
    "Batched product of two activations, each optionally transposed in its last two axes.",
    _matmul_infer,
    _matmul,
    _matmul_gradient,
    MatMulAttrs,
    macs=_matmul_macs,
    exact=lambda arrays, attrs: (product(*_factors(arrays, attrs)),),
    inputs=("a", "b"),
    says=_matmul_says,
)


def output_axis(layer: Node) -> int:
    """Return the axis of a layer's output channels in its weight: the last one for a transposed convolution."""
    return 0 if has_trait(layer.op, "layer") else -1
