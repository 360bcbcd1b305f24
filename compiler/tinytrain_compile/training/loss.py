"""Appending of the loss to a forward graph, without a trailing activation that the loss already contains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.imported import ImportedLoss, ImportedModel, WrittenLoss
from tinytrain_compile.ir.loss_terms import MEAN_OF_SAMPLES, LabelWeights, LossTerms
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import has_trait, op_def
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.ops.shape import ReduceAttrs, TransposeAttrs
from tinytrain_compile.training.optimizer import TrainingOptions

LEAST, MOST = 1e-30, 1.0 - 2.0**-24
"""Bounds of a probability whose logarithm is taken."""
BCE_OF_PROBABILITIES = "loss: bce of the output as it is: it holds probabilities"
BCE_OF_SCORES = "loss: bce is of scores (logits): the loss has a sigmoid in it"


@dataclass(frozen=True)
class AppendedLoss:
    """The loss value, the labels and the value that it reads, and remarks for the user.

    terms: how it becomes the loss of a batch. If that divides by the weights of all labels, the value is the sum.
    """

    loss: Value
    label: Value
    logits: Value
    notes: tuple[str, ...]
    terms: LossTerms = MEAN_OF_SAMPLES


def append_loss(builder: GraphBuilder, model: ImportedModel, options: TrainingOptions) -> AppendedLoss:
    """Emit the loss nodes after the graph's output; CompileError E0304 when loss and output do not match.

    There is no loss of truth values or integers, which have no gradients.
    """
    asked = options.loss
    output = model.graph.outputs[0]
    if output.dtype != "float32":
        what = f"it holds {'truth values' if output.dtype == 'uint8' else 'integers'}, which no loss has a gradient for"
        try_ = f"train the float32 result before it: --model-output {_last_float(model, output) or 'NAME'}"
        raise CompileError("E0304", f"output {model.output_name}", what, try_)
    if model.loss is not None:
        if asked is not None:
            raise CompileError(
                "E0304", "--loss", f"the model ends in its own loss, {model.loss.origin!r}", "leave --loss out"
            )
        return _own_loss(builder, model, options)
    end = end_of(model.graph, output)
    kind, notes = (asked, ()) if asked else _default_loss(model, end)
    if kind == "cross-entropy":
        return _cross_entropy(builder, model, end, notes)
    label = Value(builder.unique("label"), output.shape, "float32", output.layout)
    if kind == "mse":
        return AppendedLoss(builder.emit("MeanSquaredError", (output, label), name="loss"), label, output, notes)
    if is_probability(model.graph, output) and end.op != "Sigmoid":
        logits, absorbed = _scores_of(builder, output), (BCE_OF_PROBABILITIES,)
    else:
        logits, absorbed = absorb(builder, end)
    if not end.op and not absorbed:
        absorbed = (BCE_OF_SCORES,)
    loss = builder.emit("SigmoidCrossEntropy", (logits, label), name="loss")
    return AppendedLoss(loss, label, logits, (*notes, *absorbed))


def _scores_of(builder: GraphBuilder, output: Value) -> Value:
    """Return log p - log(1 - p): the number whose sigmoid is p. p is kept away from 0 and 1, where a logarithm is
    infinite."""
    p = builder.emit("Clip", (output,), ClipAttrs(LEAST, MOST), name="probability")
    one = builder.constant("one", np.ones((), np.float32))
    odds = (builder.emit("Log", (p,), name="log_p"), builder.emit("Sub", (one, p), name="rest"))
    return builder.emit("Sub", (odds[0], builder.emit("Log", odds[1:], name="log_rest")), name="scores")


def _default_loss(model: ImportedModel, end: End) -> tuple[str, tuple[str, ...]]:
    """Return the loss that the end of the model implies, and a note that says so."""
    shape = model.output_shape
    if end.op == "Sigmoid":
        return "bce", ("loss: bce, the default behind a Sigmoid: labels are 0 or 1, one for each output",)
    if len(shape) == 2 and shape[1] > 1:
        return "cross-entropy", (f"loss: cross-entropy, the default for an output of shape {shape}",)
    at = _classes_at(shape)
    classes = f"cross-entropy (classes on axis {at}), " if len(shape) > at and shape[at] > 1 else ""
    what = f"no default loss for an output of shape {shape}"
    raise CompileError("E0304", "--loss", what, f"choose --loss {classes}mse or bce")


def _cross_entropy(builder: GraphBuilder, model: ImportedModel, end: End, notes: tuple[str, ...]) -> AppendedLoss:
    shape, output = model.output_shape, end.output
    if len(shape) < 2 or shape[_classes_at(shape)] < 2:
        raise CompileError(
            "E0304",
            "--loss",
            f"cross-entropy needs an output (batch, classes), got {shape}",
            "choose --loss mse or bce",
        )
    axis = _class_axis(model, end)
    label = Value(builder.unique("label"), (*output.shape[:axis], *output.shape[axis + 1 :]), "int32")
    logits, absorbed = absorb(builder, end, axis)
    logp = builder.emit("LogSoftmax", (logits,), AxisAttrs(axis), name="log_probabilities")
    loss = builder.emit("NegativeLogLikelihood", (logp, label), NllAttrs(axis), name="loss")
    return AppendedLoss(loss, label, logits, (*notes, *absorbed))


def _class_axis(model: ImportedModel, end: End) -> int:
    """Return the axis of the classes in the graph's output: that of a softmax at the end, else ONNX axis 1."""
    axis = end.axis()
    rest = [onnx for index, onnx in enumerate(model.output_perm) if index != axis]
    usual = model.output_perm.index(_classes_at(model.output_shape))
    return axis if axis is not None and rest == sorted(rest) else usual


