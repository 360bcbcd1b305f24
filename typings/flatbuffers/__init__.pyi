from typing import Any

class Builder:
    Bytes: bytearray
    head: int
    minalign: int
    def __init__(self, initialSize: int) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
