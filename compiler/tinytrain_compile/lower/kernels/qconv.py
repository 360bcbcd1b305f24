"""Integer convolutions: the float kernels' loops over int32 sums, with an epilogue that makes int8 of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    CodeStyle,
    Features,
    KernelSpec,
    address,
    call_int,
    guarded,
    i32,
    kernel,
    placeholder,
)
from tinytrain_compile.lower.kernels.conv import (
    Window,
    grouped,
    grouped_grad_input,
    weight_parts,
)
from tinytrain_compile.lower.kernels.linear import Finish, Load, Schedule, whole_weight
from tinytrain_compile.lower.kernels.pairs import Widened, pair_product
from tinytrain_compile.lower.kernels.patches import PatchForm, patch_conv
from tinytrain_compile.lower.kernels.planes import Taps, inside_image, plane_conv, row_conv
from tinytrain_compile.lower.kernels.qerror import Centred, kept_factors, kept_here, mask_operand, tables
from tinytrain_compile.lower.kernels.qgradient import gradient_rows, keeps_tables, row_gradient, weight_gradient
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.conv import forward_patch, gathers, gathers_error
from tinytrain_compile.ops.pairs import pair_tiles
from tinytrain_compile.ops.qconv import QConvAttrs, QConvGradInputAttrs, QConvUpdateAttrs
from tinytrain_compile.ops.qconv_tiles import (
    backward_phases,
    backward_planes,
    error_patch,
    forward_planes,
    forward_rows,
    is_plane,
    is_product,
    is_rows,
)

Stages = Sequence[te.Tensor]
FRACTION_BITS = 8
"""Of a weight, while an update is rounded."""
SCALE = ("multiplier", "shift", "rate", "p")
"""Operands that scale a gradient, see `step`."""


# ---- forward --------------------------------------------------------------------------------------------------------


@kernel("QConv")
def qconv(node: Node, features: Features) -> KernelSpec:
    """Sums of (x - zero) w, plus bias, requantised per channel; k x k gathers centred pixels as int16."""
    attrs = node.attrs
    assert isinstance(attrs, QConvAttrs)
    conv, shape = attrs.conv, node.outputs[0].shape
    parts = 1 if conv.split is None else 2
    weights = weight_parts(node.inputs[1 : 1 + parts])
    whole = whole_weight(weights, conv.split, 0, 3)
    bias, multiplier, shift = tables(node, 1 + parts, ("bias", "multiplier", "shift"))
    n, height, width, channels = node.inputs[0].shape

    kept = is_product(conv) or is_rows(node) or is_plane(node)
    factor, stages = kept_factors(multiplier, lambda o: i32(shift[o]), kept and not attrs.shifts_down)

    def weight(*index: Any) -> Any:
        return i32(whole(*index))

    def finish(acc: Any, *index: Any) -> Any:
        o = index[-1]
        limits = (i32(attrs.y_zero), i32(attrs.low), i32(attrs.high))
        if attrs.shifts_down:
            return call_int("tt_requantise8_down", acc, bias[o], multiplier[o], i32(shift[o]), *limits, dtype="int8")
        return call_int("tt_requantise8", acc, bias[o], *factor(o), *limits, dtype="int8")

    if is_product(conv):
        pixels = n * height * width
        x = placeholder(node.inputs[0], "x", (pixels, channels))
        extents, sliced = (pixels, shape[3], channels), conv.split is not None
        left = Widened(lambda i, a: x[i, a], -attrs.x_zero, contiguous=True)
        right = Widened(lambda j, a: whole(j, 0, 0, a), contiguous=not sliced, peel=sliced)
        out, schedule = pair_product(extents, left, right, finish, pair_tiles(*extents), features.style, stages)
        return KernelSpec([x, *weights, bias, multiplier, shift], [out], schedule)
    if is_rows(node):
        return _rows(node, weights[0], [bias, multiplier, shift], finish, features.style, stages)
    x = placeholder(node.inputs[0], "x")
    data, window = Centred(x, attrs.x_zero), Window(conv, (height, width))
    if conv.groups == 1:
        copies, patch = gathers(conv), forward_patch(conv, node.inputs[0].shape)
        form = PatchForm(shape, features.integer_tile, copies, conv.split is not None)

        def element(*index: Any) -> Any:
            return data[index].astype("int16") if copies else data[index]

        out, schedule = patch_conv(patch, form, element, weight, finish, i32)
    elif is_plane(node):
        out, schedule = depthwise(node, x, whole, finish, features.style, stages)
    else:
        out, schedule = grouped(shape, conv, data, weight, window.forward, finish)
    return KernelSpec([x, *weights, bias, multiplier, shift], [out], schedule)


def _rows(
    node: Node,
    w: te.Tensor,
    operands: list[te.Tensor],
    finish: Finish,
    style: CodeStyle,
    stages: Sequence[te.Tensor],
) -> KernelSpec:
    """k x k over all channels: a row of taps is a run of neighbours in a row of the image, less its zero point."""
    attrs = node.attrs
    assert isinstance(attrs, QConvAttrs)
    conv, (n, height, width, channels) = attrs.conv, node.inputs[0].shape
    run, border = conv.kernel[1] * channels, conv.pads[1] * channels
    x = placeholder(node.inputs[0], "x", (n, height, width * channels))
    w = placeholder(node.inputs[1], "w", (w.shape[0], conv.kernel[0], run))

    def element(b: Any, y: Any, position: Any) -> Any:
        row, place = y - conv.pads[0], position - border
        value = x[b, row, place].astype("int16") - tirx.const(attrs.x_zero, "int16")
        return guarded(inside_image(row, place, (height, width * channels)), value)

    pitches = (conv.strides[0], conv.strides[1] * channels)
    shape = node.outputs[0].shape
    tiles = forward_rows(node)
    out, schedule = row_conv(
        shape, pitches, element, lambda o, _p, _q, r, f: w[o, r, f], run, finish, tiles, style, stages
    )
    return KernelSpec([x, w, *operands], [out], schedule)


def depthwise(
    node: Node, x: te.Tensor, weight: Load, finish: Finish, style: CodeStyle, stages: Stages, lanes: bool = False
) -> tuple[te.Tensor, Schedule]:
    """Forward: the plane is the image less its zero point, with a border of zeros."""
    attrs = node.attrs
    assert isinstance(attrs, QConvAttrs)
    conv, (_, height, width, _) = attrs.conv, node.inputs[0].shape

    def pixel(b: Any, y: Any, s: Any, c: Any) -> Any:
        row, column = y - conv.pads[0], s - conv.pads[1]
        value = x[b, row, column, c].astype("int16") - tirx.const(attrs.x_zero, "int16")
        return guarded(inside_image(row, column, (height, width)), value)

    def tap(c: Any, _p: Any, _q: Any, r: Any, s: Any) -> Any:
        return guarded(s < conv.kernel[1], weight(c, r, s, 0).astype("int16"))

    shape, tiles = node.outputs[0].shape, forward_planes(node)
    columns = conv.kernel[1] if lanes else 0
    return plane_conv(shape, conv.strides, pixel, Taps(tap), finish, tiles, style, stages, columns)


# ---- errors ---------------------------------------------------------------------------------------------------------


@kernel("QConvGradInput")
def qconv_grad_input(node: Node, features: Features) -> KernelSpec:
    """Sums of g w, requantised per input channel to the exponent of the error that comes out."""
    attrs = node.attrs
    assert isinstance(attrs, QConvGradInputAttrs)
    conv, shape, out_c = attrs.conv, node.outputs[0].shape, node.inputs[3].shape[3]
    peak, p_out, p_in = tables(node, 0, ("peak", "p_out", "p_in"))
    multiplier, shift = tables(node, 4, ("multiplier", "shift"))
    weights = weight_parts(node.inputs[6 : 6 + (1 if conv.split is None else 2)])
    whole = whole_weight(weights, conv.split, 0, 3)
    pixels, flat = shape[0] * shape[1] * shape[2], is_product(conv)
    masks, keep = mask_operand(node, attrs.mask, (pixels, shape[3]) if flat else shape)
    g = placeholder(node.inputs[3], "g", (pixels, out_c) if flat else None)

    def weight(*index: Any) -> Any:
        return i32(whole(*index))

    def exponent(c: Any) -> Any:
        return i32(shift[c]) + p_in[0] - p_out[0]

    tiles = None if flat else gradient_rows(node, features)
    factor, stages = kept_factors(multiplier, exponent, flat or is_plane(node) or tiles is not None)

    def finish(acc: Any, *index: Any) -> Any:
        operands = (kept_here(keep, index), acc, *factor(index[-1]), address(peak))
        return call_int("tt_rescaled_error", *operands, dtype="int8")

    if flat:
        extents = (pixels, shape[3], out_c)
        left = Widened(lambda i, a: g[i, a], contiguous=True)
        right = _transposed_weight(node, weights, whole, features.turned)
        out, schedule = pair_product(extents, left, right, finish, pair_tiles(*extents), features.style, stages)
        inputs = [peak, p_out, p_in, g, multiplier, shift, *weights, *masks]
        return KernelSpec(inputs, [out, None], schedule)
    if tiles is not None:
        g = placeholder(node.inputs[3], "g", (*node.inputs[3].shape[:2], node.inputs[3].shape[2] * out_c))
        out, schedule = row_gradient(node, g, whole, finish, tiles, features.style, stages)
        inputs = [peak, p_out, p_in, g, multiplier, shift, *weights, *masks]
        return KernelSpec(inputs, [out, None], schedule)
    window = Window(conv, attrs.input_hw)
    if conv.groups == 1:
        patch, copies = error_patch(node), gathers_error(conv, attrs.input_hw)
        form = PatchForm(shape, features.integer_tile, copies, conv.split is not None, runs=False)
        out, schedule = patch_conv(patch, form, lambda *i: g[i], lambda o, r, s, a: weight(a, r, s, o), finish, i32)
    elif is_plane(node):
        out, schedule = depthwise_gradient(node, g, whole, finish, features.style, stages)
    else:
        out, schedule = grouped_grad_input(shape, conv, Centred(g), weight, window.backward, finish)
    inputs = [peak, p_out, p_in, g, multiplier, shift, *weights, *masks]
    return KernelSpec(inputs, [out, None], schedule)


def _transposed_weight(node: Node, weights: list[te.Tensor], whole: Load, turned: bool) -> Widened:
    """A 1x1 weight by (input channel, output channel); one in one part is regrouped to a matrix in `weights`."""
    attrs = node.attrs
    assert isinstance(attrs, QConvGradInputAttrs)
    if attrs.conv.split is not None:
        return Widened(lambda j, a: whole(a, 0, 0, j), peel=True)
    out_c, _, _, in_c = node.inputs[6].shape
    if turned:
        rows = weights[0] = placeholder(node.inputs[6], "w", (in_c, out_c))
        return Widened(lambda j, a: rows[j, a], contiguous=True)
    matrix = weights[0] = placeholder(node.inputs[6], "w", (out_c, in_c))
    return Widened(lambda j, a: matrix[a, j], pitch=in_c)


def depthwise_gradient(
    node: Node, g: te.Tensor, weight: Load, finish: Finish, style: CodeStyle, stages: Stages, lanes: bool = False
) -> tuple[te.Tensor, Schedule]:
    """The plane is the error with a border of zeros; taps run backwards.

    Between the rows of an error whose strides do not divide the image there are zeros; else the phases are computed
    one by one (see backward_phases), and the plane has only what there is.
    """
    attrs = node.attrs
    assert isinstance(attrs, QConvGradInputAttrs)
    conv, (_, height, width, _), phases = attrs.conv, node.inputs[3].shape, backward_phases(node)
    tiles = backward_planes(node)
    last = [-(-extent // count) - 1 for extent, count in zip(conv.kernel, phases, strict=True)]

    def pixel(b: Any, y: Any, s: Any, c: Any) -> Any:
        rows = [place + conv.pads[i] // phases[i] - last[i] for i, place in enumerate((y, s))]
        tests: list[Any] = []
        for axis, extent in enumerate((height, width)):
            stride = conv.strides[axis] // phases[axis]
            tests += [rows[axis] >= 0, rows[axis] < extent * stride]
            if stride > 1:
                tests.append(tirx.EQ(tirx.indexmod(rows[axis], stride), 0))
                rows[axis] = tirx.indexdiv(rows[axis], stride)
        return guarded(functools.reduce(tirx.And, tests), g[b, rows[0], rows[1], c].astype("int16"))

    def tap(c: Any, p: Any, q: Any, r: Any, s: Any) -> Any:
        places: list[Any] = []
        for axis, (phase, back) in enumerate(((p, last[0] - r), (q, last[1] - s))):
            places.append(back * phases[axis] + tirx.indexmod(phase + conv.pads[axis], phases[axis]))
        inside = [test for i, place in enumerate(places) for test in (place >= 0, place < conv.kernel[i])]
        return guarded(functools.reduce(tirx.And, inside), weight(c, *places, 0).astype("int16"))

    def ahead(p: Any, q: Any) -> tuple[Any, Any]:
        row, column = (
            tirx.indexdiv(phase + conv.pads[axis] % phases[axis], phases[axis]) for axis, phase in enumerate((p, q))
        )
        return row, column

    columns = last[1] + 1 if lanes else 0
    return plane_conv(node.outputs[0].shape, (1, 1), pixel, Taps(tap, ahead), finish, tiles, style, stages, columns)


# ---- weights --------------------------------------------------------------------------------------------------------


def step(operands: Sequence[te.Tensor], channel: Any, fraction_bits: int) -> tuple[Any, Any]:
    """(multiplier, exponent) that scale a channel's gradient; operands (multiplier, shift, rate, p)."""
    multiplier, shift, rate, p = operands
    exponent = shift[channel].astype("int32") + rate[1] + p[0] + i32(fraction_bits - 31)
    return call_int("tt_high_multiply", multiplier[channel], rate[0]), exponent


