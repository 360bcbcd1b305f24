"""Labels of a written loss as values of the graph, and what follows from a class index and constants alone.

The latter is looked up in a table with a row for each class.

So a comparison with 0, 1, 2, ..., a margin at the class, or a vector made by a scatter needs no operators on integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import FOLDABLE, fold
from tinytrain_compile.frontend.file.model import INDICES, LOSS_OPS, OnnxInput, OnnxNode, Refused
from tinytrain_compile.frontend.file.protobuf import type_name
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.loss.own_loss import NO_LABEL
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.embedding import GatherAttrs

_TRUTHS = frozenset(("Cast", "Equal", "Greater", "Not", "Less", "And", "Or", "Where"))
"""Readers of a vector with a one at the class that want truth values or integers of it."""
MOST_CLASSES = 4096
"""Rows of a table: a vocabulary that does not fit on a microcontroller as a dense vector."""


def from_label_alone(ctx: ImportContext, node: OnnxNode) -> bool:
    """Import a node that reads constants and the label of one sample, or what follows from it; False for others."""
    if node.domain or node.op not in FOLDABLE | {"OneHot"} or not _is_of_label(ctx, node):
        return False
    if node.op == "OneHot":  # as a table, if truth values or integers of it are wanted
        values = ctx.entry(node.input(2))
        whole = values.is_constant and values.data.dtype.kind != "f"
        if not whole and not any(reader.op in _TRUTHS for reader in ctx.links.readers(node.output(0))):
            return False
    classes = class_count(ctx)
    if not 0 < classes <= MOST_CLASSES:
        return False
    tables = [_results(ctx, node, index) for index in range(classes)]
    label = next(iter(ctx.labels.values()))
    for place, name in enumerate(node.outputs):
        rows = [row[place] for row in tables]
        if name:
            ctx.label_tables[name] = tuple(rows)
            _look_up(ctx, node, name, rows, label)
    return True


def class_count(ctx: ImportContext) -> int:
    """Return how many classes the labels name, by all that reads them; 0 if that is not known yet."""
    found = [_classes(ctx, name, reader) for name in ctx.labels for reader in ctx.links.readers(name)]
    return max(found, default=0)


def _classes(ctx: ImportContext, label: str, reader: OnnxNode) -> int:
    """Return how many classes a reader of labels chooses from; 0 if it does not tell."""
    known = [ctx.entry(name) if name and ctx.has(name) else None for name in reader.inputs]
    if (
        reader.op in (*LOSS_OPS, "GatherElements", "ScatterElements")
        and reader.input(1) == label
        and known[0] is not None
    ):
        shape = known[0].shape
        return shape[1] if len(shape) > 1 else 0
    if reader.op == "Gather" and reader.input(1) == label and known[0] is not None:
        return known[0].shape[0] if known[0].is_constant and known[0].rank == 2 else 0
    if reader.op == "OneHot" and known[1] is not None and known[1].is_constant:
        return int(known[1].data.ravel()[0])
    if reader.op == "Equal":
        others = [one.data for one in known if one is not None and one.is_constant and one.data.size > 1]
        return 1 + int(others[0].max()) if others else 0
    return 0


def _is_of_label(ctx: ImportContext, node: OnnxNode) -> bool:
    """Tell whether all operands follow from constants that are no parameters and the label of one sample."""
    names = [name for name in node.inputs if name]
    if not any(name in ctx.labels or name in ctx.label_tables for name in names):
        return False
    if any(value.elements != 1 for value in ctx.labels.values()):
        return False
    others = [name for name in names if name not in ctx.labels and name not in ctx.label_tables]
    return all(ctx.entry(name).is_constant and not ctx.trainables.trained(name) for name in others)


def _results(ctx: ImportContext, node: OnnxNode, index: int) -> Sequence[Array]:
    """Return what the node gives for one class."""
    given: dict[str, Array] = {}
    for name in node.inputs:
        if name in ctx.label_tables:
            given[name] = ctx.label_tables[name][index]
        elif name in ctx.labels:
            given[name] = np.full(ctx.entry(name).shape, index, np.int64)
        elif name:
            given[name] = ctx.entry(name).data
    if node.op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Add", "Sub", "Mul", "Where"):
        given = {name: a.astype(np.int64) if a.dtype.kind in "iu" else a for name, a in given.items()}  # in one type
    return fold(node, given, ctx.model.opset)


def _look_up(ctx: ImportContext, node: OnnxNode, name: str, rows: Sequence[Array], label: Value) -> None:
    shape, size = rows[0].shape, rows[0].size
    data = np.stack([row.astype(np.float32).reshape(size) for row in rows])
    table = ctx.constant(data, f"{node.name}.classes", node)
    numbers = ctx.reshape(node, ctx.emit(node, "Gather", (table, label), GatherAttrs(len(rows)), "of_class"), shape)
    if rows[0].dtype == np.bool_:
        numbers = ctx.emit(node, "Greater", (numbers, ctx.number(node, "half", 0.5)), suffix="truth")
    ctx.define_value(name, numbers, shape)


_LABEL_VIEWS = frozenset(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"))


def declare_label(ctx: ImportContext, label: OnnxInput) -> Value:
    """Return the labels as a value of the graph: class indices, or numbers. E0305 for any other type."""
    if label is NO_LABEL:
        return ctx.no_label()
    readers = ctx.links.readers(label.name)
    casts = [node for node in readers if node.op == "Cast" and node.integer("to", 0) == onnx.TensorProto.FLOAT]
    numbers = label.elem_type == onnx.TensorProto.FLOAT or (readers and casts == readers)
    if not numbers and label.elem_type not in INDICES:
        what = f"labels are {type_name(label.elem_type)}"
        raise CompileError("E0305", f"input {label.name}", what, "use float32, or int32 or int64 for class indices")
    return ctx.label_input(label.name, label.shape, not numbers)


def label_view(ctx: ImportContext, node: OnnxNode) -> bool:
    """Import a node that shows class indices in another shape or type, or computes with them; False for others."""
    label = ctx.labels.get(node.input(0))
    if label is None or node.op not in _LABEL_VIEWS or node.domain:
        return from_label_alone(ctx, node)
    if node.op == "Cast" and node.integer("to", 0) not in INDICES:
        _as_numbers(ctx, node, label)
        return True
    others = {name: ctx.entry(name).data for name in node.inputs[1:] if name and ctx.entry(name).is_constant}
    index = np.zeros(ctx.entry(node.input(0)).shape, np.int64)
    (shown,) = fold(node, {**others, node.input(0): index}, ctx.model.opset)
    ctx.define_value(node.output(0), label, tuple(shown.shape))
    ctx.labels[node.output(0)] = label
    return True


def _as_numbers(ctx: ImportContext, node: OnnxNode, label: Value) -> None:
    """Make real numbers of class indices, which a regression on them reads: a table of 0, 1, 2, ... is looked up."""
    classes = class_count(ctx)
    if node.integer("to", 0) != onnx.TensorProto.FLOAT or not classes:
        what = "class indices become numbers here, and indices elsewhere"
        raise Refused("to", what, "OneHot, or one use of the labels")
    table = ctx.constant(np.arange(classes, dtype=np.float32).reshape(classes, 1), f"{node.name}.numbers", node)
    numbers = ctx.emit(node, "Gather", (table, label), GatherAttrs(classes))
    shape = ctx.entry(node.input(0)).shape
    ctx.define_value(node.output(0), ctx.reshape(node, numbers, shape), shape)
