"""What a long study has done, so that one that was ended goes on (`--keep FILE`)."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tinytrain_compile.learn.runs import in_processes


class Record:
    """Results by key, in a file if there is one. Remove that after a change of what is measured."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.done: dict[tuple[str, ...], Any] = pickle.loads(path.read_bytes()) if path and path.is_file() else {}

    def once(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """What was made under this key, now or by an earlier call."""
        if key not in self.done:
            self.keep(key, make())
        return self.done[key]

    def keep(self, key: tuple[str, ...], result: Any) -> None:
        """Adds a result, and writes the file whole."""
        self.done[key] = result
        if self.path:
            fresh = self.path.with_suffix(".new")
            fresh.write_bytes(pickle.dumps(self.done))
            fresh.replace(self.path)

    def each(self, call: Callable[..., Any], work: Mapping[tuple[str, ...], tuple[Any, ...]], jobs: int) -> list[Any]:
        """What `call` makes of each, in order; it works in processes, at what is not here yet."""
        missing = [key for key in work if key not in self.done]
        made = in_processes(call, [work[key] for key in missing], jobs)
        for key, result in zip(missing, made, strict=True):
            self.keep(key, result)
            print(f"# {', '.join(key)}", file=sys.stderr, flush=True)
        return [self.done[key] for key in work]
