from collections.abc import Mapping

class Target:
    def __init__(self, target: Mapping[str, str], host: Mapping[str, str]) -> None: ...
