"""Loss operators as plain forward nodes, and operators that the labels of a loss choose by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinytrain_compile.frontend.file.model import LOSS_OPS, OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import Entry, Order, plain, significant
from tinytrain_compile.frontend.graph.operands import axis_index, required_input
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.normalise import AxisAttrs


def class_order(entry: Entry) -> Order:
    """Return an order near the entry's own in which all axes but that of classes (1) are in ONNX order."""
    last = (0, *range(2, entry.rank), 1)
    ahead = significant(entry.shape, entry.order)
    if ahead != significant(entry.shape, plain(entry.rank)) and ahead == significant(entry.shape, last):
        return last
    return plain(entry.rank)


def class_weights(ctx: ImportContext, node: OnnxNode, classes: int) -> Array | None:
    """Return the weights of classes that a loss operator reads; None without any."""
    if not node.input(2):
        return None
    weights = required_input(ctx, node, 2, "weights").astype(np.float32)
    if weights.shape != (classes,):
        raise ValueError(f"class weights of shape {weights.shape} for {classes} classes")
    return weights


def ignore_index(node: OnnxNode) -> int | None:
    """Return the label that does not count; None if all do."""
    return node.integer("ignore_index", 0) if "ignore_index" in node.attrs else None


def _loss(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    order = class_order(x)
    log_probability = ctx.value(node, x, order)
    if node.op == LOSS_OPS[0]:
        log_probability = ctx.emit(node, "LogSoftmax", (log_probability,), AxisAttrs(order.index(1)), "log_prob")
        ctx.define_value(node.output(1), log_probability, x.shape, order)
    reduction = node.text("reduction", "mean")
    if x.rank < 2:
        raise Refused("scores", f"their shape is {list(x.shape)}", "(batch, classes)")
    weights = class_weights(ctx, node, x.shape[1])
    operands = [log_probability, _labels_of(ctx, node, x)]
    if weights is not None:
        operands.append(ctx.constant(weights, node.input(2), node))
    attrs = NllAttrs(order.index(1), reduction, ignore_index(node))
    loss = ctx.emit(node, "NegativeLogLikelihood", operands, attrs)
    return Entry(loss.shape, loss, plain(len(loss.shape)))


def _labels_of(ctx: ImportContext, node: OnnxNode, x: Entry) -> Value:
    """Return the labels of a loss operator: the model's own, or a constant."""
    known = ctx.labels.get(node.input(1))
    if known is not None and known.shape == (x.shape[0], *x.shape[2:]):
        return known
    labels = required_input(ctx, node, 1, "labels")
    if labels.dtype.kind not in "iu":
        raise Refused("labels", "they are not integers", "class indices (int32 or int64)")
    return ctx.constant(labels, node.input(1), node)


def pick(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Gather or GatherElements along the class axis by the model's labels: one score of each row."""
    label = ctx.labels[node.input(1)]
    shape = ctx.entry(node.input(1)).shape
    axis = axis_index(node.integer("axis", 0), x.rank)
    if axis != 1 or label.shape != (x.shape[0], *x.shape[2:]) or (node.op == "Gather" and x.elements != x.shape[1]):
        what = f"labels of shape {list(label.shape)} do not choose from {list(x.shape)} along axis {axis}"
        raise Refused("indices", what, "one label for each row of (batch, classes), axis 1")
    order = class_order(x)
    attrs = NllAttrs(order.index(1), "none")
    chosen = ctx.emit(node, "NegativeLogLikelihood", (ctx.value(node, x, order), label), attrs, "negative")
    result = (*x.shape[:1], *shape, *x.shape[2:]) if node.op == "Gather" else shape
    return Entry(result, ctx.reshape(node, ctx.emit(node, "Neg", (chosen,)), result), plain(len(result)))


def one_hot_label(ctx: ImportContext, node: OnnxNode, indices: tuple[int, ...]) -> Entry:
    """Import OneHot of the model's labels: vectors with a number at the label and another elsewhere."""
    label = ctx.labels[node.input(0)]
    low, high = (float(v) for v in required_input(ctx, node, 2, "values").ravel())
    depth = int(required_input(ctx, node, 1, "depth").ravel()[0])
    axis = axis_index(node.integer("axis", -1), len(indices) + 1)
    shape = (*indices[:axis], depth, *indices[axis:])
    attrs = NllGradAttrs(NllAttrs(axis, "none"), shape)
    if indices != label.shape:
        raise Refused("indices", "the labels come in another shape", "OneHot of the labels as they are")
    minus = ctx.constant(np.full(indices, -1.0, np.float32), f"{node.name}.minus", node)
    y = ctx.emit(node, "NegativeLogLikelihoodGrad", (minus, label), attrs, "hot")
    if (low, high) != (0.0, 1.0):
        y = ctx.emit(node, "Mul", (y, ctx.number(node, "rise", high - low)), suffix="scaled")
        y = ctx.emit(node, "Add", (y, ctx.number(node, "low", low)), suffix="shifted")
    return Entry(shape, y, plain(len(shape)))


HANDLERS: Mapping[str, Handler] = dict.fromkeys(LOSS_OPS, of_one(_loss))
