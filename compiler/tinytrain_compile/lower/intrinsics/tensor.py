"""Instructions that schedules request by pattern: the algebra of a C helper, and its call.

The algebra lets tensorising a loop prove that the helper computes it (tt_dsp_sums.h, tt_dsp_tiles.h, tt_mve_sums.h).
Each function here names one such intrinsic and enters it into TVM's table.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import Buffer, Expr, PrimFunc, Var, address_of, call_extern, const
from tvm.tirx.script import builder

READS_ONLY = (
    "tt_dot4",
    "tt_dot2",
    "tt_dot_direct",
    "tt_passed8",
    "tt_passed_x8",
    "tt_sum8",
    "tt_tap_gradient8",
    "tt_stepped_bias",
    "tt_above8_f32",
    "tt_between8_f32",
    "tt_conv_tables_of",
    "tt_dense_ends_of",
)
"""Helpers that only read what their arguments point to."""
WRITES_FIRST = {
    "tt_widen4": 1,
    "tt_gather4": 1,
    "tt_widen_two": 1,
    "tt_gather_two": 1,
    "tt_dot_2x2": 4,
    "tt_dot_direct_2x2": 4,
    "tt_dot_direct_1x4": 4,
    "tt_dot_direct_4x1": 4,
    "tt_dot_columns_1x4": 4,
    "tt_dot_windows": 4,
    "tt_dot_4x4": 1,
    "tt_dot8_x4": 4,
    "tt_dot16_x4": 4,
    "tt_copy8": 1,
    "tt_gather8": 1,
    "tt_sum_columns": 4,
    "tt_ends_2x2": 1,
    "tt_copy_two": 1,
    "tt_dense_update": 1,
    "tt_dense_update_fine": 2,
    "tt_dense_momentum": 4,
    "tt_dense_momentum_fine": 5,
    "tt_dense_squares": 1,
    "tt_passed_bits8": 1,
    "tt_depthwise_rows3": 1,
    "tt_depthwise_pairs": 2,
    "tt_depthwise_spread": 2,
    "tt_depthwise_line": 2,
    "tt_depthwise_spread_error": 3,
    "tt_depthwise_line_error": 3,
    "tt_depthwise_maps3": 1,
    "tt_depthwise8": 2,
    "tt_depthwise8_rows": 2,
    "tt_dense8": 2,
    "tt_product8": 2,
    "tt_conv8": 2,
    "tt_conv16": 2,
    "tt_conv_few": 2,
    "tt_max_pool8": 1,
    "tt_max_pool": 1,
    "tt_max_pool_fpv5": 1,
    "tt_max_pool_f32x4": 1,
    "tt_max_pool_grad": 1,
    "tt_average_pool": 1,
    "tt_average_pool_f32x4": 1,
    "tt_average_pool_inside": 1,
    "tt_average_pool_inside_f32x4": 1,
    "tt_average_pool_grad": 1,
    "tt_average_pool_grad_f32x4": 1,
    "tt_depthwise8_error": 3,
    "tt_depthwise8_error_rows": 3,
    "tt_conv8_error": 3,
    "tt_lines8_error": 3,
    "tt_windows_error": 3,
    "tt_windows_error4": 3,
    "tt_pairs_error": 3,
    "tt_depthwise_error": 3,
    "tt_depthwise_error_x4": 2,
    "tt_depthwise_error3": 2,
    "tt_conv8_update": 2,
    "tt_conv8_update_fine": 3,
    "tt_conv8_sums": 2,
    "tt_conv8_moves": 6,
}
"""Helpers -> number of leading arguments through which they write; they read through the others."""


WORDS = 3
"""Words of a channel: bias, factor and shift."""

ARRAY = "local.array"
"""Scope of a stage that is a small array on the stack; those of scope "local" are variables, others are in scratch."""

Index = Expr | int
At = Callable[..., tuple[Index, ...]]
"""Loop variables -> index of an element."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an intrinsic reads or writes; strides: in elements, if it is not dense; scope: see ARRAY."""

    shape: tuple[int, ...]
    dtype: str = "int32"
    strides: tuple[int, ...] | None = None
    scope: str = "global"

    @property
    def places(self) -> list[tuple[int, ...]]:
        """Indices of all elements, in order."""
        return list(itertools.product(*map(range, self.shape)))

    def declared(self) -> Buffer:
        """Return the parameter for the operand, at any offset in memory."""
        return builder.buffer(
            self.shape, self.dtype, strides=self.strides, scope=self.scope, offset_factor=1, layout=None
        )


