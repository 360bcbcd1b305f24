"""What callers give as arrays: of numpy, of PyTorch, or nested lists."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array


def said(value: Any) -> str:
    """Return what a value is, without its content, which may be large."""
    shape, kind = getattr(value, "shape", None), type(value).__name__
    return f"{kind} of shape {tuple(cast('tuple[int, ...]', shape))}" if isinstance(shape, tuple) else kind


def as_array(where: str, name: str, value: Any) -> Array:
    """Return the array that a value holds; CompileError E0105 for what holds no numbers. where: as messages say it."""
    if hasattr(value, "detach"):  # a PyTorch tensor, which may need a gradient or be on another device
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except Exception as problem:  # whatever an object's own conversion raises
        what = f"{name}, {said(value)}, cannot be read as an array"
        raise CompileError("E0105", where, what, "give an array of numbers") from problem
    if array.dtype.kind not in "fiub":
        raise CompileError("E0105", where, f"{name} is {said(value)} of {array.dtype}", "give an array of numbers")
    return array
