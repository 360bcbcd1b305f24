"""Scores of outputs against labels, by the loss for which a model is trained."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.data.samples import class_count, ignored_labels, is_binary
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.loss import class_axis
from tinytrain_compile.training import end_of, is_probability

_LEAST = 1e-30
"""Lower bound of a probability whose logarithm is taken."""


def scores(model: ImportedModel, train: TrainGraph, outputs: Array, y: Array) -> dict[str, float]:
    """Compute `loss` (mean over samples, class weights left out) and, for classes or yes and no, `accuracy`.

    outputs: (samples, elements) from a call; y: in the form of its labels. The loss is infinite if no label counts.
    """
    if class_count(train):
        return _classes(model, train, outputs, y)
    found, wanted = outputs.astype(np.float64).reshape(len(y), -1), y.astype(np.float64).reshape(len(y), -1)
    if is_binary(train):
        odds = found
        if is_probability(model.graph, model.graph.outputs[0]):
            odds = np.log(np.maximum(found, _LEAST) / np.maximum(1 - found, _LEAST))
        loss = np.maximum(odds, 0) - odds * wanted + np.log1p(np.exp(-np.abs(odds)))
        return {"loss": float(loss.mean()), "accuracy": float(((odds > 0) == (wanted > 0.5)).mean())}
    return {"loss": float(np.square(found - wanted).mean())}


def _classes(model: ImportedModel, train: TrainGraph, outputs: Array, y: Array) -> dict[str, float]:
    axis, classes, labels = class_axis(train.graph.nodes), class_count(train), y.reshape(-1)
    shape = train.of_one(train.graph.outputs[0])
    each = np.moveaxis(outputs.astype(np.float64).reshape(len(outputs), *shape[1:]), axis, -1).reshape(-1, classes)
    counted = ~np.isin(labels, ignored_labels(train))
    each, labels = each[counted], labels[counted]
    if len(labels) == 0:
        return {"loss": float("inf"), "accuracy": 0.0}
    logp = _log_probabilities(model, each, axis)
    right = each.argmax(axis=-1) == labels
    return {"loss": float(-logp[np.arange(len(labels)), labels].mean()), "accuracy": float(right.mean())}


def _log_probabilities(model: ImportedModel, each: Array, axis: int) -> Array:
    """Compute log probabilities according to the loss's kind of outputs: logarithms, probabilities, scores. (samples,
    classes)"""
    if model.loss is not None:
        logarithm, probability = model.loss.kind == "nll", False
    else:
        end = end_of(model.graph, model.graph.outputs[0])
        along = end.axis() == axis
        logarithm, probability = end.op == "LogSoftmax" and along, end.op == "Softmax" and along
    if logarithm:
        return each
    if probability:
        return np.log(np.maximum(each, _LEAST))
    top = each.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # after a diverged training they are NaN, and so is this
        return each - top - np.log(np.exp(each - top).sum(axis=-1, keepdims=True))