def first_of(buffer: Buffer) -> Expr:
    """Return the address of the first element."""
    return address_of(buffer[(0,) * len(buffer.shape)])


def _several(variables: Sequence[Var] | Var) -> list[Var]:
    """Return variables as a list; TVM passes a single variable without one."""
    return [variables] if isinstance(variables, Var) else list(variables)


def define(
    name: str,
    operands: Mapping[str, Operand],
    loops: str,
    extents: Sequence[int],
    element: Callable[..., tuple[Sequence[Index], Expr]],
    call: Callable[..., Expr],
    accumulates: bool = False,
    stores: bool = False,
) -> str:
    """Enter an intrinsic whose last operand is the result; return its name.

    loops: S (along the result) or R (along a sum), for each extent. element: (operands, loop variables, S first) ->
    (index, value) of an element of the result. call: operands -> call of the helper. accumulates: elements are added to
    the result's old ones. stores: the call returns the element instead of writing through an address.
    """

    def function(label: str, fill: Callable[[list[Buffer]], None]) -> PrimFunc:
        with IRBuilder() as made, builder.prim_func(s_tir=True):
            builder.func_name(label)
            buffers = [builder.arg(name, operand.declared()) for name, operand in operands.items()]
            whole = [buffer[tuple(slice(0, n) for n in buffer.shape)] for buffer in buffers]
            with builder.sblock("root"):
                builder.reads(*(whole[-1:] if accumulates else ()), *whole[:-1])
                builder.writes(whole[-1])
                fill(buffers)
        return made.get()

    def algebra(buffers: list[Buffer]) -> None:
        with builder.grid(*extents) as variables:
            sides = sorted(zip(loops, _several(variables), strict=True), key=lambda side: side[0] == "R")
            with builder.sblock("u"):
                bound = builder.axis.remap("".join(kind for kind, _ in sides), [variable for _, variable in sides])
                index, value = element(*buffers, *_several(bound))
                old = buffers[-1][tuple(index)]
                builder.buffer_store(buffers[-1], old + value if accumulates else value, index)

    def code(buffers: list[Buffer]) -> None:
        if stores:
            builder.buffer_store(buffers[-1], call(*buffers), [0])
        else:
            builder.evaluate(call(*buffers))

    TensorIntrin.register(name, function("algebra", algebra), function("code", code), override=True)
    return name


# ---- sums of products ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """A factor of a sum's terms: (variables along the sums, then reduced ones) -> index of its element."""

    operand: Operand
    at: At


def _sums(
    name: str,
    helper: str,
    sums: tuple[int, ...],
    reduced: tuple[int, ...],
    factors: Sequence[Factor],
    *numbers: int,
    reduced_first: bool = False,
) -> str:
    """Define sums[..] += product of the factors over the `reduced` loops, which are inside those along the sums.

    The helper gets the addresses of four sums, or the value of one, which it returns; then the addresses of the
    factors, and numbers. reduced_first: the loops along the sums are inside. TVM drops loops of one turn.
    """
    result, single = Operand(sums, scope="local"), sums == (1,)
    along = tuple(extent for extent in sums if extent > 1)
    operands = {name: factor.operand for name, factor in zip("ab", factors, strict=False)}

    def element(*given: Any) -> tuple[Sequence[Index], Expr]:
        buffers, places = given[: len(factors)], given[len(factors) + 1 :]
        terms = [buffer[factor.at(*places)] for buffer, factor in zip(buffers, factors, strict=True)]
        spatial = iter(places)
        index = [next(spatial) if extent > 1 else 0 for extent in sums]
        return index, reduce(operator.mul, (term.astype("int32") for term in terms))

    def call(*buffers: Buffer) -> Expr:
        *values, acc = buffers
        held = [acc[(0,)]] if single else [address_of(acc[place]) for place in result.places]
        return call_extern("int32", helper, *held, *map(first_of, values), *numbers)

    loops, extents = "S" * len(along) + "R" * len(reduced), (*along, *reduced)
    if reduced_first:
        loops, extents = "R" * len(reduced) + "S" * len(along), (*reduced, *along)
    return define(name, operands | {"c": result}, loops, extents, element, call, accumulates=True, stores=single)


