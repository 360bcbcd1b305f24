# TVMScript is a language of its own in Python's clothes: its annotations are buffers, not types.
# pyright: basic, reportInvalidTypeForm=false
"""Tensor intrinsics: the algebra of a helper in tt_dsp_sums.h, so that tensorising a loop proves that it fits."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace

from tvm.ir import Expr
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.tirx import PrimFunc
from tvm.tirx.script.parser import entry


def _callers() -> list[inspect.FrameInfo]:
    """Return inspect.stack() without the text of the callers' lines, for which it looks through all modules."""
    found: list[inspect.FrameInfo] = []
    frame = inspect.currentframe()
    while frame is not None and (frame := frame.f_back) is not None:
        found.append(
            inspect.FrameInfo(frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None)
        )
    return found


# T.prim_func asks for its callers, because of the names that they know; that took half of the time of an intrinsic.
entry.inspect = SimpleNamespace(**{**vars(inspect), "stack": _callers})

READS_ONLY = (
    "tt_chosen_f32",
    "tt_chosen_i8",
    "tt_dot4",
    "tt_dot2",
    "tt_dot_direct",
    "tt_passed8",
    "tt_passed_x8",
    "tt_sum8",
    "tt_stepped_bias",
    "tt_above8_f32",
    "tt_between8_f32",
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
    "tt_dot8_x4": 4,
    "tt_dot16_x4": 4,
    "tt_copy8": 1,
    "tt_gather8": 1,
    "tt_sum_columns": 4,
    "tt_ends_2x2": 1,
    "tt_copy_two": 1,
    "tt_depthwise_2x2": 4,
    "tt_depthwise_ends": 1,
    "tt_dense_update": 1,
    "tt_dense_update_fine": 2,
    "tt_dense_squares": 1,
    "tt_passed_bits8": 1,
    "tt_depthwise_rows3": 1,
    "tt_depthwise_maps3": 1,
    "tt_depthwise8": 2,
    "tt_depthwise8_rows": 2,
    "tt_dense8": 2,
    "tt_max_pool8": 1,
    "tt_depthwise8_error": 3,
    "tt_depthwise8_error_rows": 3,
}
"""Helpers that write through so many first arguments and read through the others."""


@cache
def dot(lanes: int) -> str:
    """Name the intrinsic sum += a[k] b[k] over 2 or 4 int16."""
    name = f"tt_dot{lanes}"

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((lanes,), "int16", offset_factor=1),
        b: T.Buffer((lanes,), "int16", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:lanes], b[0:lanes])
            T.writes(c[0])
            for k in range(lanes):
                with T.sblock("u"):
                    vk = T.axis.remap("R", [k])
                    c[0] = c[0] + T.cast(a[vk], "int32") * T.cast(b[vk], "int32")

    TensorIntrin.register(name, algebra, _one_sum(name, (lanes,)), override=True)
    return name


@cache
def dot4_spread() -> str:
    """Name the intrinsic sum += a[k] b[k] over 2x2 int16."""

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((2, 2), "int16", offset_factor=1),
        b: T.Buffer((2, 2), "int16", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:2, 0:2], b[0:2, 0:2])
            T.writes(c[0])
            for k, h in T.grid(2, 2):
                with T.sblock("u"):
                    vk, vh = T.axis.remap("RR", [k, h])
                    c[0] = c[0] + T.cast(a[vk, vh], "int32") * T.cast(b[vk, vh], "int32")

    TensorIntrin.register("tt_dot4_spread", algebra, _one_sum("tt_dot4", (2, 2)), override=True)
    return "tt_dot4_spread"


def _one_sum(helper: str, shape: tuple[int, ...]) -> PrimFunc:
    """Return the call of a helper that gives a sum plus products of two operands of int16."""
    whole, first = tuple(slice(0, extent) for extent in shape), (0,) * len(shape)

    @T.prim_func(s_tir=True)
    def code(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer(shape, "int16", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[whole], b[whole])
            T.writes(c[0])
            c[0] = T.call_extern("int32", helper, c[0], T.address_of(a[first]), T.address_of(b[first]))

    return code


@cache
def dot_2x2(blocks: int) -> str:
    """Name the intrinsic sum[i, j] += a[block, i, k] b[block, j, k] over blocks of 2x2 int16 of two rows."""
    name = f"tt_dot_2x2_{blocks}"
    shape = (blocks, 2, 2, 2)

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer(shape, "int16", offset_factor=1),
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], a[0:blocks, 0:2, 0:2, 0:2], b[0:blocks, 0:2, 0:2, 0:2])
            T.writes(c[0:2, 0:2])
            for i, j, s, k, h in T.grid(2, 2, blocks, 2, 2):
                with T.sblock("u"):
                    vi, vj, vs, vk, vh = T.axis.remap("SSRRR", [i, j, s, k, h])
                    c[vi, vj] = c[vi, vj] + T.cast(a[vs, vi, vk, vh], "int32") * T.cast(b[vs, vj, vk, vh], "int32")

    @T.prim_func(s_tir=True)
    def one_block(
        a: T.Buffer((2, 2, 2), "int16", offset_factor=1),
        b: T.Buffer((2, 2, 2), "int16", offset_factor=1),
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], a[0:2, 0:2, 0:2], b[0:2, 0:2, 0:2])
            T.writes(c[0:2, 0:2])
            for i, j, k, h in T.grid(2, 2, 2, 2):
                with T.sblock("u"):
                    vi, vj, vk, vh = T.axis.remap("SSRR", [i, j, k, h])
                    c[vi, vj] = c[vi, vj] + T.cast(a[vi, vk, vh], "int32") * T.cast(b[vj, vk, vh], "int32")

    if blocks == 1:
        algebra, shape = one_block, (2, 2, 2)
    TensorIntrin.register(
        name, algebra, four_sums("tt_dot_2x2", "int16", (shape, shape, (2, 2)), blocks), override=True
    )
    return name


