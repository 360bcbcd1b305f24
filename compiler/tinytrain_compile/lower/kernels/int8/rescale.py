"""Rescaling of channels: a helper per channel writes everything but the shift that it returns."""

from __future__ import annotations

from dataclasses import fields

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Index, KernelSpec, address, call_int, i32, kernel, placeholder, plain
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.ops.int8.rescale import ChannelRescaleAttrs, Operands

_SHIFT = 3
"""Which operand the helper returns."""


@kernel("ChannelRescale", "ChannelRescaleBias", "ChannelRescaleFine", "ChannelRescaleBiasFine")
def channel_rescale(node: Node, _context: KernelContext) -> KernelSpec:
    """One channel at a time; operands that are not there are null."""
    attrs = node.attrs
    assert isinstance(attrs, ChannelRescaleAttrs)
    weight = node.inputs[0]
    rows, row = weight.shape[0], weight.elements // weight.shape[0]
    named = Operands.of(node.inputs, attrs)
    names = [field.name for field in fields(named) if getattr(named, field.name) is not None]
    inputs = [
        placeholder(value, name, (rows, row) if name in ("w", "fraction") else None)
        for name, value in zip(names, node.inputs, strict=True)
    ]
    o = Operands.of(tuple(inputs), attrs)

    def place(operand: te.Tensor | None, *index: Index) -> Expr:
        return i32(0) if operand is None else address(operand, *index)

    def channel(r: Expr) -> Expr:
        c = r if o.channels is None else o.channels[r]
        tables = [place(table, c) for table in (o.forward, o.error, o.bias, o.bias_shift)]
        rows_of = (place(o.w, r, 0), place(o.fraction, r, 0), i32(row), i32(attrs.limit))
        return call_int("tt_rescale_channel", *rows_of, o.shift[r].astype("int32"), *tables, dtype="int8")

    outputs: list[te.Tensor | None] = [None] * len(node.outputs)
    outputs[_SHIFT] = te.compute((rows,), channel, "out")
    return KernelSpec(inputs, outputs, plain)
