"""Appends the loss to a forward graph, without the activation at its end that belongs to the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.builder import GraphBuilder
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.training.end import End, absorb, end_of


@dataclass(frozen=True)
class AppendedLoss:
    """The loss value, the labels it reads, the value that it judges, and remarks for the user.

    is_mean: whether it is the mean over the samples of a step, and not their sum.
    """

    loss: Value
    label: Value
    logits: Value
    notes: tuple[str, ...]
    is_mean: bool = True


def append_loss(builder: GraphBuilder, model: ImportedModel, asked: str | None) -> AppendedLoss:
    """Emit the loss nodes behind the graph's output; CompileError E0304 when loss and output do not match."""
    if model.loss is not None:
        if asked is not None:
            raise CompileError(
                "E0304", "--loss", f"the model ends in its own loss, {model.loss.origin!r}", "leave --loss out"
            )
        return _own_loss(builder, model)
    output = model.graph.outputs[0]
    end = end_of(model.graph, output)
    kind, notes = (asked, ()) if asked else _default_loss(model, end)
    if kind == "cross-entropy":
        return _cross_entropy(builder, model, end, notes)
    label = Value(builder.unique("label"), output.shape, "float32", output.layout)
    if kind == "mse":
        return AppendedLoss(builder.emit("MeanSquaredError", (output, label), name="loss"), label, output, notes)
    logits, absorbed = absorb(builder, end, ("Sigmoid",))
    loss = builder.emit("SigmoidCrossEntropy", (logits, label), name="loss")
    return AppendedLoss(loss, label, logits, (*notes, *absorbed))


def _default_loss(model: ImportedModel, end: End) -> tuple[str, tuple[str, ...]]:
    """The loss that the end of the model speaks for, and a note that says so."""
    shape = model.output_shape
    if end.op == "Sigmoid":
        return "bce", ("loss: bce, the default behind a Sigmoid: labels are 0 or 1, one for each output",)
    if len(shape) == 2 and shape[1] > 1:
        return "cross-entropy", (f"loss: cross-entropy, the default for an output of shape {shape}",)
    raise CompileError("E0304", "--loss", f"no default loss for an output of shape {shape}", "choose --loss mse or bce")


def _cross_entropy(builder: GraphBuilder, model: ImportedModel, end: End, notes: tuple[str, ...]) -> AppendedLoss:
    shape, output = model.output_shape, end.output
    if len(shape) < 2 or shape[1] < 2:
        raise CompileError(
            "E0304",
            "--loss",
            f"cross-entropy needs an output (batch, classes), got {shape}",
            "choose --loss mse or bce",
        )
    axis = model.output_perm.index(1)
    label = Value(builder.unique("label"), (*output.shape[:axis], *output.shape[axis + 1 :]), "int32")
    logits, absorbed = absorb(builder, end, ("Softmax", "LogSoftmax"), axis)
    logp = builder.emit("LogSoftmax", (logits,), AxisAttrs(axis), name="log_probabilities")
    loss = builder.emit("NegativeLogLikelihood", (logp, label), NllAttrs(axis), name="loss")
    return AppendedLoss(loss, label, logits, (*notes, *absorbed))


def _own_loss(builder: GraphBuilder, model: ImportedModel) -> AppendedLoss:
    own, output = model.loss, model.graph.outputs[0]
    assert own is not None
    label = Value(builder.unique(own.label), own.label_shape, "int32")
    logp = output
    if own.kind == "softmax-ce":
        logp = builder.emit("LogSoftmax", (output,), AxisAttrs(own.axis), name="log_probabilities", origin=own.origin)
    operands = [logp, label]
    if own.class_weights is not None:
        operands.append(builder.constant("class_weights", own.class_weights.astype(np.float32)))
    attrs = NllAttrs(own.axis, own.reduction, own.ignore_index)
    loss = builder.emit("NegativeLogLikelihood", operands, attrs, name="loss", origin=own.origin)
    note = f"loss: {own.origin!r} of the model itself (contract 2: labels are its input {own.label!r}, {own.reduction})"
    return AppendedLoss(loss, label, output, (note,), own.reduction == "mean")
