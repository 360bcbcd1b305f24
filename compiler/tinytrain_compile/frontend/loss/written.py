"""A model that writes its loss out in nodes: its labels as values of the graph, and what becomes of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import fold
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode, reachable
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, Order
from tinytrain_compile.frontend.loss.forms import joined, known_loss
from tinytrain_compile.frontend.loss.label_tables import class_count, from_label_alone
from tinytrain_compile.frontend.loss.own_loss import NO_LABEL, LossSite, through
from tinytrain_compile.ir.imported import ImportedLoss, LossKind, WrittenLoss
from tinytrain_compile.ir.types import Array, Graph, Node, Value
from tinytrain_compile.ops.embedding import GatherAttrs

_LABEL_VIEWS = frozenset(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"))


def in_two_parts(model: OnnxModel, site: LossSite) -> OnnxModel:
    """The model with the nodes of the forward graph first, then those that only the loss needs.

    The last layers are those of the scores: other heads come before what only the scores need.
    """
    nodes = {node.name: node for names in (site.ends, (site.scores,)) for node in reachable(model.nodes, names)}
    nodes |= {node.name: node for node in reachable(model.nodes, (site.output,)) if node.name not in nodes}
    return replace(model, nodes=tuple(nodes.values()), outputs=(*site.read, site.output))


def declare_label(ctx: ImportContext, site: LossSite) -> Value:
    """The labels as a value of the graph: class indices, or numbers. E0305 for any other type."""
    label = site.label
    if label is NO_LABEL:
        return ctx.no_label()
    numbers = label.elem_type == onnx.TensorProto.FLOAT or _is_cast(ctx.links, label.name)
    integers = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    if not numbers and label.elem_type not in integers:
        names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
        what = f"labels are {names.get(label.elem_type, f'of unknown type {label.elem_type}')}"
        raise CompileError("E0305", f"input {label.name}", what, "use float32, or int32 or int64 for class indices")
    return ctx.label_input(label.name, label.shape, not numbers)


def _is_cast(links: Links, name: str) -> bool:
    """Whether all that reads labels makes numbers of them."""
    readers = links.readers(name)
    return bool(readers) and all(
        node.op == "Cast" and node.integer("to", 0) == onnx.TensorProto.FLOAT for node in readers
    )


def label_view(ctx: ImportContext, node: OnnxNode) -> bool:
    """Import a node that shows class indices in another shape or type, or computes with them; False for others."""
    label = ctx.labels.get(node.input(0))
    if label is None or node.op not in _LABEL_VIEWS or node.domain:
        return from_label_alone(ctx, node)
    if node.op == "Cast" and node.integer("to", 0) not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        _as_numbers(ctx, node, label)
        return True
    others = {name: ctx.entry(name).data for name in node.inputs[1:] if name and ctx.entry(name).is_constant}
    index = np.zeros(ctx.entry(node.input(0)).shape, np.int64)
    (shown,) = fold(node, {**others, node.input(0): index}, ctx.model.opset)
    ctx.define_value(node.output(0), label, tuple(shown.shape))
    ctx.labels[node.output(0)] = label
    return True


def _as_numbers(ctx: ImportContext, node: OnnxNode, label: Value) -> None:
    """Class indices as real numbers, which a regression on them reads: looked up in a table of 0, 1, 2, ..."""
    classes = class_count(ctx)
    if node.integer("to", 0) != onnx.TensorProto.FLOAT or not classes:
        what = "class indices become numbers here, and indices elsewhere"
        raise Unsupported("to", what, "OneHot, or one use of the labels")
    table = ctx.constant(np.arange(classes, dtype=np.float32).reshape(classes, 1), f"{node.name}.numbers", node)
    numbers = ctx.emit(node, "Gather", (table, label), GatherAttrs(classes))
    shape = ctx.entry(node.input(0)).shape
    ctx.define_value(node.output(0), ctx.reshape(node, numbers, shape), shape)


def ends_of(ctx: ImportContext, site: LossSite, values: Sequence[Value]) -> tuple[Value, ...]:
    """Values of the graph at which the model ends beside its scores, each once."""
    found = (ctx.entry(name).value for name in site.ends)
    return tuple(dict.fromkeys(value for value in found if value is not None and value not in values))


def ending_where_read(graph: Graph, loss: ImportedLoss) -> Graph:
    """The graph with these outputs: the scores, and whatever else of it the nodes of a forked loss read."""
    written = loss.written
    return graph if written is None else replace(graph, outputs=written.reads)


def describe_written(
    ctx: ImportContext, site: LossSite, scores: tuple[Value, Order], graph: Graph, label: Value
) -> ImportedLoss:
    """The loss as one of ours where it is that, else as nodes behind the graph. E0209 if it is no scalar."""
    _, order = scores
    kind = _known_kind(ctx, site)
    written = None if kind is not None else _nodes(ctx, site, graph, label)
    return ImportedLoss(
        kind=kind or "written",
        reduction=joined(ctx, site),
        class_weights=None,
        ignore_index=None,
        axis=order.index(1) if kind in ("nll", "softmax-ce") else 0,
        label=site.label.name,
        label_shape=_label_shape(ctx, site, kind),
        origin=site.node.name,
        output=site.output,
        written=written,
        whole=label.dtype == "float32" and site.label.elem_type != onnx.TensorProto.FLOAT,
    )


def _label_shape(ctx: ImportContext, site: LossSite, kind: LossKind | None) -> tuple[int, ...]:
    if kind not in ("nll", "softmax-ce"):
        return site.label.shape
    shape = ctx.entry(site.scores).shape
    return (shape[0], *shape[2:])


def _known_kind(ctx: ImportContext, site: LossSite) -> LossKind | None:
    """The loss of ours that the file writes out, if it reads what the forward graph gives, and only that."""
    known = None if site.ends or site.label is NO_LABEL else known_loss(ctx, site)
    if known is None:
        return None
    if known.scores == site.scores:
        return known.kind
    maker = ctx.links.maker(through(ctx.links, known.scores, ("Identity",)))
    if maker is None or maker.input(0) != site.scores:
        return None
    if known.kind == "nll" and maker.op == "LogSoftmax":
        rank = ctx.entry(site.scores).rank
        return "softmax-ce" if maker.integer("axis", -1) % rank == 1 else None
    return "bce" if known.kind == "bce" and maker.op == "Sigmoid" else None


def _nodes(ctx: ImportContext, site: LossSite, graph: Graph, label: Value) -> WrittenLoss:
    entry = ctx.entry(site.output)
    value = _scalar(ctx, site, entry)
    nodes, constants = ctx.nodes_and_constants((value,))
    known = {node.name for node in graph.nodes}
    tail = tuple(node for node in nodes if node.name not in known)
    return WrittenLoss(tail, _read_by(tail, constants), _ends_read(graph, tail), label, value)


def _ends_read(graph: Graph, tail: tuple[Node, ...]) -> tuple[Value, ...]:
    """The graph's output, and further values of a forked model that the loss reads."""
    scores, *others = graph.outputs
    if not others:
        return (scores,)
    made = {value.name: value for node in graph.nodes for value in node.outputs}
    read = dict.fromkeys(value.name for node in tail for value in node.inputs if value.name in made)
    return (scores, *(made[name] for name in read if name != scores.name))


def _read_by(nodes: tuple[Node, ...], constants: Mapping[str, Array]) -> dict[str, Array]:
    read = {value.name for node in nodes for value in node.inputs}
    return {name: data for name, data in constants.items() if name in read}


def _scalar(ctx: ImportContext, site: LossSite, entry: Entry) -> Value:
    if entry.elements != 1 or entry.value is None:
        names = ", ".join(value.name for value in ctx.model.inputs)
        what = f"inputs {names}, and the output {site.output} of shape {list(entry.shape)} is no loss"
        raise CompileError("E0209", "inputs", what, "end in a scalar")
    return ctx.reshape(site.node, ctx.value(site.node, entry), ())
