from collections.abc import Sequence

from tvm import IRModule

class Pass:
    def __call__(self, module: IRModule) -> IRModule: ...

class Sequential(Pass):
    def __init__(self, passes: Sequence[Pass]) -> None: ...
