"""Files of text that the user gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tinytrain_compile.errors import CompileError


def read_text(
    path: Path, wrong: Callable[[str], CompileError], unreadable: Callable[[str], CompileError] | None = None
) -> str:
    """A UTF-8 file. Raises `unreadable` (else `wrong`) of why it cannot be read, or `wrong` of its bytes."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as problem:
        raise (unreadable or wrong)(problem.strerror or "cannot be read") from problem
    except UnicodeDecodeError as problem:
        raise wrong("not UTF-8 text") from problem
