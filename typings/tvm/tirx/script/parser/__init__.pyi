# TVMScript: parsed, not run; its files are checked by the basic rules.
from typing import Any

def __getattr__(name: str) -> Any: ...
