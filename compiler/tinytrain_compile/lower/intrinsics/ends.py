# TVMScript is a language of its own in Python's clothes: its annotations are buffers, not types.
# pyright: basic, reportInvalidTypeForm=false
"""Tensor intrinsics of tt_dsp_tiles.h: what becomes of all sums of a tile."""

from __future__ import annotations

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tinytrain_compile.lower.intrinsics.dsp import four_sums

WORDS = 3
"""Bias, factor and shift of a channel."""


@cache
def ends_2x2(zero: int, pitch: int) -> str:
    """Return out[i, j] = tt_requantise8_kept(sum[i, j], numbers of channel j, ..); pitch: of a pixel. The name."""
    name = f"tt_ends_2x2_{zero}_{pitch}"

    @T.prim_func(s_tir=True)
    def algebra(
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
        e: T.Buffer((2, WORDS), "int32", offset_factor=1),
        y: T.Buffer((2, 2), "int8", strides=(pitch, 1), offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], e[0:2, 0:WORDS])
            T.writes(y[0:2, 0:2])
            for i, j in T.grid(2, 2):
                with T.sblock("u"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = T.call_extern(
                        "int8", "tt_requantise8_kept", c[vi, vj], e[vj, 0], e[vj, 1], e[vj, 2], zero, -128, 127
                    )

    @T.prim_func(s_tir=True)
    def code(
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
        e: T.Buffer((2, WORDS), "int32", offset_factor=1),
        y: T.Buffer((2, 2), "int8", strides=(pitch, 1), offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], e[0:2, 0:WORDS])
            T.writes(y[0:2, 0:2])
            T.evaluate(
                T.call_extern(
                    "int32",
                    "tt_ends_2x2",
                    T.address_of(y[0, 0]),
                    T.address_of(e[0, 0]),
                    c[0, 0],
                    c[0, 1],
                    c[1, 0],
                    c[1, 1],
                    pitch,
                    zero,
                )
            )

    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def depthwise_2x2(rows: int) -> str:
    """Name sum[i, j] += sum over r, s of a[j + s, i + r] b[s, r]; rows: from a column of a to the next."""
    name = f"tt_depthwise_2x2_{rows}"

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((4, 4), "int16", strides=(rows, 1), offset_factor=1),
        b: T.Buffer((3, 3), "int16", offset_factor=1),
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], a[0:4, 0:4], b[0:3, 0:3])
            T.writes(c[0:2, 0:2])
            for i, j, r, s in T.grid(2, 2, 3, 3):
                with T.sblock("u"):
                    vi, vj, vr, vs = T.axis.remap("SSRR", [i, j, r, s])
                    c[vi, vj] = c[vi, vj] + T.cast(a[vj + vs, vi + vr], "int32") * T.cast(b[vs, vr], "int32")

    code = four_sums("tt_depthwise_2x2", "int16", ((4, 4), (3, 3), (2, 2)), rows, strides=(rows, 1))
    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def depthwise_ends(zero: int, channels: int, width: int) -> str:
    """Return out[i, j] = tt_requantise8_kept(sum[i, j], numbers of the channel, zero, -128, 127), of a map. The
    name."""
    name = f"tt_depthwise_ends_{zero}_{channels}_{width}"
    strides = (width * channels, 2 * channels, channels, 1)

    @T.prim_func(s_tir=True)
    def algebra(
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
        e: T.Buffer((WORDS,), "int32", offset_factor=1, scope="local"),
        y: T.Buffer((2, 1, 2, 1), "int8", strides=strides, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], e[0:WORDS])
            T.writes(y[0:2, 0, 0:2, 0])
            for i, j in T.grid(2, 2):
                with T.sblock("u"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, 0, vj, 0] = T.call_extern(
                        "int8", "tt_requantise8_kept", c[vi, vj], e[0], e[1], e[2], zero, -128, 127
                    )

    @T.prim_func(s_tir=True)
    def code(
        c: T.Buffer((2, 2), "int32", offset_factor=1, scope="local"),
        e: T.Buffer((WORDS,), "int32", offset_factor=1, scope="local"),
        y: T.Buffer((2, 1, 2, 1), "int8", strides=strides, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:2, 0:2], e[0:WORDS])
            T.writes(y[0:2, 0, 0:2, 0])
            T.evaluate(
                T.call_extern(
                    "int32",
                    "tt_depthwise_ends",
                    T.address_of(y[0, 0, 0, 0]),
                    e[0],
                    e[1],
                    e[2],
                    c[0, 0],
                    c[0, 1],
                    c[1, 0],
                    c[1, 1],
                    channels,
                    width * channels,
                    zero,
                )
            )

    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def copy_two(blocks: int, apart: int) -> str:
    """Return to[block, p, i, h] = from[p * apart + 4 block + 2 i + h]: two windows of a line for tt_dot_2x2. The
    name."""
    name = f"tt_copy_two_{blocks}_{apart}"

    @T.prim_func(s_tir=True)
    def algebra(
        x: T.Buffer((apart + 4 * blocks,), "int16", offset_factor=1),
        d: T.Buffer((blocks, 2, 2, 2), "int16", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(x[0 : apart + 4 * blocks])
            T.writes(d[0:blocks, 0:2, 0:2, 0:2])
            for s, p, i, h in T.grid(blocks, 2, 2, 2):
                with T.sblock("u"):
                    vs, vp, vi, vh = T.axis.remap("SSSS", [s, p, i, h])
                    d[vs, vp, vi, vh] = x[vp * apart + vs * 4 + vi * 2 + vh]

    @T.prim_func(s_tir=True)
    def code(
        x: T.Buffer((apart + 4 * blocks,), "int16", offset_factor=1),
        d: T.Buffer((blocks, 2, 2, 2), "int16", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(x[0 : apart + 4 * blocks])
            T.writes(d[0:blocks, 0:2, 0:2, 0:2])
            T.evaluate(
                T.call_extern("int32", "tt_copy_two", T.address_of(d[0, 0, 0, 0]), T.address_of(x[0]), apart, blocks)
            )

    if blocks == 1:
        algebra, code = _copy_of_one_block(apart)
    TensorIntrin.register(name, algebra, code, override=True)
    return name


def _copy_of_one_block(apart: int) -> tuple[PrimFunc, PrimFunc]:
    """Return `copy_two` of one block: TVM drops loops of one turn."""

    @T.prim_func(s_tir=True)
    def algebra(
        x: T.Buffer((apart + 4,), "int16", offset_factor=1),
        d: T.Buffer((2, 2, 2), "int16", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(x[0 : apart + 4])
            T.writes(d[0:2, 0:2, 0:2])
            for p, i, h in T.grid(2, 2, 2):
                with T.sblock("u"):
                    vp, vi, vh = T.axis.remap("SSS", [p, i, h])
                    d[vp, vi, vh] = x[vp * apart + vi * 2 + vh]

    @T.prim_func(s_tir=True)
    def code(
        x: T.Buffer((apart + 4,), "int16", offset_factor=1),
        d: T.Buffer((2, 2, 2), "int16", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(x[0 : apart + 4])
            T.writes(d[0:2, 0:2, 0:2])
            T.evaluate(T.call_extern("int32", "tt_copy_two", T.address_of(d[0, 0, 0]), T.address_of(x[0]), apart, 1))

    return algebra, code
