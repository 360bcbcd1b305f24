"""Dilated depthwise convolutions on vectors whose taps are gathered from a copy of the image (tt_mve_taps.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LARGEST_PITCH
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, struct, tensors, written
from tinytrain_compile.lower.kernels.int8.helium.odd import end_of
from tinytrain_compile.lower.kernels.int8.helium.windows import cost_in_bands
from tinytrain_compile.lower.kernels.int8.operands import kept_of
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import geometry, is_spread, spreads_error
from tinytrain_compile.ops.int8.gather_form import Copied, cost_of, gathered_windows, map_of
from tinytrain_compile.ops.names import attrs_of, result

_LITTLE, _WORTH = 1.1, 0.95
"""Bands stay if dilation costs them at most this much, or if gathers save less: a gather is one instruction, but a core
may read its bytes one after the other."""


def _pays(node: Node, cut: Copied) -> bool:
    """Tell whether gathers are worth it: bands would take more, and more than without dilation.

    A call has about the same to prepare for either.
    """
    cost, bands = cost_of(node, cut), cost_in_bands(node)
    if bands is None:
        return True
    attrs: Any = node.attrs
    plain = cost_in_bands(replace(node, attrs=replace(attrs, conv=replace(attrs.conv, dilations=(1, 1)))))
    return cost < _WORTH * bands and (plain is None or bands > _LITTLE * plain)


def _gathered(node: Node) -> tuple[Copied, list[Expr]] | None:
    """Return how a dilated layer is cut, and the numbers of its call; None if bands are as good or it does not fit."""
    conv, channels = geometry(node), node.outputs[0].shape[3]
    if conv.split is not None or channels >= LARGEST_PITCH:
        return None
    cut = gathered_windows(node, op_def(node.op).scratch(node))
    if cut is None or not _pays(node, cut):
        return None
    zero = attrs_of(node, QConvAttrs).x_zero if node.op == "QConv" else 0
    apart = (conv.dilations[0] if conv.kernel[0] > 1 else 1, conv.dilations[1])
    return cut, [
        struct("tt_image_of", (*map_of(node)[0], *conv.pads[:2], zero)),
        struct("tt_taps_of", (*conv.kernel, *conv.strides, *conv.kernel)),
        *map(i32, apart),
        *map(struct, ("tt_copied_of", "tt_listed_of"), cut.numbers),
    ]


def gathered_depthwise(node: Node) -> KernelSpec | None:
    """Compute a depthwise QConv with dilated windows; None for others, and if bands are as good."""
    found = _gathered(node) if is_spread(node) else None
    if found is None:
        return None
    cut, numbers = found
    inputs = tensors(node, "x", "w", "bias", "multiplier", "shift")
    scratch = tirx.decl_buffer((cut.scratch_bytes,), "int8", "copy")

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        end = end_of(attrs_of(node, QConvAttrs))
        call = called("tt_depthwise8_gathered", *map(first, (y, scratch, *given)), *numbers, end)
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), call)

    return KernelSpec(inputs, [written(inputs, result(node, "y").shape, "int8", make)], plain)


def gathered_gradient(node: Node) -> KernelSpec | None:
    """Compute a depthwise QConvGradInput with dilated windows; None for others, and if bands are as good."""
    attrs = attrs_of(node, QConvGradInputAttrs)
    by_bits = attrs.mask.kind == "bits" and result(node, "error").shape[3] % 8 > 0  # its bits are not in whole bytes
    before = map_of(node)[2]
    found = _gathered(node) if spreads_error(node) and not by_bits and min(before) >= 0 else None
    if found is None:
        return None
    cut, numbers = found
    names = ("peak", "p_out", "p_in", "g", "multiplier", "shift", "w", *attrs.mask.operands)
    inputs, scratch = tensors(node, *names), tirx.decl_buffer((cut.scratch_bytes,), "int8", "copy")

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        peak, p_out, p_in, g, multiplier, shift, w, *others = given
        mask = others[0] if others else g
        places = map(first, (y, scratch, peak, g, w, multiplier, shift, mask))
        exponent = p_in[(0,)] - p_out[(0,)]
        call = called("tt_depthwise8_gathered_error", *places, exponent, *numbers, kept_of(attrs.mask))
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), call)

    return KernelSpec(inputs, [written(inputs, result(node, "error").shape, "int8", make), None], plain)