def four_sums(
    helper: str,
    dtype: str,
    shapes: Sequence[tuple[int, ...]],
    *numbers: int,
    strides: tuple[int, ...] | None = None,
    right: tuple[str, tuple[int, ...]] | None = None,
) -> PrimFunc:
    """Return the call of a helper that adds to four sums: their addresses, those of two operands, and numbers.

    shapes: of the operands, of `dtype`, and of the sums; strides: of the first operand, if it is not dense; right: type
    and strides of the second, if it differs.
    """
    left, other, sums = shapes
    other_dtype, other_strides = right or (dtype, None)
    whole = [tuple(slice(0, extent) for extent in shape) for shape in shapes]
    first = [(0,) * len(shape) for shape in shapes]
    each = list(itertools.product(*map(range, sums)))

    @T.prim_func(s_tir=True)
    def code(
        a: T.Buffer(left, dtype, strides=strides, offset_factor=1),
        b: T.Buffer(other, other_dtype, strides=other_strides, offset_factor=1),
        c: T.Buffer(sums, "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[whole[2]], a[whole[0]], b[whole[1]])
            T.writes(c[whole[2]])
            T.evaluate(
                T.call_extern(
                    "int32",
                    helper,
                    T.address_of(c[each[0]]),
                    T.address_of(c[each[1]]),
                    T.address_of(c[each[2]]),
                    T.address_of(c[each[3]]),
                    T.address_of(a[first[0]]),
                    T.address_of(b[first[1]]),
                    *numbers,
                )
            )

    return code


@cache
def dot_windows(rows: int, run: int, pitch: int, apart: int, in_turn: bool) -> str:
    """Name sum[i, j] += a[row, i * apart + k] b[j, row, k] over rows of `run` int16; pitch: of a row of a.

    in_turn: of b[row, j, k], its two windows row by row.
    """
    name = f"tt_dot_windows_{rows}_{run}_{pitch}_{apart}_{int(in_turn)}"
    windows = (rows, 2, run) if in_turn else (2, rows, run)

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((rows, apart + run), "int16", strides=(pitch, 1), offset_factor=1),
        b: T.Buffer((2, rows, run), "int16", offset_factor=1),
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], a[0:rows, 0 : apart + run], b[0:2, 0:rows, 0:run])
            T.writes(c[0:2, 0:2])
            for i, j, r, k in T.grid(2, 2, rows, run):
                with T.sblock("u"):
                    vi, vj, vr, vk = T.axis.remap("SSRR", [i, j, r, k])
                    c[vi, vj] = c[vi, vj] + T.cast(a[vr, vi * apart + vk], "int32") * T.cast(b[vj, vr, vk], "int32")

    @T.prim_func(s_tir=True)
    def algebra_in_turn(
        a: T.Buffer((rows, apart + run), "int16", strides=(pitch, 1), offset_factor=1),
        b: T.Buffer((rows, 2, run), "int16", offset_factor=1),
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], a[0:rows, 0 : apart + run], b[0:rows, 0:2, 0:run])
            T.writes(c[0:2, 0:2])
            for i, j, r, k in T.grid(2, 2, rows, run):
                with T.sblock("u"):
                    vi, vj, vr, vk = T.axis.remap("SSRR", [i, j, r, k])
                    c[vi, vj] = c[vi, vj] + T.cast(a[vr, vi * apart + vk], "int32") * T.cast(b[vr, vj, vk], "int32")

    numbers, shapes = (rows, run, pitch, apart, run if in_turn else rows * run), ((rows, apart + run), windows, (2, 2))
    code = four_sums("tt_dot_windows", "int16", shapes, *numbers, strides=(pitch, 1))
    TensorIntrin.register(name, algebra_in_turn if in_turn else algebra, code, override=True)
    return name


