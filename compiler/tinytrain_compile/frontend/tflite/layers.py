"""Convolutions, dense layers, pools and means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.activation import finish, sum_name
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Scales
from tinytrain_compile.frontend.tflite.translate import FIRST, Translation

Handler = Callable[[Translation, Operator], None]

SAME, VALID = 0, 1
"""Paddings by their numbers in the schema."""


def same_pads(size: int, window: int, stride: int) -> tuple[int, int]:
    """Return the padding in front and behind with which ceil(size / stride) windows cover an axis."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def _sliding(to: Translation, operator: Operator, x: int, window: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Return strides, dilations and pads of an operator that slides a window of these rows and columns."""
    strides = operator.number("StrideH"), operator.number("StrideW")
    dilations = operator.options.get("DilationHFactor", 1), operator.options.get("DilationWFactor", 1)
    dilations = tuple(int(one) for one in dilations)
    if min(*strides, *dilations, *window) < 1:
        what = f"strides {list(strides)}, dilations {list(dilations)}, window {list(window)}"
        raise CompileError("E0229", f"operator {operator.name} ({operator.op})", what, "convert the model again")
    pads = [(0, 0), (0, 0)]
    if operator.number("Padding") == SAME:
        reach = ((one - 1) * dilation + 1 for one, dilation in zip(window, dilations, strict=True))
        pads = [same_pads(*one) for one in zip(to.tensor(x).shape[1:3], reach, strides, strict=True)]
    found: dict[str, tuple[int, ...]] = {"strides": strides, "pads": (*(p[0] for p in pads), *(p[1] for p in pads))}
    return {**found, "dilations": dilations} if dilations != (1, 1) else found


def _image(to: Translation, k: int) -> tuple[int, ...]:
    shape = to.tensor(k).shape
    if len(shape) != len(FIRST):
        raise Refused("input", f"its shape is {list(shape)}", "batch, height, width, channels")
    return shape


def bias_scales(to: Translation, x: int, w: int) -> Scales | None:
    """Return what a bias counts: kernels take its integers for products of input and weight, whatever its own scale."""
    given, weights = to.scales(x), to.tensor(w).scales
    if given is None or weights is None:
        return None
    return Scales(given.scale * weights.scale, np.zeros(1, np.int64), 0)


def _operands(to: Translation, operator: Operator, perm: tuple[int, ...] = ()) -> list[str]:
    """Return weights (in another order of axes) and, if there is one, the bias of a layer."""
    x, w, bias = operator.input(0), operator.input(1), operator.input(2)
    to.check_weight(w)
    if (to.scales(x) is None) != (to.tensor(w).kind in ("float32", "float16")):
        what = f"{to.tensor(x).kind} activations with {to.tensor(w).kind} weights"
        raise Refused(
            "weights", what, "full-integer quantisation (dynamic-range quantisation has no ranges), or float32"
        )
    weights = to.weight(w)
    if perm:
        weights = to.node("Transpose", (weights,), to.made(w, "moved"), perm=perm)
    return [weights] if bias == ABSENT else [weights, to.weight(bias, bias_scales(to, x, w))]


def _conv(to: Translation, operator: Operator) -> None:
    x, w = operator.input(0), operator.input(1)
    depthwise = operator.op == "DEPTHWISE_CONV_2D"
    channels, shape = _image(to, x)[3], _image(to, w)
    group = channels if depthwise else channels // shape[3]
    if not depthwise and (group * shape[3] != channels or shape[0] % max(group, 1)):
        what = f"{channels} channels, weights of shape {list(shape)}"
        raise CompileError("E0212", f"operator {operator.name} ({operator.op})", what, "convert the model again")
    operands = _operands(to, operator, (3, 0, 1, 2) if depthwise else FIRST)
    sliding = _sliding(to, operator, x, (shape[1], shape[2]))
    made = to.node("Conv", (to.channels_first(x), *operands), sum_name(to, operator), group=group, **sliding)
    finish(to, operator, made, first=True)


