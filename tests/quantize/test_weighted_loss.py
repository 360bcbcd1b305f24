"""Class weights and ignored labels in the integer cross entropy: loss and gradient are those of float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.quantize import nets
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.fixed_point import EXPONENT_START
from tinytrain_compile.ops.int8 import weighted_loss as int8_weighted_loss
from tinytrain_compile.ops.int8.exponents import first_exponent
from tinytrain_compile.ops.int8.loss import LOSS_NAMES, QLossErrorAttrs

WEIGHTS: tuple[list[float] | None, ...] = (None, [1.0, 0.25, 3.0], [2e-6, 0.0, 5e-6])
Figures = tuple[float, np.ndarray]


class Loss:
    """The nodes of the loss of nets.pixels, fed with logits and labels of the test's own."""

    def __init__(self, weights: list[float] | None, reduction: str, ignore: int | None) -> None:
        train = nets.int8_train(nets.pixels(weights, reduction, ignore), head="int8")
        self.sums, self.loss = nets.nodes_of(train, "QSoftmaxSum")[0], nets.nodes_of(train, *LOSS_NAMES)[0]
        self.weigh = nets.nodes_of(train, "QLabelWeight")
        (self.error,) = nets.nodes_of(train, "QSoftmaxError", "QWeightedSoftmaxError")
        self.constants = train.graph.constants
        self.quant = train.formats[self.sums.inputs[0].name]
        self.real = np.ones(3) if weights is None else np.asarray(weights, np.float32).astype(np.float64)
        self.mean, self.ignore = reduction == "mean", ignore

    def run(self, logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray, int]:
        """(loss, errors, their exponent) as a first step finds them."""
        table = self.constants[self.sums.inputs[1].name]
        sums = OPS["QSoftmaxSum"].reference((logits, table), self.sums.attrs)
        more: tuple[np.ndarray, ...] = ()
        for node in self.weigh:
            more = OPS[node.op].reference((labels, self.constants[node.inputs[1].name]), node.attrs)
        (loss,) = OPS[self.loss.op].reference((logits, labels, *sums, *more), self.loss.attrs)
        assert isinstance(self.error.attrs, QLossErrorAttrs)
        p = EXPONENT_START + self.error.attrs.probe
        for _ in range(2):
            state = (np.asarray(0, np.int32), np.asarray([p, 0], np.int32))
            operands = (*state, logits, labels, *sums, table, *more)
            errors, peak = OPS[self.error.op].reference(operands, self.error.attrs)
            p = first_exponent(p, int(peak), False)
        return float(loss), errors.astype(np.float64), int(state[1][0])

    def expected(self, logits: np.ndarray, labels: np.ndarray) -> Figures:
        """(loss, gradient) in float64."""
        z = (logits.astype(np.float64) - self.quant.zero) * self.quant.scale[0]
        share = np.exp(z - z.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        hot = np.arange(3) == labels[..., None]
        weight = np.where(labels == self.ignore, 0.0, self.real[labels])
        divisor = (weight.sum() or 1.0) if self.mean else 1.0
        loss = -(weight * np.log(share[hot]).reshape(labels.shape)).sum() / divisor
        return float(loss), (share - hot) * weight[..., None] / divisor


def check_accuracy(weights: list[float] | None, reduction: str, ignore: int | None) -> None:
    """Loss within 1e-4, every error within half of its unit, relative to the largest there can be."""
    loss, rng = Loss(weights, reduction, ignore), np.random.default_rng(8)
    most = loss.real.max() if reduction == "sum" else 1.0
    for _ in range(20):
        logits = rng.integers(-128, 128, (1, 4, 4, 3)).astype(np.int8)
        labels = rng.integers(0, 3, (1, 4, 4)).astype(np.int32)
        got, errors, p = loss.run(logits, labels)
        expected, gradient = loss.expected(logits, labels)
        assert abs(got - expected) < 1e-4 * max(most, expected), (got, expected)
        unit = most / 16 if not loss.weigh and loss.mean else most
        assert np.abs(errors * 2.0**p * unit - gradient).max() <= (0.5 * 2.0**p + 1e-5) * unit, (p, errors)
        assert np.abs(errors).max() >= 31


@pytest.mark.parametrize("ignore", [None, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_loss_and_gradient_are_those_of_float(weights: list[float] | None, reduction: str, ignore: int | None) -> None:
    check_accuracy(weights, reduction, ignore)


def test_labels_that_all_count_nothing_are_no_step() -> None:
    loss = Loss([1.0, 2.0, 3.0], "mean", 1)
    got, errors, _ = loss.run(np.zeros((1, 4, 4, 3), np.int8), np.ones((1, 4, 4), np.int32))
    assert got == 0.0 and not errors.any()
    some = np.ones((1, 4, 4), np.int32)
    some[0, 2, 1], some[0, 0, 0] = 0, 7
    got, errors, _ = loss.run(np.zeros((1, 4, 4, 3), np.int8), some)
    assert got == pytest.approx(np.log(3.0), abs=1e-4)
    assert {tuple(place) for place in np.argwhere(errors.any(-1))} == {(0, 2, 1)}, "a label that is no class counts 0"


def test_a_plain_mean_needs_no_weights() -> None:
    assert not Loss(None, "mean", None).weigh and not Loss(None, "sum", 1).weigh
    assert Loss(None, "mean", 1).weigh and Loss([1.0, 1.0, 1.0], "sum", None).weigh


# ---- planted faults -------------------------------------------------------------------------------------------------


def test_a_wrong_weight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_weighted_loss.class_weights
    monkeypatch.setattr(int8_weighted_loss, "class_weights", lambda weights, groups: real(np.sqrt(weights), groups))
    with pytest.raises(AssertionError):
        check_accuracy([1.0, 0.25, 3.0], "mean", None)


def test_a_divisor_that_counts_all_labels_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = OPS["QLabelWeight"]

    def wrong(arrays: tuple[np.ndarray, ...], attrs: int8_weighted_loss.LabelWeightAttrs) -> tuple[np.ndarray, ...]:
        every = rule.reference(arrays, replace(attrs, ignore_index=None))
        return rule.reference(arrays, attrs)[0], every[1]

    monkeypatch.setitem(OPS, "QLabelWeight", replace(rule, reference=wrong))
    with pytest.raises(AssertionError):
        check_accuracy(None, "mean", 1)