@cache
def widen4(offset: int, pitch: int, columns: bool) -> str:
    """Return to[odd, half] = from[odd + 2 half] + offset for four int8 of a row or column that become int16: the
    name."""
    name = f"tt_widen4_{offset}" + (f"_{pitch}" if columns else "")

    if columns:

        @T.prim_func(s_tir=True)
        def algebra(
            x: T.Buffer((4, 1), "int8", strides=(pitch, 1), offset_factor=1),
            d: T.Buffer((2, 2), "int16", offset_factor=1),
        ) -> None:
            with T.sblock("root"):
                T.reads(x[0:4, 0])
                T.writes(d[0:2, 0:2])
                for i, h in T.grid(2, 2):
                    with T.sblock("u"):
                        vi, vh = T.axis.remap("SS", [i, h])
                        d[vi, vh] = _widened(x[vi + vh * 2, 0], offset)

        code = _widening("tt_gather4", (4, 1), (2, 2), (pitch, 1), pitch, offset)
    else:

        @T.prim_func(s_tir=True)
        def algebra(x: T.Buffer((4,), "int8", offset_factor=1), d: T.Buffer((2, 2), "int16", offset_factor=1)) -> None:
            with T.sblock("root"):
                T.reads(x[0:4])
                T.writes(d[0:2, 0:2])
                for i, h in T.grid(2, 2):
                    with T.sblock("u"):
                        vi, vh = T.axis.remap("SS", [i, h])
                        d[vi, vh] = _widened(x[vi + vh * 2], offset)

        code = _widening("tt_widen4", (4,), (2, 2), None, offset)
    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def widen_two(offset: int, pitch: int, columns: bool, blocks: int) -> str:
    """Return to[block, p, odd, half] = from[p, 4 block + odd + 2 half] + offset for two rows, or columns: the name."""
    name = f"tt_widen_two_{offset}_{pitch}_{int(columns)}_{blocks}"
    shape, run = (blocks, 2, 2, 2), 4 * blocks

    if columns:

        @T.prim_func(s_tir=True)
        def algebra(
            x: T.Buffer((run, 2), "int8", strides=(pitch, 1), offset_factor=1),
            d: T.Buffer(shape, "int16", offset_factor=1),
        ) -> None:
            with T.sblock("root"):
                T.reads(x[0:run, 0:2])
                T.writes(d[0:blocks, 0:2, 0:2, 0:2])
                for s, p, i, h in T.grid(blocks, 2, 2, 2):
                    with T.sblock("u"):
                        vs, vp, vi, vh = T.axis.remap("SSSS", [s, p, i, h])
                        d[vs, vp, vi, vh] = _widened(x[vs * 4 + vi + vh * 2, vp], offset)

    else:

        @T.prim_func(s_tir=True)
        def algebra(
            x: T.Buffer((2, run), "int8", strides=(pitch, 1), offset_factor=1),
            d: T.Buffer(shape, "int16", offset_factor=1),
        ) -> None:
            with T.sblock("root"):
                T.reads(x[0:2, 0:run])
                T.writes(d[0:blocks, 0:2, 0:2, 0:2])
                for s, p, i, h in T.grid(blocks, 2, 2, 2):
                    with T.sblock("u"):
                        vs, vp, vi, vh = T.axis.remap("SSSS", [s, p, i, h])
                        d[vs, vp, vi, vh] = _widened(x[vp, vs * 4 + vi + vh * 2], offset)

    source, helper = ((run, 2), "tt_gather_two") if columns else ((2, run), "tt_widen_two")
    code = _widening(helper, source, shape, (pitch, 1), pitch, offset, blocks)
    TensorIntrin.register(name, algebra, code, override=True)
    return name


def _widened(value: Expr, offset: int) -> Expr:
    """Return value + offset as int16, as TIR simplifies it."""
    wide = T.cast(value, "int16")
    return wide + T.int16(offset) if offset else wide


def _widening(
    helper: str, source: tuple[int, ...], target: tuple[int, ...], strides: tuple[int, ...] | None, *numbers: int
) -> PrimFunc:
    """Return the call of a helper that makes int8 of shape `source` int16 of shape `target`: their addresses, and
    numbers."""
    whole = [tuple(slice(0, extent) for extent in shape) for shape in (source, target)]
    first = [(0,) * len(shape) for shape in (source, target)]

    @T.prim_func(s_tir=True)
    def code(
        x: T.Buffer(source, "int8", strides=strides, offset_factor=1), d: T.Buffer(target, "int16", offset_factor=1)
    ) -> None:
        with T.sblock("root"):
            T.reads(x[whole[0]])
            T.writes(d[whole[1]])
            T.evaluate(T.call_extern("int32", helper, T.address_of(d[first[1]]), T.address_of(x[first[0]]), *numbers))

    return code
