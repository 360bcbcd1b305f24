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
def dot4() -> str:
    """sum += a[k] b[k] over four int16: the name of the intrinsic."""

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((4,), "int16", offset_factor=1),
        b: T.Buffer((4,), "int16", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:4], b[0:4])
            T.writes(c[0])
            for k in range(4):
                with T.sblock("u"):
                    vk = T.axis.remap("R", [k])
                    c[0] = c[0] + T.cast(a[vk], "int32") * T.cast(b[vk], "int32")

    @T.prim_func(s_tir=True)
    def code(
        a: T.Buffer((4,), "int16", offset_factor=1),
        b: T.Buffer((4,), "int16", offset_factor=1),
        c: T.Buffer((1,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0], a[0:4], b[0:4])
            T.writes(c[0])
            c[0] = T.call_extern("int32", "tt_dot4", c[0], T.address_of(a[0]), T.address_of(b[0]))

    TensorIntrin.register("tt_dot4", algebra, code, override=True)
    return "tt_dot4"


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
