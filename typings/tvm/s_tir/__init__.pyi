from collections.abc import Sequence

from tvm.s_tir import transform as transform
from tvm.s_tir.schedule import Schedule as Schedule
from tvm.tirx import Expr, IterVar, PrimFunc, Stmt

class SBlock(Stmt):
    iter_vars: list[IterVar]
    name_hint: str
    body: Stmt
    writes: Sequence[object]

class SBlockRealize(Stmt):
    iter_values: Sequence[Expr]
    block: SBlock

class TensorIntrin:
    @staticmethod
    def register(name: str, desc: PrimFunc, impl: PrimFunc, override: bool = ...) -> TensorIntrin: ...
