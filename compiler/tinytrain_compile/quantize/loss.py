"""Losses of int8 outputs without float32: softmax cross entropy of labels, mse and bce of float32 targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.int8 import loss as int8_loss
from tinytrain_compile.ops.int8 import targets as int8_targets
from tinytrain_compile.ops.int8 import weighted_loss as int8_weighted_loss
from tinytrain_compile.ops.int8.loss import DISTANCE_BITS, LEAST_LOSS_BITS, LOG_BITS
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.names import attrs_of, operand, operands, result
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.quantize.forms import Act, Deferred, Form
from tinytrain_compile.quantize.state import Rewriter


@dataclass(frozen=True, eq=False)
class _Softmax:
    """int8 logits, their labels, and the values that loss and error share.

    unit: real value of an error of 1, before any exponent; share: loss of a term of 1. weights: (weight of each label,
    divisor), empty if every label counts the same.
    """

    logits: Act
    nll: NllAttrs
    label: Value
    largest: Value
    total: Value
    table: Value
    bits: int
    unit: float
    share: float
    weights: tuple[Value, ...] = ()


class SoftmaxLoss:
    """Rewriter of the four nodes of a cross entropy whose logits are int8: the first node decides for all."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._r = rewriter

    def rewrite(self, node: Node) -> Form | None:
        """Emit the sums of a LogSoftmax that an integer loss reads; plan that loss and its gradient."""
        logits, attrs, loss = self._r.int8(operand(node, "x")), node.attrs, self._loss_of(node)
        if loss is None or logits is None or not isinstance(attrs, AxisAttrs):
            return None
        nll, label = attrs_of(loss, NllAttrs), operand(loss, "labels")
        groups = label.elements
        classes, scale = logits.value.shape[attrs.axis], logits.quant.scale[0]
        if int8_loss.loss_fraction_bits(scale, classes, groups) < int8_loss.LEAST_LOSS_BITS:
            return None
        bits = int8_loss.table_bits(classes)
        table = self._r.table(f"{node.name}.exponentials", int8_loss.exponentials(scale, bits))
        sums = int8_loss.SoftmaxSumAttrs(attrs.axis, bits)
        largest, total = self._r.emit_all("QSoftmaxSum", (logits.value, table), sums, node)
        self._r.forms[largest.name] = Act(largest, logits.quant)
        unit, share = (self._factor(nll) / groups, 1.0 / groups) if nll.reduction == "mean" else (1.0, 1.0)
        known = _Softmax(logits, nll, label, largest, total, table, bits, unit, share)
        if _is_weighted(loss):
            known = self._weighted(known, loss, classes)
        self._r.planned[loss.name] = partial(self._value, known)
        for gradient in self._gradients_of(node):
            self._r.planned[gradient.name] = partial(self._error, known)
            self._r.planned[self._r.producers[operand(gradient, "dy").name].name] = Deferred
        return Deferred(node)

    def _gradients_of(self, node: Node) -> list[Node]:
        """Return the readers of log probabilities other than their loss."""
        return [n for n in self._r.readers.get(node.outputs[0].name, []) if not isinstance(n.attrs, NllAttrs)]

    def _weighted(self, known: _Softmax, loss: Node, classes: int) -> _Softmax:
        """Emit the weights of labels and add them to `known`; for a sum, the unit includes the largest class weight."""
        groups, real = self._groups_of_one(known.label), self._class_weights(loss, classes)
        mean = known.nll.reduction == "mean"
        table = self._r.table(f"{loss.name}.weights", int8_weighted_loss.class_weights(real, groups))
        attrs = int8_weighted_loss.LabelWeightAttrs(
            known.nll.ignore_index, 0 if mean else 1 << int8_weighted_loss.weight_bits(groups)
        )
        weights = self._r.emit_all("QLabelWeight", (known.label, table), attrs, loss)
        unit = 1.0 if mean else float(real.max())
        return replace(known, weights=weights, unit=unit, share=unit)

    def _groups_of_one(self, label: Value) -> int:
        """Count the labels of one sample: a step's sum must not depend on its number of samples."""
        return label.elements // self._r.train.micro_batch

    def _factor(self, nll: NllAttrs) -> int:
        """Return the factor of the gradient: that of a mean is taken as the sum over the samples of a step."""
        return self._r.train.micro_batch if nll.reduction == "mean" else 1

    def _class_weights(self, loss: Node, classes: int) -> Array:
        weights = operands(loss).get("weights")
        return np.ones(classes, np.float32) if weights is None else self._r.constants[weights.name]

    def _has_weights(self, loss: Node, classes: int) -> bool:
        """Tell whether the labels' weights have integer forms."""
        _, label, *weights = loss.inputs
        if any(value.name not in self._r.constants for value in weights):
            return False
        real = self._class_weights(loss, classes)
        fits = self._groups_of_one(label) * classes <= int8_weighted_loss.MOST_RATIOS
        return fits and bool(np.isfinite(real).all() and (real >= 0).all() and (real > 0).any())

    def _loss_of(self, node: Node) -> Node | None:
        """Return the loss that alone reads these log probabilities, if it can be computed in integers."""
        losses = [n for n in self._r.readers.get(node.outputs[0].name, []) if isinstance(n.attrs, NllAttrs)]
        if len(losses) != 1 or node.op != "LogSoftmax" or node.outputs[0] in self._r.train.graph.outputs:
            return None
        loss, nll = losses[0], attrs_of(losses[0], NllAttrs)
        if nll.reduction == "none" or result(loss, "loss") != self._r.train.loss:
            return None
        if _is_weighted(loss) and not self._has_weights(loss, node.outputs[0].shape[nll.axis]):
            return None
        return loss if all(self._is_of(n, loss) for n in self._gradients_of(node)) else None

    def _is_of(self, gradient: Node, loss: Node) -> bool:
        """Tell whether a gradient of log probabilities is that of the loss: the sum over the samples of a step."""
        dy = operands(gradient).get("dy")
        source = None if dy is None else self._r.producers.get(dy.name)
        if source is None or not isinstance(source.attrs, NllGradAttrs):
            return False
        (dloss, *told), (_, *known) = source.inputs, loss.inputs
        seed, factor = self._r.constants.get(dloss.name), self._factor(attrs_of(loss, NllAttrs))
        alone = len(self._r.readers[source.outputs[0].name]) == 1
        return told == known and alone and seed is not None and float(seed) == factor

    def _value(self, known: _Softmax, node: Node) -> Form:
        scale, shape = known.logits.quant.scale[0], known.logits.value.shape
        bits = int8_loss.loss_fraction_bits(scale, shape[known.nll.axis], known.label.elements)
        attrs = int8_loss.QLossAttrs(
            known.nll.axis,
            known.nll.reduction,
            known.nll.ignore_index,
            known.bits,
            bits,
            fx.split_factor(math.ldexp(scale, bits - int8_loss.DISTANCE_BITS)),
            fx.split_factor(math.ldexp(known.share, -bits)),
        )
        inputs = (known.logits.value, known.label, known.largest, known.total, *known.weights)
        return self._r.emit("QWeightedSoftmaxLoss" if known.weights else "QSoftmaxLoss", inputs, attrs, node)

    def _error(self, known: _Softmax, node: Node) -> Form:
        nll = known.nll
        probe = int8_weighted_loss.weight_probe(known.bits) if known.weights else int8_loss.probe(known.bits)
        attrs = int8_loss.QLossErrorAttrs(nll.axis, nll.reduction, nll.ignore_index, known.bits, probe)
        inputs = (known.logits.value, known.label, known.largest, known.total, known.table, *known.weights)
        op = "QWeightedSoftmaxError" if known.weights else "QSoftmaxError"
        return self._r.emit_error(op, (), inputs, attrs, node, known.unit)


