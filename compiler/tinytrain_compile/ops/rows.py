"""By which rows float operators can be computed; see RowForm. Those in integers are in int8/rows.py."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.contiguous import cut_starts
from tinytrain_compile.ops.row_form import RowForm

LEAST = 4
"""Elements of a vector of floats, on cores that have some."""


def few_elements(along: int, rows: int) -> bool:
    """Whether a row has too few elements for vectors, which all rows together fill: its kernel would round apart."""
    return along < LEAST <= along * rows


def element_rows(node: Node) -> RowForm | None:
    """Of an operator that works element by element: all operands are different maps of the result's shape.

    Rows of a mask have to begin with a byte, and those of a map to fill a vector, if all of it does.
    """
    shape = node.outputs[0].shape
    if any(value.shape != shape for value in node.inputs) or len(set(node.inputs)) < len(node.inputs):
        return None
    if few_elements(shape[2] * shape[3], shape[1]):
        return None
    bits = any(value.dtype == "bits" for value in (*node.inputs, *node.outputs))
    return None if bits and shape[2] * shape[3] % 8 else RowForm(tuple(range(len(node.inputs))))


def slice_rows(node: Node) -> RowForm | None:
    """Of a slice of every row of a map; None where it is a view."""
    (x,), y = node.inputs, node.outputs[0]
    attrs: Any = node.attrs
    if x.dtype == "bits" or x.shape[:2] != y.shape[:2] or (y.shape[1] > 1 and attrs.steps[1] != 1):
        return None
    return None if cut_starts(node, attrs.starts, attrs.steps, attrs.sizes) else RowForm((0,))


def window_rows(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
    scratch_bytes: int = 0,
) -> RowForm:
    """Of an operator that reads its first operand in windows."""
    reach = (kernel[0] - 1) * dilations[0] + 1
    return RowForm((0,), reach, strides[0], pads[0], scratch_bytes=scratch_bytes, windows=True)
