"""How well outputs fit labels, by the loss that a model is trained for."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.files.samples import class_count, ignored_labels, is_binary
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.loss import NllAttrs

_LEAST = 1e-30
_PROBABILITIES = ("Softmax", "Sigmoid")
_PASSED = ("Reshape", "Transpose", "Slice", "SliceView", "Clip", "Quantize", "Dequantize", "QRescale")


def scores(train: TrainGraph, outputs: Array, y: Array) -> dict[str, float]:
    """`loss` (mean over samples, class weights left out) and, for classes or yes and no, `accuracy`.

    outputs: (samples, elements) as a call gives them; y: as it takes them. The loss is infinite where no label counts.
    """
    maker = _ending(train)
    if class_count(train):
        return _classes(train, outputs, y, maker)
    found, wanted = outputs.astype(np.float64).reshape(len(y), -1), y.astype(np.float64).reshape(len(y), -1)
    if is_binary(train):
        odds = found
        if maker in _PROBABILITIES:
            odds = np.log(np.maximum(found, _LEAST) / np.maximum(1 - found, _LEAST))
        loss = np.maximum(odds, 0) - odds * wanted + np.log1p(np.exp(-np.abs(odds)))
        return {"loss": float(loss.mean()), "accuracy": float(((odds > 0) == (wanted > 0.5)).mean())}
    return {"loss": float(np.square(found - wanted).mean())}


def _ending(train: TrainGraph) -> str:
    """The operator that makes the output, behind what only moves, clamps or stores it."""
    makers = train.graph.producers()
    node = makers.get(train.graph.outputs[0].name)
    while node is not None and node.op in _PASSED:
        node = makers.get(node.inputs[0].name)
    return "" if node is None else node.op


def _classes(train: TrainGraph, outputs: Array, y: Array, maker: str) -> dict[str, float]:
    classes, labels = class_count(train), y.reshape(-1)
    shape = train.of_one(train.graph.outputs[0])
    known = [node.attrs.axis for node in train.graph.nodes if isinstance(node.attrs, NllAttrs)]
    axes = [index for index, size in enumerate(shape) if size == classes and index > 0]
    axis = known[0] if known else axes[-1] if axes else len(shape) - 1
    each = np.moveaxis(outputs.astype(np.float64).reshape(len(outputs), *shape[1:]), axis, -1).reshape(-1, classes)
    counted = ~np.isin(labels, ignored_labels(train))
    each, labels = each[counted], labels[counted]
    if len(labels) == 0:
        return {"loss": float("inf"), "accuracy": 0.0}
    if maker == "LogSoftmax":
        logp = each
    elif maker in _PROBABILITIES:
        logp = np.log(np.maximum(each, _LEAST))
    else:
        top = each.max(axis=-1, keepdims=True)
        logp = each - top - np.log(np.exp(each - top).sum(axis=-1, keepdims=True))
    right = each.argmax(axis=-1) == labels
    return {"loss": float(-logp[np.arange(len(labels)), labels].mean()), "accuracy": float(right.mean())}