def _four(s: Index, k: Index, h: Index) -> Index:
    """Return the place in a row of element (odd, half) of a block of four, as a DSP's pairs of int16 have them."""
    return s * 4 + k + h * 2


@cache
def dot(lanes: int) -> str:
    """Name the intrinsic sum += a[k] b[k] over 2 or 4 int16."""
    row = Factor(Operand((lanes,), "int16"), lambda k: (k,))
    return _sums(f"tt_dot{lanes}", f"tt_dot{lanes}", (1,), (lanes,), (row, row))


@cache
def dot4_spread() -> str:
    """Name the intrinsic sum += a[k] b[k] over 2x2 int16."""
    square = Factor(Operand((2, 2), "int16"), lambda k, h: (k, h))
    return _sums("tt_dot4_spread", "tt_dot4", (1,), (2, 2), (square, square))


@cache
def dot_2x2(blocks: int) -> str:
    """Name the intrinsic sum[i, j] += a[block, i, k] b[block, j, k] over blocks of 2x2 int16 of two rows."""
    outer = (blocks,) if blocks > 1 else ()
    rows = Operand((*outer, 2, 2, 2), "int16")
    a = Factor(rows, lambda i, j, *k: (*k[:-2], i, *k[-2:]))
    b = Factor(rows, lambda i, j, *k: (*k[:-2], j, *k[-2:]))
    return _sums(f"tt_dot_2x2_{blocks}", "tt_dot_2x2", (2, 2), (*outer, 2, 2), (a, b), blocks)


@cache
def dot_direct(tile: tuple[int, int], blocks: int, pitch: int) -> str:
    """Name sum[i, j] += a[block, i, odd, half] b[j, 4 block + odd + 2 half] of a tile 2x2, 1x4, 4x1 or 1x1.

    a: blocks of int16; b: rows of int8, `pitch` elements apart. blocks: more than 1.
    """
    rows, columns = tile
    a = Factor(Operand((blocks, rows, 2, 2), "int16"), lambda *at: (at[-3], at[0] if rows > 1 else 0, *at[-2:]))
    name, helper = f"tt_dot_direct_{rows}x{columns}", "tt_dot_direct"
    if tile == (1, 1):
        b, numbers = Factor(Operand((4 * blocks,), "int8"), lambda *at: (_four(*at),)), (blocks,)
    else:
        row = Operand((columns, 4 * blocks), "int8", (pitch, 1))
        b = Factor(row, lambda *at: (at[-4] if columns > 1 else 0, _four(*at[-3:])))
        helper, numbers = name, (pitch, blocks)
    sums = tile if rows > 1 else (columns,)
    return _sums(f"{name}_{blocks}_{pitch}", helper, sums, (blocks, 2, 2), (a, b), *numbers)


@cache
def dot_columns(blocks: int, pitch: int) -> str:
    """Name sum[j] += a[block, 0, odd, half] b[4 block + odd + 2 half, j] of a row and four columns of int8.

    pitch: elements of int8 from a row to the next.
    """
    a = Factor(Operand((blocks, 1, 2, 2), "int16"), lambda j, s, k, h: (s, 0, k, h))
    b = Factor(Operand((4 * blocks, 4), "int8", (pitch, 1)), lambda j, s, k, h: (_four(s, k, h), j))
    name = f"tt_dot_columns_1x4_{blocks}_{pitch}"
    return _sums(name, "tt_dot_columns_1x4", (4,), (blocks, 2, 2), (a, b), pitch, blocks)


