"""Arguments of an op's external kernel: its operands, and the numbers of its layer (tt_external.h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.names import attrs_of, operand, result

Shape = tuple[int, ...]
_CONV = (
    *("batch", "in_h", "in_w", "in_c", "out_h", "out_w", "out_c", "kernel_h", "kernel_w", "stride_h", "stride_w"),
    *("dilation_h", "dilation_w", "pad_top", "pad_left", "pad_bottom", "pad_right", "groups"),
)
_QUANT = ("x_zero", "y_zero", "low", "high")
_GEMM = ("rows", "in_c", "out_c")


@dataclass(frozen=True)
class ExternalForm:
    """Call of an external kernel: macro of its signature, C type of its layer, operands before the output.

    optional: whether the last operand may be missing (NULL). names: of the layer's numbers, in the order of its C type.
    values: node -> these numbers; nested: how many of them are in a nested struct, with which the C type begins.
    """

    macro: str
    layer: str
    operands: tuple[str, ...]
    names: tuple[str, ...]
    values: Callable[[Node], tuple[int, ...]]
    optional: bool = False
    nested: int = 0

    def numbers(self, node: Node) -> dict[str, int]:
        """Return the layer's numbers by name."""
        return dict(zip(self.names, self.values(node), strict=True))


def _conv_numbers(conv: ConvAttrs, image: Shape, result: Shape) -> tuple[int, ...]:
    return (*image, *result[1:], *conv.kernel, *conv.strides, *conv.dilations, *conv.pads, conv.groups)


def _conv(node: Node) -> tuple[int, ...]:
    attrs = attrs_of(node, ConvAttrs)
    return _conv_numbers(attrs, operand(node, "x").shape, result(node, "y").shape)


def _conv_grad_input(node: Node) -> tuple[int, ...]:
    attrs = attrs_of(node, ConvGradInputAttrs)
    return _conv_numbers(attrs.conv, result(node, "dx").shape, operand(node, "dy").shape)


def _conv_grad_weight(node: Node) -> tuple[int, ...]:
    attrs = attrs_of(node, ConvAttrs)
    return _conv_numbers(attrs, operand(node, "x").shape, operand(node, "dy").shape)


def _qconv(node: Node) -> tuple[int, ...]:
    attrs = attrs_of(node, QConvAttrs)
    geometry = _conv_numbers(attrs.conv, operand(node, "x").shape, result(node, "y").shape)
    return (*geometry, attrs.x_zero, attrs.y_zero, attrs.low, attrs.high)


def _gemm(node: Node) -> tuple[int, ...]:
    (rows, in_c), (_, out_c) = operand(node, "x").shape, result(node, "y").shape
    return rows, in_c, out_c


def _gemm_grad_input(node: Node) -> tuple[int, ...]:
    (rows, out_c), (_, in_c) = operand(node, "dy").shape, result(node, "dx").shape
    return rows, in_c, out_c


def _gemm_grad_weight(node: Node) -> tuple[int, ...]:
    (rows, in_c), (_, out_c) = operand(node, "x").shape, operand(node, "dy").shape
    return rows, in_c, out_c


EXTERNAL_FORMS: Mapping[str, ExternalForm] = {
    "Conv": ExternalForm("TT_EXTERNAL_CONV", "tt_conv_layer", ("x", "w", "bias"), _CONV, _conv, True),
    "ConvGradInput": ExternalForm("TT_EXTERNAL_CONV_DX", "tt_conv_layer", ("dy", "w"), _CONV, _conv_grad_input),
    "ConvGradWeight": ExternalForm("TT_EXTERNAL_CONV_DW", "tt_conv_layer", ("x", "dy"), _CONV, _conv_grad_weight),
    "Gemm": ExternalForm("TT_EXTERNAL_GEMM", "tt_gemm_layer", ("x", "w", "bias"), _GEMM, _gemm, True),
    "GemmGradInput": ExternalForm("TT_EXTERNAL_GEMM_DX", "tt_gemm_layer", ("dy", "w"), _GEMM, _gemm_grad_input),
    "GemmGradWeight": ExternalForm("TT_EXTERNAL_GEMM_DW", "tt_gemm_layer", ("x", "dy"), _GEMM, _gemm_grad_weight),
    "QConv": ExternalForm(
        "TT_EXTERNAL_QCONV",
        "tt_qconv_layer",
        ("x", "w", "bias", "multiplier", "shift"),
        (*_CONV, *_QUANT),
        _qconv,
        nested=len(_CONV),
    ),
}
"""The ops that --kernels may replace."""


def external_form(node: Node) -> ExternalForm | None:
    """Return the form of a node's external call; None if it cannot have one: another op, or a weight in two parts."""
    form, attrs = EXTERNAL_FORMS.get(node.op), node.attrs
    geometry: Any = attrs.conv if isinstance(attrs, QConvAttrs | ConvGradInputAttrs) else attrs
    split = isinstance(geometry, ConvAttrs | GemmAttrs) and geometry.split is not None
    return None if split else form
