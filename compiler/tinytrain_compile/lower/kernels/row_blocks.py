"""The table of kernels for a few rows of a map at a time; a call passes their number, and the places of rows to read.

Results equal those of the kernel of the whole map, to the byte. `lower/streams/` makes functions of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import te, tirx
from tvm.ir import Expr, Var

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.kernels.base import Index, KernelSpec
from tinytrain_compile.lower.kernels.context import KernelContext


class NoRowsError(ValueError):
    """Raised if an operator, or this form of it, has no kernel for a few rows."""


@dataclass(frozen=True)
class Windows:
    """Rows of the image that the rows of a map read. sources: for each row of the whole map's table, the image row, or
    -1.

    step: rows of the table from one row of the map to the next; reach: rows of the table for one row of the map.
    """

    sources: tuple[int, ...]
    step: int
    reach: int


@dataclass(frozen=True)
class RowBlockSpec:
    """kernel: of `count` rows. maps: the inputs that are passed from the first of these rows on.

    rows: of the whole map (of each phase of a strided data gradient). windows: None if a row reads only its own row;
    else the first of maps is passed whole, and the last placeholder is the table of its rows' beginnings. in_place:
    whether the rows written may be those read.
    """

    kernel: KernelSpec
    count: Var
    maps: tuple[int, ...]
    rows: int
    windows: Windows | None = None
    in_place: bool = False


RowRule = Callable[[Node, KernelContext, Var], RowBlockSpec]
"""(node, context, number of rows of a call) -> kernel of these rows. Errors: NoRowsError."""
ROW_KERNELS: dict[str, RowRule] = {}


def row_kernel(*ops: str) -> Callable[[RowRule], RowRule]:
    """Enter a rule as the kernel of a few rows of these ops."""

    def enter(rule: RowRule) -> RowRule:
        for op in ops:
            if op in ROW_KERNELS:
                raise ValueError(f"op {op} has two kernels of rows")
            ROW_KERNELS[op] = rule
        return rule

    return enter


def row_block_spec(node: Node, context: KernelContext) -> RowBlockSpec:
    """Return the kernel of a few rows of one image. Errors: NoRowsError."""
    if node.op not in ROW_KERNELS:
        raise NoRowsError(f"{node.name}: {node.op} has no kernel for a few rows")
    return ROW_KERNELS[node.op](node, context, tirx.Var("count", "int32"))


def with_table(spec: KernelSpec, table: te.Tensor) -> KernelSpec:
    """Return a kernel with the table of the rows' beginnings as its last operand."""
    return replace(spec, inputs=[*spec.inputs, table])


def few_rows(node: Node, count: Expr) -> Node:
    """Return the node with `count` rows, a variable: rules that only multiply extents accept it."""
    whole = node.outputs[0].shape

    def few(value: Value) -> Value:
        same = len(value.shape) == 4 and value.shape[:3] == whole[:3]
        return replace(value, shape=(1, count, *value.shape[2:])) if same else value

    return replace(node, inputs=tuple(map(few, node.inputs)), outputs=tuple(map(few, node.outputs)))


class RowImage:
    """The image of a call: rows under windows, counted from the call's first, found through a table.

    flat, row_at: the placeholders. It is read like a tensor (n, row, column, channel).
    """

    def __init__(self, image: Value) -> None:
        _, _, width, channels = image.shape
        self.flat = te.placeholder((tirx.Var("extent", "int32"),), image.dtype, "x")
        self.row_at = te.placeholder((tirx.Var("places", "int32"),), "int32", "row_at")
        self.shape, self.channels = (1, 1, width, channels), channels

    def exists(self, row: Expr) -> Expr:
        """Tell whether a row is one of the image."""
        return self.row_at[row] >= 0

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Expr:
        """Return the element at an index."""
        assert isinstance(index, tuple)
        _, row, column, channel = index
        return self.flat[self.row_at[row] + column * self.channels + channel]


def windows_of(rows: int, height: int, reach: int, step: int, pad: int, apart: int = 1) -> Windows:
    """Return the rows that `rows` rows of a result read from a map of this height, with rows `apart` places apart."""
    places = (place - pad for place in range((rows - 1) * step + reach))
    found = (place // apart if 0 <= place < height * apart and place % apart == 0 else -1 for place in places)
    return Windows(tuple(found), step, reach)
