"""Dropout: a hash for every element; no mask is kept."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    call_int,
    f32,
    i32,
    kernel,
    plain,
    select,
    tensor,
    tensors,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.ops.dropout import CountAttrs, RandomDropoutAttrs
from tinytrain_compile.ops.names import attrs_of, operand


@kernel("RandomDropout")
def random_dropout(node: Node, _context: KernelContext) -> KernelSpec:
    """Sample by sample; if nothing is dropped, limit 0 and scale 1 replace the real ones."""
    attrs = attrs_of(node, RandomDropoutAttrs)
    shape = (attrs.samples, operand(node, "x").elements // attrs.samples)
    x, (count, active) = tensor(node, "x", shape), tensors(node, "count", "active")

    def element(sample: Expr, index: Expr) -> Expr:
        drawn = call_int("tt_random", i32(attrs.seed), count[0] + i32(sample), i32(index))
        kept = x[sample, index] * select(active[0] > 0, f32(attrs.scale), f32(1))
        return select(drawn < select(active[0] > 0, i32(attrs.limit), i32(0)), f32(0), kept)

    return KernelSpec([x, count, active], [te.compute(shape, element, "out")], plain)


@kernel("CountSamples")
def count_samples(node: Node, _context: KernelContext) -> KernelSpec:
    """Add once."""
    attrs = attrs_of(node, CountAttrs)
    count = tensor(node, "count")
    out = te.compute(count.shape, lambda i: call_int("tt_counted", count[i], i32(attrs.samples)), "count_new")
    return KernelSpec([count], [out], plain)