def _transposed_conv(to: Translation, operator: Operator) -> None:
    sizes, w, x = (operator.input(k) for k in range(3))
    shape, small = _image(to, w), _image(to, x)
    moved = Operator(operator.name, operator.op, (x, w, operator.input(3)), operator.outputs, operator.options)
    wanted = tuple(int(one) for one in to.known(sizes, "output_shape").reshape(-1))
    if len(wanted) != len(FIRST) or wanted != to.tensor(operator.outputs[0]).shape:
        raise Refused("output_shape", f"it is {list(wanted)}", "the shape of the result")
    strides = operator.number("StrideH"), operator.number("StrideW")
    if min(strides) < 1:
        raise CompileError("E0229", f"operator {operator.name}", f"strides {list(strides)}", "convert the model again")
    pads, more = list[tuple[int, int]](), list[int]()
    for axis in range(2):
        whole = (small[axis + 1] - 1) * strides[axis] + shape[axis + 1]
        cut = whole - wanted[axis + 1]
        before = max(cut, 0) // 2 if operator.number("Padding") == SAME else 0
        pads.append((before, max(cut - before, 0)))
        more.append(max(-cut, 0))
    made = to.node(
        "ConvTranspose",
        (to.channels_first(x), *_operands(to, moved, (3, 0, 1, 2))),
        sum_name(to, operator),
        strides=strides,
        pads=[p[0] for p in pads] + [p[1] for p in pads],
        **({"output_padding": more} if any(more) else {}),
    )
    finish(to, operator, made, first=True)


def _dense(to: Translation, operator: Operator) -> None:
    if operator.number("WeightsFormat"):
        raise Refused("weights_format", "the weights are shuffled", "weights in the default format")
    x, w = operator.input(0), operator.input(1)
    shape, weights = to.tensor(x).shape, to.tensor(w).shape
    if len(weights) != 2 or int(np.prod(shape, dtype=object)) % max(weights[1], 1):
        what = f"input {list(shape)}, weights {list(weights)}"
        raise CompileError("E0212", f"operator {operator.name} ({operator.op})", what, "convert the model again")
    rows = int(np.prod(shape, dtype=object)) // weights[1]
    operands, flat = _operands(to, operator), to.real(x)
    if shape != (rows, weights[1]):
        name = to.made(operator.outputs[0], "rows")
        flat = to.node("Reshape", (flat, to.table(name, "shape", (rows, weights[1]))), name)
    made = to.node("Gemm", (flat, *operands), sum_name(to, operator), transB=1)
    finish(to, operator, made, shape=to.tensor(operator.outputs[0]).shape != (rows, weights[0]))


def _pool(to: Translation, operator: Operator) -> None:
    x = operator.input(0)
    _image(to, x)
    window = operator.number("FilterHeight"), operator.number("FilterWidth")
    largest = operator.op == "MAX_POOL_2D"
    if largest:
        check_moved(to, operator)
    sliding = _sliding(to, operator, x, window)
    op = "MaxPool" if largest else "AveragePool"
    made = to.node(op, (to.channels_first(x),), sum_name(to, operator), kernel_shape=window, **sliding)
    finish(to, operator, made, first=True)


def _mean(to: Translation, operator: Operator) -> None:
    x, k = operator.input(0), operator.outputs[0]
    rank = len(to.tensor(x).shape)
    given = [int(axis) for axis in to.known(operator.input(1), "axes").reshape(-1)]
    axes = axes_of(operator, given, rank)
    out = to.made(k, "sum") if rank == len(FIRST) and axes == [1, 2] else ""
    if out:
        made = to.node("GlobalAveragePool", (to.channels_first(x),), out)
    else:
        made = to.node("ReduceMean", (to.real(x),), to.made(k, "sum"), axes=axes, keepdims=1)
    name = to.made(k)
    if out:  # one number for each channel: its axes may change places without a move
        to.result(k, to.node("Reshape", (made, to.table(name, "shape", to.tensor(k).shape)), name))
        return
    to.result(k, to.node("Reshape", (made, to.table(name, "shape", to.tensor(k).shape)), name))


def axes_of(operator: Operator, given: Sequence[int], rank: int) -> list[int]:
    """Return axes counted from the front, in order; E0229 for one that there is not."""
    if not given or any(not -rank <= axis < rank for axis in given):
        where = f"operator {operator.name} ({operator.op})"
        raise CompileError("E0229", where, f"axes {[*given][:8]} of {rank}", "convert the model again")
    return sorted({axis % rank for axis in given})


def check_moved(to: Translation, operator: Operator, inputs: Sequence[int] = (0,)) -> None:
    """Check that an operator which moves stored integers gives them the meaning that they had."""
    for k in inputs:
        source = operator.input(k)
        scales = to.scales(source)
        for output in operator.outputs:
            same = to.scales(output) is None if scales is None else scales.same(to.scales(output))
            if not same or to.tensor(source).kind != to.tensor(output).kind:
                reason = f"{to.tensor(source).name} and its result have different scales"
                raise Refused("", reason, "the same scale and zero point on both sides")


HANDLERS: Mapping[str, Handler] = {
    "AVERAGE_POOL_2D": _pool,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _conv,
    "FULLY_CONNECTED": _dense,
    "MAX_POOL_2D": _pool,
    "MEAN": _mean,
    "TRANSPOSE_CONV": _transposed_conv,
}
