"""Labels of a data file, as the loss takes them."""

from __future__ import annotations

import math

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array


def shaped(name: str, y: Array, wanted: tuple[int, ...], classes: int) -> Array:
    """Shape labels as the loss takes them: axes of size 1 may be missing or too many. E0305 for any other shape.

    classes: how many there are where labels are class indices, else 0. wanted: samples first.
    """
    if y.shape == wanted:
        return y
    if y.shape[:1] == wanted[:1] and _significant(y.shape) == _significant(wanted):
        return y.reshape(wanted)
    # Where the number of samples is no fault it is left out: `finetune` splits a file before this looks at it.
    show = shape_of_samples if y.shape[:1] == wanted[:1] else str
    given, taken = show(y.shape), show(wanted)
    what, way = f"y has shape {given}", f"this loss takes {taken}"
    if classes and _is_one_hot(y, wanted, classes):
        what, way = f"y is one-hot, of shape {given}", f"give class indices of shape {taken}: y.argmax(axis=1)"
    elif classes and y.dtype.kind == "f" and y.size == math.prod(wanted) * classes:
        way = f"classes are integers of shape {taken}; for values: --loss mse (or bce for yes and no)"
    raise CompileError("E0305", name, what, way)


def shape_of_samples(shape: tuple[int, ...]) -> str:
    """Return the shape of an array of samples with a word in place of their number, like "(samples, 8, 8)"."""
    return f"({', '.join(['samples', *map(str, shape[1:])])}{',' if len(shape) == 1 else ''})"


def class_indices(name: str, y: Array, classes: int, ignored: tuple[int, ...]) -> Array:
    """Return labels as int32 class indices; E0305 for others, with a word on what they may be meant for."""
    if y.dtype.kind not in "iu":
        whole = y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.rint(y)).all()
        way = f"class indices are integers 0..{classes - 1}" + (": y.astype('int32')" if whole else "")
        raise CompileError("E0305", name, f"y is {y.dtype}", way)
    wrong = y[((y < 0) | (y >= classes)) & ~np.isin(y, ignored)]
    if wrong.size:
        from_one = int(y.min()) == 1 and int(y.max()) == classes
        way = f"class indices are 0..{classes - 1}" + (", not from 1: subtract 1" if from_one else "")
        raise CompileError("E0305", name, f"y holds {wrong[0]}", way)
    return np.ascontiguousarray(y.astype(np.int32))


def values(name: str, y: Array) -> Array:
    """Return labels that are numbers, as float32; E0305 unless they are finite."""
    if y.dtype.kind not in "fiub":
        raise CompileError("E0305", name, f"y is {y.dtype}", "this loss takes finite numbers")
    check_finite(name, "y", y, "E0305")
    return y.astype(np.float32)


def check_finite(where: str, name: str, array: Array, code: str = "E0105") -> None:
    """Raise an error for the first sample with NaN, infinity, or a number that would become infinity in float32."""
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(array.astype(np.float32))
    if not bad.any():
        return
    place = np.unravel_index(int(bad.argmax()), array.shape)
    value, sample = float(array[place]), f"sample {place[0]} of {name}" if array.ndim else name
    if not np.isfinite(value):
        what = f"{name} holds NaN or infinity: {value:g} in {sample}"
        raise CompileError(code, where, what, "leave such samples out, or mend what made them")
    what = f"{name} holds {value:.4g} in {sample}, more than float32 can hold (3.4e38)"
    raise CompileError(code, where, what, "scale the data as in training, or leave such samples out")


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of a sample's axes, but for those of size 1."""
    return tuple(dim for dim in shape[1:] if dim != 1)


def _is_one_hot(y: Array, wanted: tuple[int, ...], classes: int) -> bool:
    if y.ndim < 2 or y.shape[1] != classes or y.size != math.prod(wanted) * classes or y.dtype.kind not in "fiub":
        return False
    return bool(np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all())
