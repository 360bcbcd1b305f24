"""Tensor intrinsics: the algebra of a helper in tt_dsp.h, so that tensorising a loop proves that the helper fits it."""

from __future__ import annotations

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

READS_ONLY = ("tt_dot4", "tt_dot2")
"""Helpers that only read what their arguments point to."""
WRITES_FIRST = ("tt_widen4",)
"""Helpers that write through their first argument and read through the others."""


@cache
def dot(lanes: int) -> str:
    """sum += a[k] b[k] over 2 or 4 int16: the name of the intrinsic."""
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

    @T.prim_func(s_tir=True)
    def code(
        a: T.Buffer((lanes,), "int16", offset_factor=1),
        b: T.Buffer((lanes,), "int16", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:lanes], b[0:lanes])
            T.writes(c[0])
            c[0] = T.call_extern("int32", name, c[0], T.address_of(a[0]), T.address_of(b[0]))

    TensorIntrin.register(name, algebra, code, override=True)
    return name


@cache
def widen4(offset: int) -> str:
    """to[i] = from[i] + offset for four int8 that become int16: the name of the intrinsic."""
    name = f"tt_widen4_{offset}"

    @T.prim_func(s_tir=True)
    def algebra(x: T.Buffer((4,), "int8", offset_factor=1), d: T.Buffer((4,), "int16", offset_factor=1)) -> None:
        with T.sblock("root"):
            T.reads(x[0:4])
            T.writes(d[0:4])
            for i in range(4):
                with T.sblock("u"):
                    vi = T.axis.remap("S", [i])
                    d[vi] = T.cast(x[vi], "int16") + T.int16(offset)

    @T.prim_func(s_tir=True)
    def plain(x: T.Buffer((4,), "int8", offset_factor=1), d: T.Buffer((4,), "int16", offset_factor=1)) -> None:
        with T.sblock("root"):
            T.reads(x[0:4])
            T.writes(d[0:4])
            for i in range(4):
                with T.sblock("u"):
                    vi = T.axis.remap("S", [i])
                    d[vi] = T.cast(x[vi], "int16")

    @T.prim_func(s_tir=True)
    def code(x: T.Buffer((4,), "int8", offset_factor=1), d: T.Buffer((4,), "int16", offset_factor=1)) -> None:
        with T.sblock("root"):
            T.reads(x[0:4])
            T.writes(d[0:4])
            T.evaluate(T.call_extern("int32", "tt_widen4", T.address_of(d[0]), T.address_of(x[0]), offset))

    TensorIntrin.register(name, algebra if offset else plain, code, override=True)
    return name
