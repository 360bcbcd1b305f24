# TVMScript is a language of its own in Python's clothes: its annotations are buffers, not types.
# pyright: basic, reportInvalidTypeForm=false
"""Tensor intrinsics of products whose right operand is read as int8, as dsp.py has it for operands of int16."""

from __future__ import annotations

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tinytrain_compile.lower.intrinsics.dsp import four_sums


@cache
def dot_direct(tile: tuple[int, int], blocks: int, pitch: int) -> str:
    """Name sum[i, j] += a[block, i, odd, half] b[j, 4 block + odd + 2 half] of a tile 2x2, 1x4, 4x1 or 1x1.

    a: blocks of int16; b: rows of int8, `pitch` elements behind each other. blocks: more than 1.
    """
    name = f"tt_dot_direct_{tile[0]}x{tile[1]}_{blocks}_{pitch}"
    algebra, code = {(2, 2): _square, (1, 4): _row, (4, 1): _column, (1, 1): _single}[tile](blocks, pitch)
    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def dot_columns(blocks: int, pitch: int) -> str:
    """Name sum[j] += a[block, 0, odd, half] b[4 block + odd + 2 half, j] of a row and four columns of int8.

    pitch: elements of int8 from a row to the next.
    """
    name = f"tt_dot_columns_1x4_{blocks}_{pitch}"
    shape = (blocks, 1, 2, 2)

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer((4 * blocks, 4), "int8", strides=(pitch, 1), offset_factor=1),
        c: T.Buffer((4,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:4], a[0:blocks, 0, 0:2, 0:2], b[0 : 4 * blocks, 0:4])
            T.writes(c[0:4])
            for j, s, k, h in T.grid(4, blocks, 2, 2):
                with T.sblock("u"):
                    vj, vs, vk, vh = T.axis.remap("SRRR", [j, s, k, h])
                    c[vj] = c[vj] + T.cast(a[vs, 0, vk, vh], "int32") * T.cast(b[vs * 4 + vk + vh * 2, vj], "int32")

    code = _four_sums("tt_dot_columns_1x4", (shape, (4 * blocks, 4), (4,)), pitch, blocks)
    TensorIntrin.register(name, algebra, code, override=True)
    return name


def _four_sums(helper: str, shapes: tuple[tuple[int, ...], ...], pitch: int, blocks: int) -> PrimFunc:
    return four_sums(helper, "int16", shapes, pitch, blocks, right=("int8", (pitch, 1)))


def _square(blocks: int, pitch: int) -> tuple[PrimFunc, PrimFunc]:
    shape = (blocks, 2, 2, 2)

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer((2, 4 * blocks), "int8", strides=(pitch, 1), offset_factor=1),
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], a[0:blocks, 0:2, 0:2, 0:2], b[0:2, 0 : 4 * blocks])
            T.writes(c[0:2, 0:2])
            for i, j, s, k, h in T.grid(2, 2, blocks, 2, 2):
                with T.sblock("u"):
                    vi, vj, vs, vk, vh = T.axis.remap("SSRRR", [i, j, s, k, h])
                    c[vi, vj] = c[vi, vj] + T.cast(a[vs, vi, vk, vh], "int32") * T.cast(
                        b[vj, vs * 4 + vk + vh * 2], "int32"
                    )

    return algebra, _four_sums("tt_dot_direct_2x2", (shape, (2, 4 * blocks), (2, 2)), pitch, blocks)


def _row(blocks: int, pitch: int) -> tuple[PrimFunc, PrimFunc]:
    shape = (blocks, 1, 2, 2)

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer((4, 4 * blocks), "int8", strides=(pitch, 1), offset_factor=1),
        c: T.Buffer((4,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:4], a[0:blocks, 0, 0:2, 0:2], b[0:4, 0 : 4 * blocks])
            T.writes(c[0:4])
            for j, s, k, h in T.grid(4, blocks, 2, 2):
                with T.sblock("u"):
                    vj, vs, vk, vh = T.axis.remap("SRRR", [j, s, k, h])
                    c[vj] = c[vj] + T.cast(a[vs, 0, vk, vh], "int32") * T.cast(b[vj, vs * 4 + vk + vh * 2], "int32")

    return algebra, _four_sums("tt_dot_direct_1x4", (shape, (4, 4 * blocks), (4,)), pitch, blocks)


def _column(blocks: int, pitch: int) -> tuple[PrimFunc, PrimFunc]:
    shape, length = (blocks, 4, 2, 2), 4 * blocks

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer((1, length), "int8", strides=(pitch, 1), offset_factor=1),
        c: T.Buffer((4, 1), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:4, 0], a[0:blocks, 0:4, 0:2, 0:2], b[0, 0:length])
            T.writes(c[0:4, 0])
            for i, s, k, h in T.grid(4, blocks, 2, 2):
                with T.sblock("u"):
                    vi, vs, vk, vh = T.axis.remap("SRRR", [i, s, k, h])
                    c[vi, 0] = c[vi, 0] + T.cast(a[vs, vi, vk, vh], "int32") * T.cast(
                        b[0, vs * 4 + vk + vh * 2], "int32"
                    )

    return algebra, _four_sums("tt_dot_direct_4x1", (shape, (1, length), (4, 1)), pitch, blocks)


def _single(blocks: int, _pitch: int) -> tuple[PrimFunc, PrimFunc]:
    shape, length = (blocks, 1, 2, 2), 4 * blocks

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer((length,), "int8", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:blocks, 0, 0:2, 0:2], b[0:length])
            T.writes(c[0])
            for s, k, h in T.grid(blocks, 2, 2):
                with T.sblock("u"):
                    vs, vk, vh = T.axis.remap("RRR", [s, k, h])
                    c[0] = c[0] + T.cast(a[vs, 0, vk, vh], "int32") * T.cast(b[vs * 4 + vk + vh * 2], "int32")

    @T.prim_func(s_tir=True)
    def code(
        a: T.Buffer(shape, "int16", offset_factor=1),
        b: T.Buffer((length,), "int8", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:blocks, 0, 0:2, 0:2], b[0:length])
            T.writes(c[0])
            c[0] = T.call_extern(
                "int32", "tt_dot_direct", c[0], T.address_of(a[0, 0, 0, 0]), T.address_of(b[0]), blocks
            )

    return algebra, code