@cache
def dot_windows(rows: int, run: int, pitch: int, apart: int, in_turn: bool) -> str:
    """Name sum[i, j] += a[row, i * apart + k] b[j, row, k] over rows of `run` int16; pitch: of a row of a.

    in_turn: of b[row, j, k], its two windows row by row.
    """
    a = Factor(Operand((rows, apart + run), "int16", (pitch, 1)), lambda i, j, r, k: (r, i * apart + k))
    if in_turn:
        b, step = Factor(Operand((rows, 2, run), "int16"), lambda i, j, r, k: (r, j, k)), run
    else:
        b, step = Factor(Operand((2, rows, run), "int16"), lambda i, j, r, k: (j, r, k)), rows * run
    name = f"tt_dot_windows_{rows}_{run}_{pitch}_{apart}_{int(in_turn)}"
    return _sums(name, "tt_dot_windows", (2, 2), (rows, run), (a, b), rows, run, pitch, apart, step)


@cache
def dot_x4(count: int) -> str:
    """Name the intrinsic sum[j] += a[k] b[j, k] over `count` int8 of a row and of four rows."""
    a = Factor(Operand((count,), "int8"), lambda j, k: (k,))
    b = Factor(Operand((4, count), "int8"), lambda j, k: (j, k))
    return _sums(f"tt_dot8_x4_{count}", "tt_dot8_x4", (4,), (count,), (a, b), count)


@cache
def taps_x4(count: int, step: int) -> str:
    """Name the intrinsic sum[i] += a[i step + k] b[k] over `count` int16 of a row."""
    a = Factor(Operand((3 * step + count,), "int16"), lambda i, k: (i * step + k,))
    b = Factor(Operand((count,), "int16"), lambda i, k: (k,))
    return _sums(f"tt_dot16_x4_{count}_{step}", "tt_dot16_x4", (4,), (count,), (a, b), step, count)


@cache
def row_sum(count: int) -> str:
    """Name the intrinsic sum += a[k] over `count` int8."""
    a = Factor(Operand((count,), "int8"), lambda k: (k,))
    return _sums(f"tt_sum8_{count}", "tt_sum8", (1,), (count,), (a,), count)


@cache
def sum_columns(rows: int, pitch: int) -> str:
    """Name the intrinsic sum[j] += a[k, j] over rows of four int8, `pitch` elements apart."""
    a = Factor(Operand((rows, 4), "int8", (pitch, 1)), lambda j, k: (k, j))
    name = f"tt_sum_columns_{rows}_{pitch}"
    return _sums(name, "tt_sum_columns", (4,), (rows,), (a,), rows, pitch, reduced_first=True)


# ---- copies ----------------------------------------------------------------------------------------------------------


def _copy(
    name: str,
    helper: str,
    source: Operand,
    target: Operand,
    at: At,
    *numbers: int,
    value: Callable[[Expr], Expr] = lambda element: element,
) -> str:
    """Define target[index] = value(source[at(*index)]); the helper gets the target's address, the source's, and
    numbers."""

    def call(x: Buffer, d: Buffer) -> Expr:
        return call_extern("int32", helper, first_of(d), first_of(x), *numbers)

    def element(x: Buffer, _d: Buffer, *index: Expr) -> tuple[Sequence[Index], Expr]:
        return index, value(x[at(*index)])

    return define(name, {"x": source, "d": target}, "S" * len(target.shape), target.shape, element, call)


def _widened(offset: int) -> Callable[[Expr], Expr]:
    """Return element -> element + offset as int16, as TIR simplifies it."""

    def widen(element: Expr) -> Expr:
        wide = element.astype("int16")
        return wide + const(offset, "int16") if offset else wide

    return widen


