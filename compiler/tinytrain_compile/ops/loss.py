"""Losses, which training minimises. Softmax cross entropy is LogSoftmax followed by NegativeLogLikelihood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.arithmetic import EXACT, REFERENCE, ArrayArithmetic
from tinytrain_compile.ops.base import GradientContext, operator, traits
from tinytrain_compile.ops.exact import F32, sequential_sum
from tinytrain_compile.ops.names import BACKWARD, attrs_of, expect_float, expect_same_shape, like, only, operands

REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class NllAttrs(Attrs):
    """axis: axis of the classes; reduction: "mean", "sum" or "none"; ignore_index: a label that does not count."""

    axis: int
    reduction: str = "mean"
    ignore_index: int | None = None


@dataclass(frozen=True)
class NllGradAttrs(Attrs):
    """The forward attributes and the shape of the log probabilities."""

    nll: NllAttrs
    shape: tuple[int, ...]


def classes_of(nodes: Sequence[Node], label: str = "") -> int:
    """Return how many classes the labels of a loss among these nodes index; 0 if labels are values.

    label: name of the labels, which may also look up tables alone.
    """
    for node in nodes:
        if isinstance(node.attrs, NllAttrs):
            return node.inputs[0].shape[node.attrs.axis]
        if isinstance(node.attrs, NllGradAttrs):
            return node.attrs.shape[node.attrs.nll.axis]
    looked_up = [operands(node) for node in nodes if node.op == "Gather"]
    return min((own["table"].shape[0] for own in looked_up if own["index"].name == label), default=0)


def class_axis(nodes: Iterable[Node]) -> int:
    """Return the axis of a sample's scores that the classes of a loss among these nodes are on."""
    found = (node.attrs for node in nodes if isinstance(node.attrs, NllAttrs | NllGradAttrs))
    return next((attrs.axis if isinstance(attrs, NllAttrs) else attrs.nll.axis for attrs in found), -1)


# ---- inference ------------------------------------------------------------------------------------------------------


def _check_labels(op: str, shape: tuple[int, ...], attrs: NllAttrs, labels: Value, weights: Sequence[Value]) -> None:
    if not 0 <= attrs.axis < len(shape) or attrs.reduction not in REDUCTIONS:
        raise ValueError(f"{op}: {attrs} on shape {shape}")
    if labels.dtype != "int32" or labels.shape != (*shape[: attrs.axis], *shape[attrs.axis + 1 :]):
        raise ValueError(f"{op}: labels {labels.type} do not belong to {shape} with classes on axis {attrs.axis}")
    expect_float(op, *weights)
    if any(weight.shape != (shape[attrs.axis],) for weight in weights):
        raise ValueError(f"{op}: class weights {weights[0].shape}, but {shape[attrs.axis]} classes")


def _infer_nll(inputs: tuple[Value, ...], attrs: NllAttrs) -> tuple[TensorType, ...]:
    logp, labels, *weights = inputs
    expect_float("NegativeLogLikelihood", logp)
    _check_labels("NegativeLogLikelihood", logp.shape, attrs, labels, weights)
    return (TensorType(labels.shape if attrs.reduction == "none" else ()),)


def _infer_nll_grad(inputs: tuple[Value, ...], attrs: NllGradAttrs) -> tuple[TensorType, ...]:
    dloss, labels, *weights = inputs
    expect_float("NegativeLogLikelihoodGrad", dloss)
    _check_labels("NegativeLogLikelihoodGrad", attrs.shape, attrs.nll, labels, weights)
    if dloss.shape != (labels.shape if attrs.nll.reduction == "none" else ()):
        raise ValueError(f"NegativeLogLikelihoodGrad: gradient of the loss has shape {dloss.shape}")
    return (TensorType(attrs.shape),)


