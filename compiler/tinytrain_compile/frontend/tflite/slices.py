"""Elements that SLICE and STRIDED_SLICE select."""

from __future__ import annotations

from collections.abc import Sequence

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Subgraph


def constant_bounds(graph: Subgraph, operator: Operator) -> list[tuple[int, int, int]]:
    """Return begin, end and step for each axis; Refused where they are not known."""
    source = operator.input(0)
    tables = [None if k == ABSENT else graph.tensors[k].data for k in operator.inputs[1:]]
    numbers = [[int(one) for one in table.reshape(-1)] for table in tables if table is not None]
    if source == ABSENT or len(numbers) < len(tables):
        raise Refused("bounds", "they are computed at run time", "constants")
    if any(table is not None and table.dtype.kind not in "iu" for table in tables):
        raise Refused("bounds", "they are no integers", "integers")
    return bounds_of(operator, numbers, graph.tensors[source].shape)


def bounds_of(operator: Operator, numbers: Sequence[Sequence[int]], shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return begin, end and step for each axis, as Slice of ONNX has them. numbers: constants behind the input."""
    rank = len(shape)
    if len(numbers) != (2 if operator.op == "SLICE" else 3) or any(len(one) != rank for one in numbers):
        where = f"operator {operator.name} ({operator.op})"
        raise CompileError("E0229", where, f"bounds for {rank} axes are missing", "convert the model again")
    if operator.op == "SLICE":
        begins, sizes = numbers
        ends = [begin + size if size >= 0 else n for begin, size, n in zip(begins, sizes, shape, strict=True)]
        return [(begin, end, 1) for begin, end in zip(begins, ends, strict=True)]
    if any(operator.number(mask) for mask in ("EllipsisMask", "NewAxisMask", "Offset")):
        raise Refused("mask", "it has an ellipsis, new axes or offsets", "bounds for every axis")
    return [_strided(operator, axis, shape[axis], *(one[axis] for one in numbers)) for axis in range(rank)]


def _strided(operator: Operator, axis: int, size: int, begin: int, end: int, step: int) -> tuple[int, int, int]:
    """Return the bounds along one axis, masks applied: a bit of a mask stands for an axis."""
    bit = 1 << axis
    if step <= 0:
        raise Refused("strides", f"it goes by {step} along axis {axis}", "steps above 0")
    begin = 0 if operator.number("BeginMask") & bit else begin
    end = size if operator.number("EndMask") & bit else end
    begin, end = (min(max(one + size if one < 0 else one, 0), size) for one in (begin, end))
    if operator.number("ShrinkAxisMask") & bit:
        return begin, begin + 1, 1
    return begin, end, step
