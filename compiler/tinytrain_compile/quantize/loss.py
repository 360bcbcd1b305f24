"""Losses of int8 outputs without float32: softmax cross entropy of labels, mse and bce of float32 targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.int8 import loss as int8_loss
from tinytrain_compile.ops.int8 import targets as int8_targets
from tinytrain_compile.ops.int8 import weighted_loss as int8_weighted_loss
from tinytrain_compile.ops.int8.loss import DISTANCE_BITS, LEAST_LOSS_BITS, LOG_BITS
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.names import operand, operands, result
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.quantize.forms import Act, Deferred, Err
from tinytrain_compile.quantize.state import Rewriter


@dataclass(frozen=True, eq=False)
class _Softmax:
    """int8 logits, their labels, and the values that loss and error share.

    unit: real value of an error of 1, before any exponent; share: of the loss, that of a term of 1.
    weights: (weight of each label, divisor), empty where every label counts the same.
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


class IntegerLoss:
    """Rewrites the four nodes of a cross entropy whose logits are int8."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._r = rewriter
        self._known: dict[str, _Softmax] = {}
        """By the float name of the log probabilities."""
        self._rules = {
            "LogSoftmax": self._sums,
            "NegativeLogLikelihood": self._value,
            "NegativeLogLikelihoodGrad": self._wait,
            "LogSoftmaxGrad": self._error,
        }

    def rewrite(self, node: Node) -> bool:
        """Emit the integer form of a node of the loss, if it has one."""
        rule = self._rules.get(node.op)
        return rule is not None and rule(node)

    def _sums(self, node: Node) -> bool:
        logits, attrs = self._r.forms.get(operand(node, "x").name), node.attrs
        loss = self._loss_of(node)
        if loss is None or not isinstance(logits, Act) or not isinstance(attrs, AxisAttrs):
            return False
        nll, label = loss.attrs, operand(loss, "labels")
        groups = label.elements
        assert isinstance(nll, NllAttrs)
        classes, scale = logits.value.shape[attrs.axis], logits.quant.scale[0]
        if int8_loss.loss_fraction_bits(scale, classes, groups) < int8_loss.LEAST_LOSS_BITS:
            return False
        bits = int8_loss.table_bits(classes)
        table = self._r.table(f"{node.name}.exponentials", int8_loss.exponentials(scale, bits))
        sums = int8_loss.SoftmaxSumAttrs(attrs.axis, bits)
        largest, total = self._r.emit("QSoftmaxSum", (logits.value, table), sums, node)
        self._r.forms[largest.name] = Act(largest, logits.quant)
        unit, share = (self._factor(nll) / groups, 1.0 / groups) if nll.reduction == "mean" else (1.0, 1.0)
        known = _Softmax(logits, nll, label, largest, total, table, bits, unit, share)
        if _is_weighted(loss):
            known = self._weighted(known, loss, classes)
        self._known[node.outputs[0].name] = known
        self._r.forms[node.outputs[0].name] = Deferred(node)
        return True

    def _weighted(self, known: _Softmax, loss: Node, classes: int) -> _Softmax:
        """Emit it with the weights of labels; for a sum, the largest class weight goes into the unit."""
        groups, real = self._groups_of_one(known.label), self._class_weights(loss, classes)
        mean = known.nll.reduction == "mean"
        table = self._r.table(f"{loss.name}.weights", int8_weighted_loss.class_weights(real, groups))
        attrs = int8_weighted_loss.LabelWeightAttrs(
            known.nll.ignore_index, 0 if mean else 1 << int8_weighted_loss.weight_bits(groups)
        )
        weights = self._r.emit("QLabelWeight", (known.label, table), attrs, loss)
        unit = 1.0 if mean else float(real.max())
        return replace(known, weights=weights, unit=unit, share=unit)

    def _groups_of_one(self, label: Value) -> int:
        """Return labels of one sample: what a step adds up must not depend on how many samples it takes."""
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
        readers = self._r.readers.get(node.outputs[0].name, [])
        losses = [n for n in readers if n.op == "NegativeLogLikelihood"]
        others = [n for n in readers if n.op not in ("NegativeLogLikelihood", "LogSoftmaxGrad")]
        if len(losses) != 1 or others or node.outputs[0] in self._r.train.graph.outputs:
            return None
        loss, nll = losses[0], losses[0].attrs
        assert isinstance(nll, NllAttrs)
        gradients = [n for n in readers if n.op == "LogSoftmaxGrad"]
        if nll.reduction == "none" or result(loss, "loss") != self._r.train.loss:
            return None
        if _is_weighted(loss) and not self._has_weights(loss, node.outputs[0].shape[nll.axis]):
            return None
        return loss if all(self._is_of(n, loss) for n in gradients) else None

    def _is_of(self, gradient: Node, loss: Node) -> bool:
        """Tell whether a gradient of log probabilities is that of the loss: the sum over the samples of a step."""
        source = self._r.producers.get(operand(gradient, "dy").name)
        if source is None or source.op != "NegativeLogLikelihoodGrad":
            return False
        (dloss, *told), (_, *known) = source.inputs, loss.inputs
        if told != known:
            return False
        nll, seed = loss.attrs, self._r.constants.get(dloss.name)
        assert isinstance(nll, NllAttrs)
        return (
            seed is not None and float(seed) == self._factor(nll) and len(self._r.readers[source.outputs[0].name]) == 1
        )

    def _value(self, node: Node) -> bool:
        known = self._known.get(operand(node, "logp").name)
        if known is None:
            return False
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
        (loss,) = self._r.emit("QWeightedSoftmaxLoss" if known.weights else "QSoftmaxLoss", inputs, attrs, node)
        self._r.forms[node.outputs[0].name] = loss
        return True

    def _wait(self, node: Node) -> bool:
        reader = self._r.only_reader(node.outputs[0])
        if reader is None or reader.op != "LogSoftmaxGrad" or operand(reader, "y").name not in self._known:
            return False
        self._r.forms[node.outputs[0].name] = Deferred(node)
        return True

    def _error(self, node: Node) -> bool:
        known = self._known.get(operand(node, "y").name)
        if known is None:
            return False
        nll = known.nll
        probe = int8_weighted_loss.weight_probe(known.bits) if known.weights else int8_loss.probe(known.bits)
        attrs = int8_loss.QLossErrorAttrs(nll.axis, nll.reduction, nll.ignore_index, known.bits, probe)
        inputs = (known.logits.value, known.label, known.largest, known.total, known.table, *known.weights)
        op = "QWeightedSoftmaxError" if known.weights else "QSoftmaxError"
        error: Err = self._r.emit_error(op, (), inputs, attrs, node, known.unit)
        self._r.forms[node.outputs[0].name] = error
        return True


def _is_weighted(loss: Node) -> bool:
    """Tell whether labels decide what the loss is divided by, or count differently."""
    nll = loss.attrs
    assert isinstance(nll, NllAttrs)
    counted = nll.reduction == "mean" and nll.ignore_index is not None and operand(loss, "labels").elements > 1
    return counted or "weights" in operands(loss)


# ---- losses of targets ----------------------------------------------------------------------------------------------


_LARGEST_WEIGHT = 5.0
"""Of a logit's distance from 0 in bce: 1 less a target of -4."""