def _classes_at(shape: tuple[int, ...]) -> int:
    """Return the ONNX axis of classes: 1, except for scores of each time step of one sample: (time, 1, classes)."""
    return 2 if len(shape) == 3 and shape[0] > 1 and shape[1] == 1 else 1


def _last_float(model: ImportedModel, output: Value) -> str:
    """Return the file's name of the last float32 result that the output is computed from; "" without one."""
    names, needed = {one.value: name for name, one in model.tensors.items()}, model.graph.ancestors((output,))
    results = [value for node in model.graph.nodes if node.name in needed for value in node.outputs]
    found = [names[value.name] for value in results if value.dtype == "float32" and value.name in names]
    return found[-1] if found else ""


def _own_loss(builder: GraphBuilder, model: ImportedModel, options: TrainingOptions) -> AppendedLoss:
    own, output = model.loss, model.graph.outputs[0]
    assert own is not None
    if own.written is not None:
        return _written_loss(own, own.written, output, options)
    if own.kind in ("mse", "bce"):
        return _pair_loss(builder, model, own)
    label = Value(builder.unique(own.label), own.label_shape, "int32")
    logp = output
    if own.kind == "softmax-ce":
        logp = builder.emit("LogSoftmax", (output,), AxisAttrs(own.axis), name="log_probabilities", origin=own.origin)
    operands = [logp, label]
    if own.class_weights is not None:
        operands.append(builder.constant("class_weights", own.class_weights.astype(np.float32)))
    terms = _own_terms(own, options.sums)
    attrs = NllAttrs(own.axis, "sum" if terms.divided else own.reduction, own.ignore_index)
    loss = builder.emit("NegativeLogLikelihood", operands, attrs, name="loss", origin=own.origin)
    notes = [_own_note(own)]
    if terms.divisor == "weights" and options.in_place:
        notes.append(
            f"--accumulate inplace: {own.origin!r} is a mean by weights; each sample is divided by its own alone"
        )
    return AppendedLoss(loss, label, output, tuple(notes), terms)


def _pair_loss(builder: GraphBuilder, model: ImportedModel, own: ImportedLoss) -> AppendedLoss:
    """Append a mean over outputs and labels of one shape."""
    output = model.graph.outputs[0]
    label, logits = Value(builder.unique(own.label), output.shape, "float32", output.layout), output
    absorbed: tuple[str, ...] = ()
    if own.kind == "bce":
        logits, absorbed = absorb(builder, end_of(model.graph, output))
    op = "MeanSquaredError" if own.kind == "mse" else "SigmoidCrossEntropy"
    loss = builder.emit(op, (logits, label), name="loss", origin=own.origin)
    return AppendedLoss(loss, label, logits, (_own_note(own), *absorbed))


def _written_loss(own: ImportedLoss, written: WrittenLoss, output: Value, options: TrainingOptions) -> AppendedLoss:
    """Return the loss nodes of the file, which are in the graph already; E0304 if they do not define a batch's loss."""
    if own.reduction == "other" and options.sums:
        what = f"{own.origin!r} of the model is no mean or sum over samples: a batch has another loss than its samples"
        try_ = "leave --batch out, or add --accumulate inplace"
        raise CompileError("E0304", f"--batch {options.batch}", what, try_)
    terms = LossTerms("one") if own.reduction == "sum" else MEAN_OF_SAMPLES
    return AppendedLoss(written.value, written.label, output, (_own_note(own),), terms)


