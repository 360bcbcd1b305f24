"""tinytrain-compile: an ONNX model in, C11 that trains it on a microcontroller out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinytrain_compile.api import Compiled, compile, finetune, from_torch
    from tinytrain_compile.errors import CompileError
    from tinytrain_compile.parts.delta.twin import Deltas
    from tinytrain_compile.twin import Twin

__version__ = "0.3.0.dev0"
__all__ = ["CompileError", "Compiled", "Deltas", "Twin", "__version__", "compile", "finetune", "from_torch"]

_HOMES = {
    **dict.fromkeys(("Compiled", "compile", "finetune", "from_torch"), "api"),
    "Deltas": "parts.delta.twin",
    "Twin": "twin",
    "CompileError": "errors",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: --help has no use for it."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tinytrain_compile.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, which are not loaded yet."""
    return sorted(__all__)