def _infer_pair(op: str, inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_float(op, *inputs)
    expect_same_shape(op, *inputs)
    return (TensorType(()),)


def _infer_pair_grad(op: str, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    dloss, y, target = inputs
    _infer_pair(op, (y, target), attrs)
    expect_float(op, dloss)
    if dloss.shape != ():
        raise ValueError(f"{op}: the gradient of the loss is a scalar, got shape {dloss.shape}")
    return like(y)


# ---- references -----------------------------------------------------------------------------------------------------


def _counting(labels: Any, attrs: NllAttrs, classes: int) -> Any:
    """Return which labels count: those that are a class and not ignored."""
    counts = (labels >= 0) & (labels < classes)
    return counts if attrs.ignore_index is None else counts & (labels != attrs.ignore_index)


def _label_weights(labels: Any, weights: Sequence[Any], attrs: NllAttrs, classes: int, dtype: Any) -> Any:
    """Return the weight of each label: 0 if it does not count (a kernel must never read outside the table)."""
    counts = _counting(labels, attrs, classes)
    table = weights[0] if weights else np.ones(classes, dtype)
    return np.where(counts, table[np.clip(labels, 0, classes - 1)], dtype.type(0))


def _mean_divisor(weight: Any, attrs: NllAttrs) -> Any:
    """Return the divisor of "mean": the weights' sum; 1 if nothing counts, so that loss and gradient are 0, not NaN."""
    total = weight.sum() if attrs.reduction == "mean" else weight.dtype.type(1)
    return total if total != 0 else weight.dtype.type(1)


def _nll(arrays: tuple[Any, ...], attrs: NllAttrs) -> tuple[Array, ...]:
    logp, labels, *weights = arrays
    classes = logp.shape[attrs.axis]
    weight = _label_weights(labels, weights, attrs, classes, logp.dtype)
    places = np.expand_dims(np.clip(labels, 0, classes - 1), attrs.axis)
    chosen = np.take_along_axis(logp, places, attrs.axis).squeeze(attrs.axis)
    losses = -weight * chosen
    if attrs.reduction == "none":
        return (losses,)
    return (np.asarray(losses.sum() / _mean_divisor(weight, attrs)),)


def _nll_grad(arrays: tuple[Any, ...], attrs: NllGradAttrs) -> tuple[Array, ...]:
    dloss, labels, *weights = arrays
    axis, classes = attrs.nll.axis, attrs.shape[attrs.nll.axis]
    weight = _label_weights(labels, weights, attrs.nll, classes, dloss.dtype)
    share = -weight * (dloss / _mean_divisor(weight, attrs.nll))
    dlogp = np.zeros(attrs.shape, dloss.dtype)
    places = np.expand_dims(np.clip(labels, 0, classes - 1), axis)
    np.put_along_axis(dlogp, places, np.expand_dims(share, axis), axis)
    return (dlogp,)


def _mse_grad(arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    dloss, y, target = arrays
    return ((y - target) * (dloss * y.dtype.type(2.0) / y.dtype.type(y.size)),)


# ---- exact references -----------------------------------------------------------------------------------------------


def _exact_weights(labels: Any, weights: Sequence[Any], attrs: NllAttrs, classes: int) -> tuple[Any, Any, Any]:
    """Return (whether each label counts, its weight if so, the divisor of "mean")."""
    counts = _counting(labels, attrs, classes)
    weight = (weights[0] if weights else np.ones(classes, F32))[np.where(counts, labels, 0)]
    divisor = sequential_sum(np.where(counts, weight, F32(0)).ravel()) if attrs.reduction == "mean" else F32(1)
    return counts, weight, divisor


def _nll_exact(arrays: tuple[Any, ...], attrs: NllAttrs) -> tuple[Array, ...]:
    logp, labels, *weights = arrays
    counts, weight, divisor = _exact_weights(labels, weights, attrs, logp.shape[attrs.axis])
    places = np.expand_dims(np.where(counts, labels, 0), attrs.axis)
    chosen = np.take_along_axis(logp, places, attrs.axis).squeeze(attrs.axis)
    terms = np.where(counts, chosen * weight, F32(0))
    if attrs.reduction == "none":
        return (0 - terms,)
    return (np.asarray(0 - sequential_sum(terms.ravel()) / divisor if divisor != 0 else F32(0)),)


def _nll_grad_exact(arrays: tuple[Any, ...], attrs: NllGradAttrs) -> tuple[Array, ...]:
    dloss, labels, *weights = arrays
    axis, classes = attrs.nll.axis, attrs.shape[attrs.nll.axis]
    counts, weight, divisor = _exact_weights(labels, weights, attrs.nll, classes)
    share = dloss / divisor if divisor != 0 else F32(0)
    dlogp = np.zeros(attrs.shape, F32)
    places = np.expand_dims(np.where(counts, labels, 0), axis)
    np.put_along_axis(dlogp, places, np.expand_dims(np.where(counts, 0 - weight * share, F32(0)), axis), axis)
    return (dlogp,)


# ---- formulas: read as numpy, and as its exact twin -----------------------------------------------------------------


def _mean(m: ArrayArithmetic, terms: Any) -> tuple[Array, ...]:
    return (np.asarray((m.sum(terms.ravel(), (0,)) * (1.0 / terms.size)).reshape(())),)


def _mse(m: ArrayArithmetic, arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    y, target = arrays
    error = y - target
    return _mean(m, error * error)


def _bce(m: ArrayArithmetic, arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    z, target = arrays
    above, minus = m.where(z > 0, z, 0.0), m.where(z > 0, 0 - z, z)
    return _mean(m, (above - z * target) + m.log1p(m.exp(minus)))


def _bce_grad(m: ArrayArithmetic, arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    dloss, z, target = arrays
    return ((m.sigmoid(z) - target) * (dloss / float(z.size)),)


# ---- gradients ------------------------------------------------------------------------------------------------------


def _not_for_labels(ctx: GradientContext, node: Node) -> None:
    if any(ctx.wants(index) for index in range(1, len(node.inputs))):
        raise ValueError(f"{node.op} has no gradient with respect to labels or class weights")


def _nll_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    _not_for_labels(ctx, node)
    logp, *rest = node.inputs
    attrs = NllGradAttrs(attrs_of(node, NllAttrs), logp.shape)
    return {0: ctx.emit("NegativeLogLikelihoodGrad", (only(gradients), *rest), attrs)}


def _mse_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    _not_for_labels(ctx, node)
    return {0: ctx.emit("MeanSquaredErrorGrad", (only(gradients), *node.inputs), NO_ATTRS)}


def _bce_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    _not_for_labels(ctx, node)
    return {0: ctx.emit("SigmoidCrossEntropyGrad", (only(gradients), *node.inputs), NO_ATTRS)}


def _nll_says(node: Node) -> str:
    a = attrs_of(node, NllAttrs)
    each = "-logp[label]" + (" * weights[label]" if "weights" in operands(node) else "")
    ignored = "" if a.ignore_index is None else f"; label {a.ignore_index} does not count"
    return f"loss = {each if a.reduction == 'none' else f'{a.reduction} of {each}'}{ignored}"


def _nll_grad_says(_node: Node) -> str:
    return "dlogp = gradient of NegativeLogLikelihood: 0 but for the element of each label"


operator(
    "NegativeLogLikelihood",
    "Minus the log probability of the label, weighted per class and reduced (ONNX NegativeLogLikelihoodLoss).",
    _infer_nll,
    _nll,
    _nll_rule,
    NllAttrs,
    exact=_nll_exact,
    inputs=("logp", "labels", "weights?"),
    outputs=("loss",),
    says=_nll_says,
)
operator(
    "NegativeLogLikelihoodGrad",
    "Gradient of NegativeLogLikelihood with respect to the log probabilities: one element per label.",
    _infer_nll_grad,
    _nll_grad,
    BACKWARD,
    NllGradAttrs,
    exact=_nll_grad_exact,
    inputs=("dloss", "labels", "weights?"),
    outputs=("dlogp",),
    says=_nll_grad_says,
)
operator(
    "MeanSquaredError",
    "loss = mean((y - target)^2).",
    partial(_infer_pair, "MeanSquaredError"),
    partial(_mse, REFERENCE),
    _mse_rule,
    exact=partial(_mse, EXACT),
    inputs=("y", "target"),
    outputs=("loss",),
    traits=traits("target_loss"),
)
operator(
    "MeanSquaredErrorGrad",
    "dy = dloss 2 (y - target) / n, the gradient of MeanSquaredError; it may overwrite y.",
    partial(_infer_pair_grad, "MeanSquaredErrorGrad"),
    _mse_grad,
    BACKWARD,
    inputs=("dloss", "y", "target"),
    outputs=("dy",),
    reuses=("y",),
    traits=traits("target_loss"),
)
operator(
    "SigmoidCrossEntropy",
    "loss = mean(max(y, 0) - y * target + log1p(exp(-|y|))): binary cross entropy of logits y.",
    partial(_infer_pair, "SigmoidCrossEntropy"),
    partial(_bce, REFERENCE),
    _bce_rule,
    exact=partial(_bce, EXACT),
    inputs=("y", "target"),
    outputs=("loss",),
    traits=traits("binary_loss", "cancels", "target_loss"),
)
operator(
    "SigmoidCrossEntropyGrad",
    "dy = dloss (sigmoid(y) - target) / n, the gradient of SigmoidCrossEntropy; it may overwrite y.",
    partial(_infer_pair_grad, "SigmoidCrossEntropyGrad"),
    partial(_bce_grad, REFERENCE),
    BACKWARD,
    exact=partial(_bce_grad, EXACT),
    inputs=("dloss", "y", "target"),
    outputs=("dy",),
    reuses=("y",),
    traits=traits("binary_loss", "cancels", "target_loss"),
)
