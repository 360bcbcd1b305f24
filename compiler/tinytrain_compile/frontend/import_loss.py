"""Loss operators: as plain forward nodes, and as the end of a model that brings its own loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.context import ImportContext, Unsupported
from tinytrain_compile.frontend.entries import Entry, Order, plain, significant
from tinytrain_compile.frontend.handler import Handler
from tinytrain_compile.frontend.model import Links, OnnxInput, OnnxModel, OnnxNode
from tinytrain_compile.frontend.operands import required_input
from tinytrain_compile.ir.imported import ImportedLoss
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.normalise import AxisAttrs

LOSS_OPS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclass(frozen=True, eq=False)
class LossSite:
    """Where a model with its own loss ends: the loss node, the tensor that it reads, and the input with the labels."""

    node: OnnxNode
    scores: str
    label: OnnxInput


def find_loss(model: OnnxModel, links: Links) -> LossSite | None:
    """The loss that is the model's only output and whose labels are an input; None for a forward model."""
    node = links.maker(model.outputs[0]) if len(model.outputs) == 1 else None
    if node is None or node.op not in LOSS_OPS or node.domain or node.output(0) != model.outputs[0]:
        return None
    if node.text("reduction", "mean") not in ("mean", "sum"):
        return None
    name = node.input(1)
    while (maker := links.maker(name)) is not None and maker.op in ("Identity", "Cast"):
        name = maker.input(0)
    label = next((value for value in model.inputs if value.name == name), None)
    return None if label is None else LossSite(node, node.input(0), label)


def class_order(entry: Entry) -> Order:
    """An order near the entry's own in which, without the class axis (ONNX axis 1), the others are in ONNX order."""
    last = (0, *range(2, entry.rank), 1)
    ahead = significant(entry.shape, entry.order)
    if ahead != significant(entry.shape, plain(entry.rank)) and ahead == significant(entry.shape, last):
        return last
    return plain(entry.rank)


def describe_loss(ctx: ImportContext, site: LossSite, scores: Entry, order: Order) -> ImportedLoss:
    """What training must know of a loss; E0305 if the labels do not fit the scores."""
    where = f"input {site.label.name}"
    if scores.rank < 2:
        raise CompileError(
            "E0212", f"node {site.node.name}", f"scores of shape {list(scores.shape)}", "use (batch, classes)"
        )
    wanted = (scores.shape[0], *scores.shape[2:])
    if site.label.shape != wanted:
        what = f"labels of shape {list(site.label.shape)} for scores of shape {list(scores.shape)}"
        raise CompileError("E0305", where, what, f"give labels of shape {list(wanted)}")
    if site.label.elem_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        raise CompileError("E0305", where, "labels must be class indices (int32 or int64)", "change their type")
    try:
        weights = _class_weights(ctx, site.node, scores.shape[1])
    except ValueError as error:
        raise CompileError("E0212", f"node {site.node.name}", str(error), "give one weight per class") from error
    return ImportedLoss(
        kind="softmax-ce" if site.node.op == LOSS_OPS[0] else "nll",
        reduction="sum" if site.node.text("reduction", "mean") == "sum" else "mean",
        class_weights=weights,
        ignore_index=_ignore_index(site.node),
        axis=order.index(1),
        label=site.label.name,
        label_shape=wanted,
        origin=site.node.name,
    )


def _class_weights(ctx: ImportContext, node: OnnxNode, classes: int) -> Array | None:
    if not node.input(2):
        return None
    weights = required_input(ctx, node, 2, "weights").astype(np.float32)
    if weights.shape != (classes,):
        raise ValueError(f"class weights of shape {weights.shape} for {classes} classes")
    return weights


def _ignore_index(node: OnnxNode) -> int | None:
    return node.integer("ignore_index", 0) if "ignore_index" in node.attrs else None


def _cross_entropy(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    order = class_order(x)
    log_probability = ctx.emit(node, "LogSoftmax", (ctx.value(node, x, order),), AxisAttrs(order.index(1)), "log_prob")
    ctx.define_value(node.output(1), log_probability, x.shape, order)
    _emit_loss(ctx, node, x, log_probability, order)


def _negative_log_likelihood(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    order = class_order(x)
    _emit_loss(ctx, node, x, ctx.value(node, x, order), order)


def _emit_loss(ctx: ImportContext, node: OnnxNode, x: Entry, log_probability: Value, order: Order) -> None:
    reduction = node.text("reduction", "mean")
    labels = required_input(ctx, node, 1, "labels")
    if x.rank < 2 or labels.dtype.kind not in "iu":
        raise Unsupported("labels", "they are not integers", "class indices (int32 or int64)")
    weights = _class_weights(ctx, node, x.shape[1])
    operands = [log_probability, ctx.constant(labels, node.input(1), node)]
    if weights is not None:
        operands.append(ctx.constant(weights, node.input(2), node))
    attrs = NllAttrs(order.index(1), reduction, _ignore_index(node))
    loss = ctx.emit(node, "NegativeLogLikelihood", operands, attrs)
    ctx.define_value(node.output(0), loss, loss.shape)


HANDLERS: Mapping[str, Handler] = {
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
}
