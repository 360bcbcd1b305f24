"""What a long study has done, so that one that was ended goes on (`--keep FILE`)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Record:
    """Results by key, in a file if there is one. Remove that after a change of what is measured."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.done: dict[tuple[str, ...], Any] = pickle.loads(path.read_bytes()) if path and path.is_file() else {}

    def once(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """What was made under this key, now or by an earlier call."""
        if key not in self.done:
            self.done[key] = make()
            if self.path:
                fresh = self.path.with_suffix(".new")
                fresh.write_bytes(pickle.dumps(self.done))
                fresh.replace(self.path)
        return self.done[key]
