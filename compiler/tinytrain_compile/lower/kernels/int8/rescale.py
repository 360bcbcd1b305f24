"""Rescaling of channels: a helper per channel writes everything except the shift, which it returns."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelSpec,
    address,
    call_int,
    channel_rows,
    i32,
    kernel,
    plain,
    tensor,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.ops.int8.rescale import ChannelRescaleAttrs
from tinytrain_compile.ops.names import attrs_of, operand, operands, result


@kernel("ChannelRescale")
def channel_rescale(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one channel at a time; missing operands are null."""
    attrs = attrs_of(node, ChannelRescaleAttrs)
    rows, row = channel_rows(operand(node, "w"))
    given = {name: tensor(node, name, (rows, row) if name in ("w", "fraction") else None) for name in operands(node)}

    def place(name: str, *index: Index) -> Expr:
        return address(given[name], *index) if name in given else i32(0)

    def channel(r: Expr) -> Expr:
        c = given["channels"][r] if "channels" in given else r
        tables = [place(table, c) for table in ("forward", "error", "bias", "bias_shift")]
        rows_of = (place("w", r, 0), place("fraction", r, 0), i32(row), i32(attrs.limit))
        return call_int("tt_rescale_channel", *rows_of, given["shift"][r].astype("int32"), *tables, dtype="int8")

    written = te.compute((rows,), channel, "out")
    outputs = [written if value == result(node, "shift") else None for value in node.outputs]
    return KernelSpec([*given.values()], outputs, plain)
