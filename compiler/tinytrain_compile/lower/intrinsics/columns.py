# TVMScript is a language of its own in Python's clothes: its annotations are buffers, not types.
# pyright: basic, reportInvalidTypeForm=false
"""The tensor intrinsic of sums over rows of int8, as dsp.py has those of products."""

from __future__ import annotations

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T


@cache
def sum_columns(rows: int, pitch: int) -> str:
    """Name the intrinsic sum[j] += a[k, j] over rows of four int8, `pitch` elements behind each other."""
    name = f"tt_sum_columns_{rows}_{pitch}"

    @T.prim_func(s_tir=True)
    def algebra(
        a: T.Buffer((rows, 4), "int8", strides=(pitch, 1), offset_factor=1),
        c: T.Buffer((4,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:4], a[0:rows, 0:4])
            T.writes(c[0:4])
            for k, j in T.grid(rows, 4):
                with T.sblock("u"):
                    vj, vk = T.axis.remap("SR", [j, k])
                    c[vj] = c[vj] + T.cast(a[vk, vj], "int32")

    @T.prim_func(s_tir=True)
    def code(
        a: T.Buffer((rows, 4), "int8", strides=(pitch, 1), offset_factor=1),
        c: T.Buffer((4,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(c[0:4], a[0:rows, 0:4])
            T.writes(c[0:4])
            T.evaluate(
                T.call_extern(
                    "int32",
                    "tt_sum_columns",
                    T.address_of(c[0]),
                    T.address_of(c[1]),
                    T.address_of(c[2]),
                    T.address_of(c[3]),
                    T.address_of(a[0, 0]),
                    rows,
                    pitch,
                )
            )

    TensorIntrin.register(name, algebra, code, override=True)
    return name
