"""Operators that only move numbers: reshaping, joining, splitting, padding and resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.activation import finish, sum_name
from tinytrain_compile.frontend.tflite.file import Operator
from tinytrain_compile.frontend.tflite.layers import Handler, axes_of, check_moved
from tinytrain_compile.frontend.tflite.slices import constant_bounds
from tinytrain_compile.frontend.tflite.translate import Translation


def _viewed(to: Translation, operator: Operator, x: str) -> None:
    """Give numbers in order the shape of the result."""
    k = operator.outputs[0]
    name = to.made(k)
    to.result(k, to.node("Reshape", (x, to.table(name, "shape", to.tensor(k).shape)), name))


def _reshape(to: Translation, operator: Operator) -> None:
    check_moved(to, operator)
    _viewed(to, operator, to.real(operator.input(0)))


def _transpose(to: Translation, operator: Operator) -> None:
    check_moved(to, operator)
    x, k = operator.input(0), operator.outputs[0]
    perm = _integers(to, operator, 1, "perm")
    rank = len(to.tensor(x).shape)
    axes = [axis % rank for axis in perm if -rank <= axis < rank]
    if sorted(axes) != list(range(rank)):
        where = f"operator {operator.name} ({operator.op})"
        raise CompileError("E0229", where, f"axes {perm[:8]} of {rank}", "convert the model again")
    to.result(k, to.node("Transpose", (to.real(x),), to.made(k), perm=axes))


def _integers(to: Translation, operator: Operator, place: int, what: str) -> list[int]:
    known = to.known(operator.input(place), what)
    if known.dtype.kind not in "iu":
        raise Refused(what, f"it holds {known.dtype.name}", "integers")
    return [int(one) for one in known.reshape(-1)]


def _concat(to: Translation, operator: Operator) -> None:
    k = operator.outputs[0]
    _one_type(to, operator, range(len(operator.inputs)))
    axis = axes_of(operator, [operator.number("Axis")], len(to.tensor(k).shape))[0]
    made = to.node("Concat", [to.real(one) for one in operator.inputs], sum_name(to, operator), axis=axis)
    finish(to, operator, made)


def _one_type(to: Translation, operator: Operator, places: Sequence[int]) -> None:
    """Check that all operands are stored in one type, whatever their scales."""
    kinds = {to.tensor(operator.input(k)).kind for k in places} | {to.tensor(operator.outputs[0]).kind}
    if len(kinds) > 1:
        raise Refused("", f"it joins {' and '.join(sorted(kinds))}", "operands of one type")
    for k in places:
        to.scales(operator.input(k))


def _pack(to: Translation, operator: Operator) -> None:
    k = operator.outputs[0]
    _one_type(to, operator, range(len(operator.inputs)))
    shape = to.tensor(k).shape
    axis = axes_of(operator, [operator.number("Axis")], len(shape))[0]
    one = tuple(1 if place == axis else size for place, size in enumerate(shape))
    parts = list[str]()
    for source in operator.inputs:
        name = to.made(k, f"part{len(parts)}")
        parts.append(to.node("Reshape", (to.real(source), to.table(name, "shape", one)), name))
    to.result(k, to.node("Concat", parts, to.made(k), axis=axis))


def _split(to: Translation, operator: Operator) -> None:
    """Split into the sizes of the results. SPLIT has its axis in front of x, SPLIT_V behind it and the sizes."""
    place, where = (1, 0) if operator.op == "SPLIT" else (0, 2)
    check_moved(to, operator, (place,))
    x = operator.input(place)
    axis = axes_of(operator, _integers(to, operator, where, "axis"), len(to.tensor(x).shape))[0]
    if any(len(to.tensor(k).shape) <= axis for k in operator.outputs):
        raise Refused("", "its results have fewer axes than its input", "results of the same rank")
    names = [to.made(k) for k in operator.outputs]
    to.split(to.real(x), [to.tensor(k).shape[axis] for k in operator.outputs], axis, names)
    for k, name in zip(operator.outputs, names, strict=True):
        to.result(k, name)


def _slice(to: Translation, operator: Operator) -> None:
    check_moved(to, operator)
    x, k = operator.input(0), operator.outputs[0]
    shape = to.tensor(x).shape
    taken = [
        (axis, *bounds)
        for axis, bounds in enumerate(constant_bounds(to.graph, operator))
        if bounds != (0, shape[axis], 1)
    ]
    name = to.made(k, "part") if taken else ""
    part = to.real(x)
    if taken:
        axes, begins, ends, steps = zip(*taken, strict=True)
        parts = {"begin": begins, "end": ends, "axes": axes, "step": steps}
        tables = [to.table(name, what, numbers) for what, numbers in parts.items()]
        part = to.node("Slice", (part, *tables), name)
    _viewed(to, operator, part)


def _pad(to: Translation, operator: Operator) -> None:
    check_moved(to, operator)
    x, k = operator.input(0), operator.outputs[0]
    rank = len(to.tensor(x).shape)
    given = _integers(to, operator, 1, "paddings")
    if len(given) != 2 * rank or min(given, default=0) < 0:
        where = f"operator {operator.name} ({operator.op})"
        raise CompileError("E0229", where, f"paddings {given[:8]} of {rank} axes", "convert the model again")
    value = 0.0
    if operator.op == "PADV2":
        stored = to.known(operator.input(2), "constant_values").reshape(-1)
        scales = to.scales(operator.input(2))
        if stored.size != 1 or (scales is not None and not scales.same(to.scales(x))):
            raise Refused("constant_values", "its scale is not that of the input", "one number of the input's type")
        value = float(stored[0]) if scales is None else float((int(stored[0]) - int(scales.zero[0])) * scales.scale[0])
    name = to.made(k)
    pads = to.table(name, "pads", (*given[::2], *given[1::2]))
    to.result(k, to.node("Pad", (to.real(x), pads, to.table(name, "value", value, np.float32)), name))


def _resize(to: Translation, operator: Operator) -> None:
    x, k = operator.input(0), operator.outputs[0]
    nearest = operator.op == "RESIZE_NEAREST_NEIGHBOR"
    check_moved(to, operator)  # interpolated, as integers
    if len(to.tensor(x).shape) != len(to.tensor(k).shape) or len(to.tensor(x).shape) != 4:
        raise Refused("input", f"its shape is {list(to.tensor(x).shape)}", "batch, height, width, channels")
    n, height, width, channels = to.tensor(k).shape
    mode = "align_corners" if operator.number("AlignCorners") else "asymmetric"
    mode = "half_pixel" if operator.number("HalfPixelCenters") else mode
    name = to.made(k)
    sizes = to.table(name, "sizes", (n, channels, height, width))
    attributes = {"nearest_mode": "floor" if mode == "asymmetric" else "round_prefer_ceil"} if nearest else {}
    made = to.node(
        "Resize",
        (to.channels_first(x), "", "", sizes),
        name,
        mode="nearest" if nearest else "linear",
        coordinate_transformation_mode=mode,
        **attributes,
    )
    to.result(k, made, first=True)


HANDLERS: Mapping[str, Handler] = {
    "CONCATENATION": _concat,
    "EXPAND_DIMS": _reshape,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _resize,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split,
    "SQUEEZE": _reshape,
    "STRIDED_SLICE": _slice,
    "TRANSPOSE": _transpose,
}
