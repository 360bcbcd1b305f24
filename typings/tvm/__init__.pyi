# What lower/ uses of TVM 0.27, as it behaves: its own annotations are few, and contradict how it is used.
from collections.abc import Mapping

from tvm import ir as ir
from tvm import s_tir as s_tir
from tvm import target as target
from tvm import tirx as tirx
from tvm import transform as transform

class IRModule:
    def __init__(self, functions: Mapping[str, tirx.PrimFunc]) -> None: ...
    def __getitem__(self, name: str) -> tirx.PrimFunc: ...