def _own_note(own: ImportedLoss) -> str:
    how = "" if own.reduction == "other" else f", {own.reduction}"
    labels = f"labels are its input {own.label!r}" if own.label else "it needs no labels"
    return f"loss: {own.origin!r} of the model itself ({labels}{how})"


def _own_terms(own: ImportedLoss, sums: bool) -> LossTerms:
    """Return the terms of the model's own loss. sums: whether gradients are summed over several samples."""
    weighed = own.class_weights is not None or own.ignore_index is not None
    if own.reduction != "mean":  # class weights are in its terms already
        return LossTerms("one", LabelWeights((), own.ignore_index) if own.ignore_index is not None else None)
    if not weighed:
        return MEAN_OF_SAMPLES
    table = () if own.class_weights is None else tuple(own.class_weights.astype(np.float32).tolist())
    return LossTerms("weights", LabelWeights(table, own.ignore_index), sums)


# ---- the activation at the end of a model ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class End:
    """An output, the activation that makes its numbers (None if there is none), and the nodes that move these."""

    output: Value
    activation: Node | None = None
    views: tuple[Node, ...] = ()

    @property
    def op(self) -> str:
        """The activation's operator, or ""."""
        return "" if self.activation is None else self.activation.op

    def axis(self) -> int | None:
        """Return the output's axis of a softmax; None if it has become a part of another axis, or for a sigmoid."""
        node = self.activation
        if node is None or not isinstance(node.attrs, AxisAttrs):
            return None
        axis: int | None = node.attrs.axis % len(node.outputs[0].shape)
        for view in self.views:
            if isinstance(view.attrs, TransposeAttrs):
                axis = view.attrs.perm.index(axis)
            else:
                axis = _in_shape(axis, view.inputs[0].shape, view.outputs[0].shape)
            if axis is None:
                return None
        return axis


def end_of(graph: Graph, output: Value) -> End:
    """Return the end of an output. The clamp of its storage is skipped: the loss reads the number before it."""
    makers, views = graph.producers(), list[Node]()
    node = makers.get(output.name)
    while node is not None and (has_trait(node.op, "clamps") or has_trait(node.op, "rearranges")):
        if has_trait(node.op, "rearranges"):
            views.append(node)
        node = makers.get(node.inputs[0].name)
    if node is None or not has_trait(node.op, "link"):
        return End(output)
    return End(output, node, tuple(reversed(views)))


def is_probability(graph: Graph, output: Value) -> bool:
    """Tell whether every number of an output is from 0 to 1: of a sigmoid or softmax, moved, picked or averaged."""
    makers = graph.producers()
    node = makers.get(output.name)
    while node is not None and (has_trait(node.op, "between") or _is_mean(node)):
        node = makers.get(node.inputs[0].name)
    bounds = None if node is None else op_def(node.op).bounds
    return bounds is not None and bounds.low >= 0.0 and bounds.high <= 1.0


def _is_mean(node: Node) -> bool:
    """Tell whether a node computes a mean: a sum divided by the number of its terms."""
    if not isinstance(node.attrs, ReduceAttrs):
        return False
    count = math.prod(node.inputs[0].shape[axis] for axis in node.attrs.axes)
    return math.isclose(node.attrs.scale * count, 1.0, rel_tol=1e-5)


def absorb(builder: GraphBuilder, end: End, axis: int | None = None) -> tuple[Value, tuple[str, ...]]:
    """Return the value before a trailing activation that the loss already contains; the output itself if there is none.

    An activation that the loss does not contain stays, and a note explains that. axis: of the classes of a
    cross entropy, which contains a softmax; None: bce, which contains a sigmoid.
    """
    node = end.activation
    if node is None:
        return end.output, ()
    name, contained = node.origin or node.name, has_trait(node.op, "distribution") == (axis is not None)
    if contained and end.axis() == axis:
        logits = node.inputs[0]
        for view in end.views:
            logits = builder.emit(view.op, (logits,), view.attrs, name=f"{view.name}.logits", origin=view.origin)
        note = f"trailing {node.op} {name!r} absorbed into the loss: training reads its input, m_infer its output"
        return logits, (note,)
    fitting = "bce" if node.op == "Sigmoid" else "cross-entropy"
    way = "leave it out of the model" if contained else f"use --loss {fitting}, or leave it out of the model"
    return end.output, (f"the loss takes what {node.op} {name!r} gives for scores: {way}",)


def _in_shape(axis: int, before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    """Return the index of an axis after a Reshape that only adds and removes axes of size 1; None after any other."""
    kept, found = ([index for index, dim in enumerate(shape) if dim > 1] for shape in (before, after))
    if axis not in kept or [before[index] for index in kept] != [after[index] for index in found]:
        return None
    return found[kept.index(axis)]