def _is_weighted(loss: Node) -> bool:
    """Tell whether the loss has a divisor that depends on labels, or labels with different weights."""
    nll = attrs_of(loss, NllAttrs)
    counted = nll.reduction == "mean" and nll.ignore_index is not None and operand(loss, "labels").elements > 1
    return counted or "weights" in operands(loss)


# ---- losses of targets ----------------------------------------------------------------------------------------------


_LARGEST_WEIGHT = 5.0
"""Largest factor of a logit's distance from 0 in bce: 1 minus a target of -4."""


class TargetLoss:
    """Rewriter of the two nodes of an mse or bce whose outputs are int8."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._r = rewriter

    def rewrite(self, node: Node) -> Form | None:
        """Emit the integer form of a loss or of its gradient, if it has one."""
        outputs = self._r.int8(operand(node, "y"))
        if outputs is None or not self._is_final(node):
            return None
        of_labels, gradient = has_trait(node.op, "binary_loss"), "dloss" in operands(node)
        # an error is not a sum: it must not depend on the other samples
        count = outputs.value.elements // (self._r.train.micro_batch if gradient else 1)
        known = _probabilities(outputs) if of_labels else _differences(outputs, count)
        if known is None:
            return None
        inputs = (outputs.value, operand(node, "target"))
        if of_labels:
            inputs += (self._r.table("sigmoids", int8_targets.sigmoids(outputs.quant.scale[0])),)
        fields = known.zero, known.bits, known.target, known.limit
        if not gradient:
            terms = _bce_terms(outputs) if of_labels else _mse_terms(outputs, known.bits)
            return self._r.emit(f"Q{node.op}", inputs, int8_targets.TargetLossAttrs(*fields, **terms), node)
        unit = (1.0 if of_labels else 2.0 * outputs.quant.scale[0]) / count
        attrs = int8_targets.TargetErrorAttrs(*fields, int8_targets.probe(known.bits))
        return self._r.emit_error(f"Q{node.op}", (), inputs, attrs, node, unit)

    def _is_final(self, node: Node) -> bool:
        """Tell whether this is the loss of the step, of unchanged labels, or its gradient, summed over the samples."""
        if operand(node, "target") != self._r.train.label:
            return False
        if "dloss" not in operands(node):
            return result(node, "loss") == self._r.train.loss
        seed = self._r.constants.get(operand(node, "dloss").name)
        return seed is not None and float(seed) == self._r.train.micro_batch


def _differences(outputs: Act, count: int) -> int8_targets.TargetAttrs | None:
    """Return attributes for differences in fixed point, `count` of which are added up; None if that is impossible."""
    bits = int8_targets.difference_bits(count)
    if bits < int8_targets.LEAST_BITS:
        return None
    target = fx.split_factor(math.ldexp(1.0 / outputs.quant.scale[0], bits))
    limit = (1 << (bits + int8_targets.REACH_BITS)) - 1
    return int8_targets.TargetAttrs(outputs.quant.zero, bits, target, limit)


def _mse_terms(outputs: Act, bits: int) -> dict[str, Any]:
    """Return attributes of the sum: of squares."""
    return {"total": fx.split_factor(math.ldexp(outputs.quant.scale[0] ** 2, -2 * bits) / outputs.value.elements)}


def _probabilities(outputs: Act) -> int8_targets.TargetAttrs | None:
    """Return attributes for sigmoids in fixed point; None if the terms of their loss are too large."""
    bits = int8_targets.SIGMOID_BITS
    if _loss_bits(outputs) < LEAST_LOSS_BITS:
        return None
    return int8_targets.TargetAttrs(outputs.quant.zero, bits, fx.split_factor(2.0**bits))


def _bce_terms(outputs: Act) -> dict[str, Any]:
    """Return attributes of the sum: of a logit's distance from 0, and of a logarithm."""
    bits = _loss_bits(outputs)
    total = fx.split_factor(math.ldexp(1.0 / outputs.value.elements, -bits))
    distance = fx.split_factor(math.ldexp(outputs.quant.scale[0], bits - DISTANCE_BITS))
    return {"total": total, "distance": distance, "loss_bits": bits}


def _loss_bits(outputs: Act) -> int:
    """Return the most fraction bits of a term of bce, at most LOG_BITS."""
    largest = _LARGEST_WEIGHT * 255.0 * outputs.quant.scale[0] + 1.0
    return min(LOG_BITS, math.floor(math.log2(fx.INT32_MAX / largest)))
