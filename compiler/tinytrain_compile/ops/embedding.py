"""Looking up rows of a table, and adding the rows' gradients to that of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Graph, TensorType, Value
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.names import BACKWARD, emits, expect_float, expect_indices, operand


@dataclass(frozen=True)
class GatherAttrs(Attrs):
    """Rows of the table."""

    rows: int


def _infer_gather(inputs: tuple[Value, ...], attrs: GatherAttrs) -> tuple[TensorType, ...]:
    table, index = inputs
    expect_float("Gather", table)
    expect_indices("Gather", index)
    if table.shape[:1] != (attrs.rows,):
        raise ValueError(f"Gather: a table {table.shape} has not {attrs.rows} rows")
    return (TensorType((*index.shape, *table.shape[1:]), "float32"),)


def _infer_gather_grad(inputs: tuple[Value, ...], attrs: GatherAttrs) -> tuple[TensorType, ...]:
    dy, index = inputs
    expect_float("GatherGrad", dy)
    expect_indices("GatherGrad", index)
    rank = len(index.shape)
    if dy.shape[:rank] != index.shape or attrs.rows < 1:
        raise ValueError(f"GatherGrad: gradient {dy.shape} does not belong to indices {index.shape}")
    return (TensorType((attrs.rows, *dy.shape[rank:]), "float32"),)


def _gather(arrays: tuple[Any, ...], _attrs: GatherAttrs) -> tuple[Array, ...]:
    table, index = arrays
    return (np.asarray(table[np.clip(index, 0, len(table) - 1)]),)


def _gather_grad(arrays: tuple[Any, ...], attrs: GatherAttrs) -> tuple[Array, ...]:
    dy, index = arrays
    table = np.zeros((attrs.rows, *dy.shape[index.ndim :]), dy.dtype)
    np.add.at(table, np.clip(index, 0, attrs.rows - 1), dy)  # one after the other
    return (table,)


def rows_to_choose_from(graph: Graph, index: Value) -> int:
    """Count the rows of the smallest table looked up by a value, directly or after moves of its numbers; 0 if none
    is."""
    moved, rows = {index.name}, list[int]()
    for node in graph.nodes:
        if node.op == "Gather" and operand(node, "index").name in moved:
            rows.append(operand(node, "table").shape[0])
        elif any(value.name in moved for value in node.inputs) and node.outputs[0].dtype == index.dtype:
            moved.update(value.name for value in node.outputs)
    return min(rows, default=0)


operator(
    "Gather",
    "Rows of a table by an index, which counts as 0 below 0 and as the last row above that.",
    _infer_gather,
    _gather,
    emits("GatherGrad", "index"),
    GatherAttrs,
    inputs=("table", "index"),
)
operator(
    "GatherGrad",
    "Gradient of Gather for its table: every row the sum of the gradients at the places that it went to.",
    _infer_gather_grad,
    _gather_grad,
    BACKWARD,
    GatherAttrs,
    inputs=("dy", "index"),
    outputs=("gradient",),
)
