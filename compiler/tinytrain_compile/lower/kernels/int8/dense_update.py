"""Updates of a dense layer's weights of one sample: the gradient is a column times a row, and a helper does all."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, address, call_int, flat_tensor, i32, plain, tensors
from tinytrain_compile.ops.int8.conv import QConvUpdateAttrs
from tinytrain_compile.ops.int8.conv_form import is_rank_one
from tinytrain_compile.ops.names import operand, operands

LIFT_BITS = 7
"""TT_LIFT of tt_dense_update.h."""
LEAST_LIMIT = 64
"""Of weights: what numbers of 16 bits have beyond a smaller one, twice, is no number of 16 bits (tt_limited_x8)."""


def dense_update(node: Node) -> KernelSpec | None:
    """QConvUpdate and QConvUpdateFine of one pixel, with squares or without: inputs are widened once; None: another."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    if not is_rank_one(node) or attrs.limit < LEAST_LIMIT:
        return None
    w, x, g = flat_tensor(node, "w"), flat_tensor(node, "x"), flat_tensor(node, "g")
    scale = tensors(node, "multiplier", "shift", "rate", "p")
    multiplier, shift, rate, p = scale
    inputs, outputs = operand(node, "x").elements, operand(node, "g").elements

    def lifted(i: Expr) -> Expr:
        return ((i32(x[i]) - i32(attrs.x_zero)) * i32(1 << LIFT_BITS)).astype("int16")

    wide = te.compute((inputs,), lifted, "wide")
    steps = (address(g), address(multiplier), address(shift), address(rate), p[0])
    rows = tensors(node, "rows?")
    count = i32(outputs)
    if rows:
        count = call_int("tt_dense_squares", address(rows[0]), address(wide), address(g), count, i32(inputs))
    numbers, summed = (count, i32(inputs), i32(attrs.limit)), [None for _ in rows]
    if "fraction" in operands(node):
        fraction = flat_tensor(node, "fraction")

        def fine(_i: Expr) -> Expr:
            return call_int(
                "tt_dense_update_fine", address(w), address(fraction), address(wide), *steps, *numbers, dtype="int8"
            )

        return KernelSpec([w, x, g, *scale, fraction, *rows], [te.compute((1,), fine, "out"), None, *summed], plain)
    noise, salt = tensors(node, "noise", "salt")

    def moved(_i: Expr) -> Expr:
        seed = call_int("tt_noise_seed", noise[0], salt[0])
        return call_int("tt_dense_update", address(w), address(wide), *steps, seed, *numbers, dtype="int8")

    return KernelSpec([w, x, g, *scale, noise, salt, *rows], [te.compute((1,), moved, "out"), *summed], plain)
