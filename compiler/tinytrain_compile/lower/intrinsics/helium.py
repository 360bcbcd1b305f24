# TVMScript is a language of its own in Python's clothes: its annotations are buffers, not types.
# pyright: basic, reportInvalidTypeForm=false
"""Tensor intrinsics of vectors: the algebra of a helper in tt_mve_sums.h, as dsp.py has it for tt_dsp_sums.h."""

from __future__ import annotations

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from tinytrain_compile.lower.intrinsics.dsp import four_sums


@cache
def dot_x4(count: int) -> str:
    """Name the intrinsic sum[j] += a[k] b[j, k] over `count` int8 of a row and of four rows."""
    name = f"tt_dot8_x4_{count}"

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((count,), "int8", offset_factor=1),
        b: T.Buffer((4, count), "int8", offset_factor=1),
        c: T.Buffer((4,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:4], a[0:count], b[0:4, 0:count])
            T.writes(c[0:4])
            for j, k in T.grid(4, count):
                with T.sblock("u"):
                    vj, vk = T.axis.remap("SR", [j, k])
                    c[vj] = c[vj] + T.cast(a[vk], "int32") * T.cast(b[vj, vk], "int32")

    code = four_sums("tt_dot8_x4", "int8", ((count,), (4, count), (4,)), count)
    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def taps_x4(count: int, step: int) -> str:
    """Name the intrinsic sum[i] += a[i step + k] b[k] over `count` int16 of a row."""
    name = f"tt_dot16_x4_{count}_{step}"
    width = 3 * step + count

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((width,), "int16", offset_factor=1),
        b: T.Buffer((count,), "int16", offset_factor=1),
        c: T.Buffer((4,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:4], a[0:width], b[0:count])
            T.writes(c[0:4])
            for i, k in T.grid(4, count):
                with T.sblock("u"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    c[vi] = c[vi] + T.cast(a[vi * step + vk], "int32") * T.cast(b[vk], "int32")

    code = four_sums("tt_dot16_x4", "int16", ((width,), (count,), (4,)), step, count)
    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def row_sum(count: int) -> str:
    """Name the intrinsic sum += a[k] over `count` int8."""
    name = f"tt_sum8_{count}"

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((count,), "int8", offset_factor=1), c: T.Buffer((1,), "int32", offset_factor=1, scope="local")
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:count])
            T.writes(c[0])
            for k in range(count):
                with T.sblock("u"):
                    vk = T.axis.remap("R", [k])
                    c[0] = c[0] + T.cast(a[vk], "int32")

    @T.prim_func(s_tir=True)
    def code(
        a: T.Buffer((count,), "int8", offset_factor=1), c: T.Buffer((1,), "int32", offset_factor=1, scope="local")
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:count])
            T.writes(c[0])
            c[0] = T.call_extern("int32", "tt_sum8", c[0], T.address_of(a[0]), count)

    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def copy_row(count: int) -> str:
    """Return to[i] = from[i] for `count` int8: the name of the intrinsic."""
    name = f"tt_copy8_{count}"

    @T.prim_func(s_tir=True)
    def algebra(x: T.Buffer((count,), "int8", offset_factor=1), d: T.Buffer((count,), "int8", offset_factor=1)) -> None:
        with T.sblock("root"):
            T.reads(x[0:count])
            T.writes(d[0:count])
            for i in range(count):
                with T.sblock("u"):
                    vi = T.axis.remap("S", [i])
                    d[vi] = x[vi]

    @T.prim_func(s_tir=True)
    def code(x: T.Buffer((count,), "int8", offset_factor=1), d: T.Buffer((count,), "int8", offset_factor=1)) -> None:
        with T.sblock("root"):
            T.reads(x[0:count])
            T.writes(d[0:count])
            T.evaluate(T.call_extern("int32", "tt_copy8", T.address_of(d[0]), T.address_of(x[0]), count))

    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def turn_column(count: int, pitch: int) -> str:
    """Return to[i] = from[i * pitch] for `count` int8 of a column: the name of the intrinsic."""
    name = f"tt_gather8_{count}_{pitch}"
    shape = (count, 1)

    @T.prim_func(s_tir=True)
    def algebra(
        x: T.Buffer(shape, "int8", strides=(pitch, 1), offset_factor=1), d: T.Buffer((count,), "int8", offset_factor=1)
    ) -> None:
        with T.sblock("root"):
            T.reads(x[0:count, 0])
            T.writes(d[0:count])
            for i in range(count):
                with T.sblock("u"):
                    vi = T.axis.remap("S", [i])
                    d[vi] = x[vi, 0]

    @T.prim_func(s_tir=True)
    def code(
        x: T.Buffer(shape, "int8", strides=(pitch, 1), offset_factor=1), d: T.Buffer((count,), "int8", offset_factor=1)
    ) -> None:
        with T.sblock("root"):
            T.reads(x[0:count, 0])
            T.writes(d[0:count])
            T.evaluate(T.call_extern("int32", "tt_gather8", T.address_of(d[0]), T.address_of(x[0, 0]), pitch, count))

    TensorIntrin.register(name, algebra, code, override=True)
    return name