def kept_steps(
    scale: Sequence[te.Tensor], kept: Callable[[Any], Any] = lambda exponent: exponent
) -> tuple[Callable[[Any], Any], list[te.Tensor]]:
    """(channel -> (its multiplier, its exponent as it is kept), the stages that hold them in registers)."""
    shape = scale[0].shape
    size = te.compute(shape, lambda o: step(scale, o, FRACTION_BITS)[0], "size")
    exponent = te.compute(shape, lambda o: kept(step(scale, o, FRACTION_BITS)[1]), "exponent")
    return lambda o: (size[o], exponent[o]), [size, exponent]


def moved_weight(
    w: Any,
    gradient: Any,
    scale: tuple[Any, Any],
    noise: te.Tensor,
    salt: te.Tensor | None,
    index: Any,
    limit: int,
    spare: int = 0,
    move: str = "tt_quick_move",
) -> Any:
    """An int8 weight after its step; index: of the weight in its tensor; spare: free bits above the gradient's.

    noise: its state, or without a salt the seed of both.
    """
    random = call_int("tt_noise", noise[0], i32(0) if salt is None else salt[0], index)
    return call_int(move, i32(w), gradient, *scale, random, i32(limit), i32(spare), dtype="int8")


@kernel("QConvUpdate")
def qconv_update(node: Node, features: Features) -> KernelSpec:
    """The weight gradient of a few weights at a time in registers, then their step: the gradient is never stored."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    shape = node.inputs[0].shape
    w, scale = placeholder(node.inputs[0], "w"), tables(node, 3, SCALE)
    noise, salt = tables(node, 7, ("noise", "salt"))
    _, kernel_h, kernel_w, channels = shape

    spare = 31 - op_def(node.op).accumulator(node.inputs, attrs).bit_length()
    if keeps_tables(node, features):
        seed = te.compute((1,), lambda _i: call_int("tt_noise_seed", noise[0], salt[0]), "seed")
        kept, stages = kept_steps(scale, lambda e: call_int("tt_step_down", e, i32(spare)))
        stages, random, move = [*stages, seed], (seed, None), "tt_kept_move"
    else:
        kept, stages, random, move = None, [], (noise, salt), "tt_quick_move"

    def finish(acc: Any, o: Any, r: Any, s: Any, i: Any) -> Any:
        index = ((o * kernel_h + r) * kernel_w + s) * channels + i
        size = kept(o) if kept else step(scale, o, FRACTION_BITS)
        return moved_weight(w[o, r, s, i], acc, size, *random, index, attrs.limit, spare, move)

    x, g, out, schedule = weight_gradient(node, attrs, shape, finish, features, stages)
    return KernelSpec([w, x, g, *scale, noise, salt], [out], schedule)


@kernel("QConvSum")
def qconv_sum(node: Node, features: Features) -> KernelSpec:
    """The weight gradient, added to its running sum."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    summed = placeholder(node.inputs[0], "sum")

    def finish(acc: Any, *index: Any) -> Any:
        return call_int("tt_add", summed[index], acc)

    x, g, out, schedule = weight_gradient(node, attrs, node.inputs[0].shape, finish, features)
    return KernelSpec([summed, x, g], [out], schedule)