@cache
def widen4(offset: int, pitch: int, columns: bool) -> str:
    """Name to[odd, half] = from[odd + 2 half] + offset for four int8 of a row or column that become int16."""
    target, value = Operand((2, 2), "int16"), _widened(offset)
    if columns:
        source = Operand((4, 1), "int8", (pitch, 1))
        name = f"tt_widen4_{offset}_{pitch}"
        return _copy(name, "tt_gather4", source, target, lambda i, h: (i + h * 2, 0), pitch, offset, value=value)
    source = Operand((4,), "int8")
    return _copy(f"tt_widen4_{offset}", "tt_widen4", source, target, lambda i, h: (i + h * 2,), offset, value=value)


@cache
def widen_two(offset: int, pitch: int, columns: bool, blocks: int) -> str:
    """Name to[block, p, odd, half] = from[p, 4 block + odd + 2 half] + offset for two rows, or columns."""
    order = -1 if columns else 1
    return _copy(
        f"tt_widen_two_{offset}_{pitch}_{int(columns)}_{blocks}",
        "tt_gather_two" if columns else "tt_widen_two",
        Operand((2, 4 * blocks)[::order], "int8", (pitch, 1)),
        Operand((blocks, 2, 2, 2), "int16"),
        lambda s, p, i, h: (p, _four(s, i, h))[::order],
        *(pitch, offset, blocks),
        value=_widened(offset),
    )


@cache
def copy_two(blocks: int, apart: int) -> str:
    """Name to[block, p, i, h] = from[p * apart + 4 block + 2 i + h]: two windows of a line for tt_dot_2x2."""
    outer = (blocks,) if blocks > 1 else ()  # TVM drops loops of one turn
    source, target = Operand((apart + 4 * blocks,), "int16"), Operand((*outer, 2, 2, 2), "int16")

    def at(*index: Expr) -> tuple[Index, ...]:
        *s, p, i, h = index
        return (sum((block * 4 for block in s), p * apart) + i * 2 + h,)

    return _copy(f"tt_copy_two_{blocks}_{apart}", "tt_copy_two", source, target, at, apart, blocks)


@cache
def copy_row(count: int) -> str:
    """Name the intrinsic to[i] = from[i] for `count` int8."""
    row = Operand((count,), "int8")
    return _copy(f"tt_copy8_{count}", "tt_copy8", row, row, lambda i: (i,), count)


@cache
def turn_column(count: int, pitch: int) -> str:
    """Name the intrinsic to[i] = from[i * pitch] for `count` int8 of a column."""
    source, target = Operand((count, 1), "int8", (pitch, 1)), Operand((count,), "int8")
    return _copy(f"tt_gather8_{count}_{pitch}", "tt_gather8", source, target, lambda i: (i, 0), pitch, count)


# ---- ends of sums ----------------------------------------------------------------------------------------------------


def _ends(name: str, words: Operand, of: At, result: Operand, to: At, zero: int, call: Callable[..., Expr]) -> str:
    """Define result[to(i, j)] = tt_requantise8_kept(sum[i, j], the words of(j), ..) of a tile of 2x2 sums."""

    def element(c: Buffer, e: Buffer, _y: Buffer, i: Expr, j: Expr) -> tuple[Sequence[Index], Expr]:
        own = [e[of(j, word)] for word in range(WORDS)]
        return to(i, j), call_extern("int8", "tt_requantise8_kept", c[i, j], *own, zero, -128, 127)

    sums = Operand((2, 2), scope="local")

    def by_helper(c: Buffer, e: Buffer, y: Buffer) -> Expr:
        return call(first_of(y), e, *(c[place] for place in sums.places))

    return define(name, {"c": sums, "e": words, "y": result}, "SS", (2, 2), element, by_helper)


@cache
def ends_2x2(zero: int, pitch: int) -> str:
    """Name out[i, j] = tt_requantise8_kept(sum[i, j], numbers of channel j, ..); pitch: of a pixel."""

    def call(y: Expr, e: Buffer, *sums: Expr) -> Expr:
        return call_extern("int32", "tt_ends_2x2", y, first_of(e), *sums, pitch, zero)

    words, result = Operand((2, WORDS)), Operand((2, 2), "int8", (pitch, 1))
    return _ends(f"tt_ends_2x2_{zero}_{pitch}", words, lambda j, k: (j, k), result, lambda i, j: (i, j), zero, call)
