
from tvm.s_tir import transform as transform
from tvm.s_tir.schedule import Schedule as Schedule
from tvm.tirx import IterVar, PrimFunc

class SBlock:
    iter_vars: list[IterVar]

class TensorIntrin:
    @staticmethod
    def register(name: str, desc: PrimFunc, impl: PrimFunc, override: bool = ...) -> TensorIntrin: ...