class TargetLoss:
    """Rewrites the two nodes of an mse or bce whose outputs are int8."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._r = rewriter
        self._rules = {
            "MeanSquaredError": self._mse,
            "SigmoidCrossEntropy": self._bce,
            "MeanSquaredErrorGrad": self._mse_error,
            "SigmoidCrossEntropyGrad": self._bce_error,
        }

    def rewrite(self, node: Node) -> bool:
        """Emit the integer form of a loss or of its gradient, if it has one."""
        rule = self._rules.get(node.op)
        if rule is None or not self._is_final(node):
            return False
        outputs = self._r.forms.get(operand(node, "y").name)
        return isinstance(outputs, Act) and rule(node, outputs)

    def _is_final(self, node: Node) -> bool:
        """Tell whether this is the loss of the step, of labels as they come, or its gradient, summed over the
        samples."""
        if operand(node, "target") != self._r.train.label:
            return False
        if "dloss" not in operands(node):
            return result(node, "loss") == self._r.train.loss
        seed = self._r.constants.get(operand(node, "dloss").name)
        return seed is not None and float(seed) == self._r.train.micro_batch

    # ---- mse ----------------------------------------------------------------------------------------------------

    def _count_of_one(self, outputs: Act) -> int:
        return outputs.value.elements // self._r.train.micro_batch

    def _differences(self, outputs: Act, count: int) -> int8_targets.TargetAttrs | None:
        """Compute in fixed point, for so many that are added up."""
        bits = int8_targets.difference_bits(count)
        if bits < int8_targets.LEAST_BITS:
            return None
        target = fx.split_factor(math.ldexp(1.0 / outputs.quant.scale[0], bits))
        limit = (1 << (bits + int8_targets.REACH_BITS)) - 1
        return int8_targets.TargetAttrs(outputs.quant.zero, bits, target, limit)

    def _mse(self, node: Node, outputs: Act) -> bool:
        known = self._differences(outputs, outputs.value.elements)
        if known is None:
            return False
        share = math.ldexp(outputs.quant.scale[0] ** 2, -2 * known.bits) / outputs.value.elements
        return self._loss(node, outputs, int8_targets.TargetLossAttrs(*_fields(known), fx.split_factor(share)))

    def _mse_error(self, node: Node, outputs: Act) -> bool:
        count = self._count_of_one(outputs)
        known = self._differences(outputs, count)  # an error is no sum: it must not depend on the other samples
        unit = 2.0 * outputs.quant.scale[0] / count
        return known is not None and self._error(node, outputs, known, unit)

    # ---- bce ----------------------------------------------------------------------------------------------------

    def _probabilities(self, outputs: Act) -> int8_targets.TargetAttrs | None:
        bits = int8_targets.SIGMOID_BITS
        if _loss_bits(outputs) < LEAST_LOSS_BITS:
            return None
        return int8_targets.TargetAttrs(outputs.quant.zero, bits, fx.split_factor(2.0**bits))

    def _bce(self, node: Node, outputs: Act) -> bool:
        known = self._probabilities(outputs)
        if known is None:
            return False
        bits, scale = _loss_bits(outputs), outputs.quant.scale[0]
        distance = fx.split_factor(math.ldexp(scale, bits - DISTANCE_BITS))
        total = fx.split_factor(math.ldexp(1.0 / outputs.value.elements, -bits))
        attrs = int8_targets.TargetLossAttrs(*_fields(known), total, distance, bits)
        return self._loss(node, outputs, attrs)

    def _bce_error(self, node: Node, outputs: Act) -> bool:
        known = self._probabilities(outputs)
        return known is not None and self._error(node, outputs, known, 1.0 / self._count_of_one(outputs))

    # ---- both ---------------------------------------------------------------------------------------------------

    def _operands(self, node: Node, outputs: Act) -> tuple[Value, ...]:
        pair = (outputs.value, operand(node, "target"))
        if not has_trait(node.op, "binary_loss"):
            return pair
        return (*pair, self._r.table("sigmoids", int8_targets.sigmoids(outputs.quant.scale[0])))

    def _loss(self, node: Node, outputs: Act, attrs: int8_targets.TargetLossAttrs) -> bool:
        (loss,) = self._r.emit(f"Q{node.op}", self._operands(node, outputs), attrs, node)
        self._r.forms[node.outputs[0].name] = loss
        return True

    def _error(self, node: Node, outputs: Act, known: int8_targets.TargetAttrs, unit: float) -> bool:
        attrs = int8_targets.TargetErrorAttrs(*_fields(known), int8_targets.probe(known.bits))
        operands = self._operands(node, outputs)
        self._r.forms[node.outputs[0].name] = self._r.emit_error(f"Q{node.op}", (), operands, attrs, node, unit)
        return True


def _fields(known: int8_targets.TargetAttrs) -> tuple[int, int, tuple[int, int], int]:
    return known.zero, known.bits, known.target, known.limit


def _loss_bits(outputs: Act) -> int:
    """Return most fraction bits of a term of bce, at most LOG_BITS."""
    largest = _LARGEST_WEIGHT * 255.0 * outputs.quant.scale[0] + 1.0
    return min(LOG_BITS, math.floor(math.log2(fx.INT32_MAX / largest)))
