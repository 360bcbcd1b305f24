from collections.abc import Callable, Sequence
from typing import overload

from tvm.ir import Expr, Var
from tvm.tirx import Buffer, IterVar, PrimFunc, Stmt
from tvm.tirx import if_then_else as if_then_else

Extent = Expr | int

class Operation:
    name: str
    input_tensors: Sequence[Tensor]

class Tensor:
    shape: Sequence[Expr]  # of IntImm, if no extent is a variable
    dtype: str
    op: Operation
    def __getitem__(self, index: Extent | tuple[Extent, ...], /) -> Expr: ...
    def __call__(self, *index: Extent) -> Expr: ...

def placeholder(shape: Sequence[Extent], dtype: str, name: str) -> Tensor: ...
@overload
def compute(shape: Sequence[Extent], fcompute: Callable[..., Expr], name: str) -> Tensor: ...
@overload
def compute(shape: Sequence[Extent], fcompute: Callable[..., tuple[Expr, ...]], name: str) -> Sequence[Tensor]: ...
def extern(
    shape: Sequence[Sequence[Expr]],
    inputs: Sequence[Tensor],
    fcompute: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt],
    name: str,
    *,
    in_buffers: Sequence[Buffer],
    out_buffers: Sequence[Buffer],
    dtype: str,
) -> Tensor: ...
def reduce_axis(dom: tuple[Extent, Extent], name: str) -> IterVar: ...
def sum(expr: Expr, axis: Sequence[IterVar]) -> Expr: ...
def max(expr: Expr, axis: Sequence[IterVar]) -> Expr: ...
def comm_reducer(
    fcombine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]],
    fidentity: Callable[..., tuple[Expr, ...]],
    name: str,
) -> Callable[[tuple[Expr, ...], Sequence[IterVar]], tuple[Expr, ...]]: ...
def create_prim_func(ops: Sequence[Tensor | Var]) -> PrimFunc: ...
