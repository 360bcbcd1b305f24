from types import TracebackType

from tvm.tirx import PrimFunc

class IRBuilder:
    def __enter__(self) -> IRBuilder: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def get(self) -> PrimFunc: ...
