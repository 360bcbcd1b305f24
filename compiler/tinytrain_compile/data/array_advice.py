"""Advice on arrays whose shape or type does not fit the model: the line of numpy, if one line is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from tinytrain_compile.ir.types import Array

Shape = tuple[int, ...]

_CHANNELS = (1, 3, 4)
"""Channels of images: grey, colour, and colour with transparency."""
_MOST_AXES = 5
"""Axes of a sample whose orders are tried: 120 of them."""


def shape_of_samples(shape: Shape) -> str:
    """Return the shape of an array of samples with a word in place of their number, like "(samples, 8, 8)"."""
    return f"({', '.join(['samples', *map(str, shape[1:])])}{',' if len(shape) == 1 else ''})"


def way_to_shape(name: str, shape: Shape, wanted: Shape) -> str:
    """Return how an array of this shape becomes one of samples, first axis, of the wanted shape each.

    A line of numpy where only the order or the number of axes differs; else what differs.
    """
    if shape == wanted:
        return f"add an axis for the samples: {name} = {name}[None]"
    turned = _order(shape, wanted)
    if turned is not None:
        return f"reorder its axes and add one for the samples: {name} = {name}.transpose{turned}[None]"
    return (
        _transposed(name, shape, wanted)
        or _samples_elsewhere(name, shape, wanted)
        or _reshaped(name, shape, wanted)
        or _other_size(name, shape, wanted)
    )


def _transposed(name: str, shape: Shape, wanted: Shape) -> str:
    order = _order(shape[1:], wanted)
    if order is None:
        return ""
    axes = ", ".join(map(str, (0, *(axis + 1 for axis in order))))
    return f"reorder its axes: {name} = {name}.transpose({axes})"


def _order(given: Shape, wanted: Shape) -> Shape | None:
    """Return the order of axes that makes one shape of the other; None if there is none.

    Rotations come first: they turn rows, columns, channels into channels, rows, columns even if rows and columns are
    as many.
    """
    if sorted(given) != sorted(wanted) or not 2 <= len(given) <= _MOST_AXES:
        return None
    axes = tuple(range(len(given)))
    rotations = [axes[-turn:] + axes[:-turn] for turn in range(1, len(axes))]
    orders = (*rotations, *permutations(axes))
    return next((order for order in orders if tuple(given[axis] for axis in order) == wanted), None)


def _samples_elsewhere(name: str, shape: Shape, wanted: Shape) -> str:
    for axis in range(1, len(shape)):
        if shape[:axis] + shape[axis + 1 :] == wanted:
            line = f"{name}.T" if len(shape) == 2 else f"np.moveaxis({name}, {axis}, 0)"
            return f"put the samples on the first axis: {name} = {line}"
    order = _order(shape[:-1], wanted)  # as MATLAB has them: (rows, columns, channels, samples)
    if order is None:
        return ""
    axes = ", ".join(map(str, (len(shape) - 1, *order)))
    return f"put the samples on the first axis: {name} = {name}.transpose({axes})"


def _reshaped(name: str, shape: Shape, wanted: Shape) -> str:
    size, each = math.prod(wanted), math.prod(shape[1:])
    numbers = ", ".join(map(str, wanted))
    if shape and each == size:
        return f"give each sample this shape: {name} = {name}.reshape(-1, {numbers})"
    if len(shape) > 2 and shape[2:] == wanted:
        return f"join the batches: {name} = {name}.reshape(-1, {numbers})"
    return ""


def _other_size(name: str, shape: Shape, wanted: Shape) -> str:
    given = shape[1:]
    if len(given) == 3 == len(wanted):
        return _other_image(name, given, wanted)
    if len(given) == 1 == len(wanted):
        more = given[0] - wanted[0]
        columns = f"{abs(more)} columns" if abs(more) > 1 else "column"
        if more > 0:
            return f"remove {columns if more > 1 else '1 column'} (a label or an index?)"
        return f"add the missing {columns}"
    return "give samples as the model was trained on, or export the model for these"


def _other_image(name: str, given: Shape, wanted: Shape) -> str:
    first = wanted[0] in _CHANNELS and wanted[-1] not in _CHANNELS
    if first and given[-1] in _CHANNELS and given[0] not in _CHANNELS:
        turned = (given[-1], *given[:-1])
        then = f"reorder its axes with {name}.transpose(0, 3, 1, 2)"
        return then if turned == wanted else f"{_other_image(name, turned, wanted)}, and {then}"
    channel, pixels = (0, slice(1, 3)) if first else (2, slice(0, 2))
    if given[pixels] != wanted[pixels]:
        return f"resize the images to {' x '.join(map(str, wanted[pixels]))}, or export the model for this size"
    if given[channel] == 1 and first:
        return f"repeat the channel: {name} = {name}.repeat({wanted[channel]}, axis=1)"
    if given[channel] == 4 and wanted[channel] == 3 and first:
        return f"drop the transparency: {name} = {name}[:, :3]"
    if given[channel] == 3 and wanted[channel] == 1 and first:
        return f"make the images grey: {name} = {name}.mean(axis=1, keepdims=True)"
    return f"give images of {wanted[channel]} channels"


OBJECTS = "bring the rows to one length and give numbers: np.array(rows, dtype='float32')"
"""Way out of an array of Python objects, which would have to be unpickled."""


def way_to_numbers(name: str, array: Array) -> str:
    """Return how an array that holds no numbers becomes one that does."""
    if array.dtype.kind == "b":
        return f"give numbers: {name} = {name}.astype('uint8')"
    if array.dtype.kind == "c":
        return f"give real numbers, for example {name} = np.abs({name})"
    return "give an array of numbers: float32 or integers"


def way_to_shares(y: Array) -> str:
    """Return how labels become such from 0 to 1, as binary cross entropy takes them."""
    found = set(np.unique(y).tolist())
    if found <= {-1, 0, 1}:
        return "leave samples out that have no label" if 0 in found else "for labels -1 and 1: y = (y + 1) / 2"
    if found == {1, 2}:
        return "for labels 1 and 2: y = y - 1"
    if y.min() >= 0 and y.max() == 255:
        return "for masks of bytes: y = y / 255"
    return "for other values: --loss mse"


def missing_arrays(file: str, missing: Sequence[str], wanted: Sequence[str], there: Sequence[str]) -> tuple[str, str]:
    """Return which arrays are missing, and how to add them. file: "" for a dict; there: names of its arrays."""
    held = f"it holds {', '.join(there[:_LISTED])}{', ...' if there[_LISTED:] else ''}" if there else "it is empty"
    what = f"has no array {' and no '.join(missing)}; {held}"
    rest = [one for one in there if one not in wanted]
    new = {name: name if name in there else _meant(name, rest) or "..." for name in wanted}
    pairs = ", ".join(f"{name}={value}" for name, value in new.items())
    return what, f"save it again: np.savez({file!r}, {pairs})" if file else f"give dict({pairs})"


_LISTED = 6
"""Arrays of a file that an error names."""
_MEANT = {
    "x": ("x", "x_train", "xs", "images", "image", "data", "inputs", "input", "features", "samples", "arr_0"),
    "y": ("y", "y_train", "ys", "labels", "label", "targets", "target", "classes", "arr_1"),
}
"""Usual names of samples and labels in files of other programs."""


def _meant(name: str, there: Sequence[str]) -> str:
    """Return the array of a file that is probably meant by a name; "" if none is."""
    known = _MEANT.get(name, (name,))
    return next((one for usual in known for one in there if one.lower() == usual), "")


def savez(file: str, names: Sequence[str]) -> str:
    """Return the line of numpy that writes arrays of these names, beside a file that is not an .npz."""
    made = f"{file.rpartition('.')[0] or file}.npz"
    return f"np.savez({made!r}, {', '.join(f'{name}=...' for name in names)})"


def way_to_npz(file: str, start: bytes, names: Sequence[str]) -> tuple[str, str]:
    """Return what a file that is no .npz is, and how to make one of it. start: its first bytes."""
    save = savez(file, names)
    if not start:
        return "is empty", f"write it again: {save}"
    if start.startswith(b"\x93NUMPY"):
        labels = "".join(f", {name}=..." for name in names[1:])
        return "is one array (.npy)", f"write an .npz: {save.partition(',')[0]}, {names[0]}=np.load({file!r}){labels})"
    if start.startswith(b"PK"):
        return "is an .npz that breaks off", "copy or write it again"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        return "is text, not an .npz", f"read it with numpy.loadtxt or pandas, then write an .npz: {save}"
    return "is not an .npz file", f"write one: {save}"
