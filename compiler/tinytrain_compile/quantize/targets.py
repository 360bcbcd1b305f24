"""mse and bce of int8 outputs without float32: the losses of float32 targets, and their gradients."""

from __future__ import annotations

import math

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.int8 import targets as int8_targets
from tinytrain_compile.ops.int8.loss import DISTANCE_BITS, LEAST_LOSS_BITS, LOG_BITS
from tinytrain_compile.ops.names import operand, operands, result
from tinytrain_compile.quantize.forms import Act
from tinytrain_compile.quantize.state import Rewriter

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
        """Whether this is the loss of the step, of labels as they come, or its gradient, summed over the samples."""
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
        """In fixed point, for so many that are added up."""
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
    """Most fraction bits of a term of bce, at most LOG_BITS."""
    largest = _LARGEST_WEIGHT * 255.0 * outputs.quant.scale[0] + 1.0
    return min(LOG_BITS, math.floor(math.log2(fx.INT32_MAX / largest)))
