"""Scores of outputs against labels, by the loss for which a model is trained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinytrain_compile.data.samples import class_count, ignored_labels, is_binary
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.loss import class_axis
from tinytrain_compile.training import end_of, is_probability

_LEAST = 1e-30
"""Lower bound of a probability whose logarithm is taken."""
_SHARPNESS = tuple(2.0 ** (step / 4) for step in range(-16, 9))
"""Factors of the outputs among which the best one is looked for; 1 / temperature (Guo et al., ICML 2017)."""


def scores(model: ImportedModel, train: TrainGraph, outputs: Array, y: Array) -> dict[str, float]:
    """Compute `loss` (mean over samples, class weights left out) and, for classes or yes and no, `accuracy`.

    outputs: (samples, elements) from a call; y: in the form of its labels. The loss is infinite if no label counts.
    """
    loss, accuracy = _judged(model, train, outputs, y)
    return {"loss": loss(1.0)} | ({} if accuracy is None else {"accuracy": accuracy})


def calibrated_loss(model: ImportedModel, train: TrainGraph, outputs: Array, y: Array) -> float | None:
    """Compute the loss of the outputs times the one factor that makes it smallest; None if labels are values.

    A network that is too sure of itself, or not sure enough, has a larger loss for the same classes.
    """
    loss, accuracy = _judged(model, train, outputs, y)
    return None if accuracy is None else min(map(loss, _SHARPNESS))


def _judged(
    model: ImportedModel, train: TrainGraph, outputs: Array, y: Array
) -> tuple[Callable[[float], float], float | None]:
    """Return the loss of the outputs times a factor, and the accuracy if there is one."""
    if class_count(train):
        return _classes(model, train, outputs, y)
    found, wanted = outputs.astype(np.float64).reshape(len(y), -1), y.astype(np.float64).reshape(len(y), -1)
    if not is_binary(train):
        return lambda factor: float(np.square(factor * found - wanted).mean()), None
    odds = found
    if is_probability(model.graph, model.graph.outputs[0]):
        odds = np.log(np.maximum(found, _LEAST) / np.maximum(1 - found, _LEAST))

    def loss(factor: float) -> float:
        some = factor * odds
        return float((np.maximum(some, 0) - some * wanted + np.log1p(np.exp(-np.abs(some)))).mean())

    return loss, float(((odds > 0) == (wanted > 0.5)).mean())


def _classes(
    model: ImportedModel, train: TrainGraph, outputs: Array, y: Array
) -> tuple[Callable[[float], float], float]:
    axis, classes, labels = class_axis(train.graph.nodes), class_count(train), y.reshape(-1)
    shape = train.of_one(train.graph.outputs[0])
    each = np.moveaxis(outputs.astype(np.float64).reshape(len(outputs), *shape[1:]), axis, -1).reshape(-1, classes)
    counted = ~np.isin(labels, ignored_labels(train))
    each, labels = each[counted], labels[counted]
    if len(labels) == 0:
        return lambda _factor: float("inf"), 0.0
    logp = _log_probabilities(model, each, axis)

    def loss(factor: float) -> float:
        scaled = logp if factor == 1 else _normalised(factor * logp)
        return float(-scaled[np.arange(len(labels)), labels].mean())

    return loss, float((each.argmax(axis=-1) == labels).mean())


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
    return _normalised(each)


def _normalised(each: Array) -> Array:
    """Return the log probabilities of scores."""
    top = each.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # after a diverged training they are NaN, and so is this
        return each - top - np.log(np.exp(each - top).sum(axis=-1, keepdims=True))
