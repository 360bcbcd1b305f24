"""Kernels that are one call of a helper, which writes the output: its loops are written in C."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.lower.kernels.base import Index, call_int, i32

Body = Callable[[Buffer, Sequence[Buffer]], Stmt]
"""(output, inputs) -> the statement that writes it"""


def first(buffer: Buffer) -> Expr:
    """The address of a buffer's first element."""
    element = buffer[tuple([0] * len(buffer.shape))]
    return ir.Call("tirx.address_of", [element], ret_ty=ir.PointerType(ir.PrimType(str(buffer.dtype))))


def struct(name: str, numbers: Sequence[Index]) -> Expr:
    """A struct of numbers, by the helper that makes it."""
    return call_int(name, *(i32(number) for number in numbers))


def called(name: str, *operands: Expr) -> Stmt:
    """A call as a statement."""
    return tirx.Evaluate(call_int(name, *operands))


def written(inputs: Sequence[te.Tensor], shape: Sequence[Index], dtype: str, body: Body) -> te.Tensor:
    """An output that a statement writes."""
    sources = [tirx.decl_buffer(t.shape, t.dtype, t.op.name) for t in inputs]
    target = tirx.decl_buffer(shape, dtype, "y")

    def make(given: Sequence[Buffer], made: Sequence[Buffer]) -> Stmt:
        return body(made[0], given)

    return te.extern([target.shape], list(inputs), make, "out", in_buffers=sources, out_buffers=[target], dtype=dtype)
