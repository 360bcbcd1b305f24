"""mse and bce in integers: as accurate as their formats allow, where they are used, and odd targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.fixed_point import EXPONENT_START
from tinytrain_compile.ops.int8 import targets as int8_targets
from tinytrain_compile.ops.int8.exponents import first_exponent
from tinytrain_compile.ops.int8.targets import TargetErrorAttrs, TargetLossAttrs
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.report.rows.formats import float_regions

FLOAT = {"mse": "MeanSquaredError", "bce": "SigmoidCrossEntropy"}


class Loss:
    """The integer loss of a network's outputs, fed with outputs and targets of the test's own."""

    def __init__(self, name: str) -> None:
        train = nets.int8_train(nets.cnn(), head="int8", loss=name)
        (self.node,) = nets.nodes_of(train, f"Q{FLOAT[name]}")
        (self.error,) = nets.nodes_of(train, f"Q{FLOAT[name]}Grad")
        self.quant = train.formats[self.node.inputs[0].name]
        self._tables = tuple(train.graph.constants[v.name] for v in self.node.inputs[2:])

    def run(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray, int]:
        """(loss, errors, their exponent) as a first step finds them."""
        operands = (outputs, targets.astype(np.float32), *self._tables)
        (loss,) = OPS[self.node.op].reference(operands, self.node.attrs)
        assert isinstance(self.node.attrs, TargetLossAttrs) and isinstance(self.error.attrs, TargetErrorAttrs)
        p = EXPONENT_START + self.error.attrs.probe
        for _ in range(2):
            state = np.asarray([p, 0], np.int32)
            errors, peak = OPS[self.error.op].reference((np.asarray(0, np.int32), state, *operands), self.error.attrs)
            p = first_exponent(p, int(peak), False)
        return float(loss), errors.astype(np.float64), int(state[0])

    def real(self, outputs: np.ndarray) -> np.ndarray:
        """What stored outputs stand for."""
        return (outputs.astype(np.float64) - self.quant.zero) * self.quant.scale[0]


def float_loss(name: str, y: np.ndarray, t: np.ndarray) -> tuple[float, np.ndarray]:
    """(loss, gradient) in float64; the gradient in units of its share of the mean (mse: times 2 scale / n)."""
    if name == "mse":
        return float(((y - t) ** 2).mean()), y - t
    return float((np.logaddexp(0.0, y) - y * t).mean()), 1 / (1 + np.exp(-y)) - t


def check_accuracy(name: str) -> None:
    """Loss within 1e-4; every error within half of its unit of the gradient in float64."""
    loss, rng = Loss(name), np.random.default_rng(4)
    for trial in range(40):
        outputs = rng.integers(-128, 128, (1, 5)).astype(np.int8)
        targets = rng.integers(0, 2, (1, 5)) if trial % 2 else rng.uniform(0, 1, (1, 5))
        if name == "mse":
            spread = (1e-3, 0.3, 4.0)[trial % 3]
            targets = (loss.real(outputs) + spread * rng.standard_normal((1, 5))).astype(np.float32).astype(np.float64)
        targets = targets.astype(np.float32).astype(np.float64)
        expected, gradient = float_loss(name, loss.real(outputs), targets)
        got, errors, p = loss.run(outputs, targets)
        unit = loss.quant.scale[0] if name == "mse" else 1.0
        assert abs(got - expected) < 1e-4 * max(1.0, expected), (got, expected)
        assert np.abs(errors * 2.0**p * unit - gradient).max() <= (0.5 * 2.0**p + 1e-4) * unit, (p, errors, gradient)
        assert np.abs(errors).max() >= 31 or np.abs(gradient).max() < 2e-3


@pytest.mark.parametrize("name", FLOAT)
def test_loss_and_gradient_are_those_of_float(name: str) -> None:
    check_accuracy(name)


@pytest.mark.parametrize("name", FLOAT)
def test_a_target_that_is_no_number_counts_nothing(name: str) -> None:
    loss = Loss(name)
    outputs = np.asarray([[3, -90, 17, 0, 44]], np.int8)
    some, all_ = np.asarray([[0.25, np.nan, 1.0, np.nan, 0.5]]), np.full((1, 5), np.nan)
    got, errors, _ = loss.run(outputs, some)
    kept = ~np.isnan(some[0])
    expected, _ = float_loss(name, loss.real(outputs)[:, kept], some[:, kept])
    assert got == pytest.approx(expected * 3 / 5, rel=1e-4)
    assert (errors[0, ~kept] == 0).all() and (errors[0, kept] != 0).all()
    assert loss.run(outputs, all_)[0] == 0.0 and not loss.run(outputs, all_)[1].any()


@pytest.mark.parametrize("name", FLOAT)
def test_targets_out_of_reach_have_the_sign_of_their_difference(name: str) -> None:
    loss = Loss(name)
    outputs = np.asarray([[127, -128, 0, 5, -5]], np.int8)
    for far in (np.inf, 1e30, 1e6):
        got, errors, _ = loss.run(outputs, np.full((1, 5), far))
        assert math.isfinite(got) and (errors < 0).all(), far
        assert (loss.run(outputs, np.full((1, 5), -far))[1] > 0).all()


def test_the_first_loss_of_a_network_is_that_of_its_outputs() -> None:
    for name in FLOAT:
        train = nets.int8_train(nets.cnn(), head="int8", loss=name)
        rng = np.random.default_rng(6)
        for _ in range(4):
            x, y = rng.integers(-128, 128, (1, 8, 8, 3)).astype(np.int8), rng.random((1, 5)).astype(np.float32)
            outputs = Trainer(train).infer(x).astype(np.float64)
            expected, _ = float_loss(name, outputs, y.astype(np.float64))
            assert Trainer(train).step(x, y)[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", FLOAT)
def test_an_integer_head_has_an_integer_loss(name: str) -> None:
    def ops_of(train: TrainGraph) -> set[str]:
        return {node.op for node in train.graph.nodes}

    floats = {FLOAT[name], f"{FLOAT[name]}Grad"}
    train = nets.int8_train(nets.cnn(), head="int8", loss=name)
    assert {f"Q{op}" for op in floats} <= ops_of(train) and not ops_of(train) & {*floats, "QuantizeError"}
    assert [node.op for node in nets.float_nodes(train)] == ["Dequantize"], "the output that m_infer gives"
    assert float_regions(train) == []
    assert floats <= ops_of(nets.int8_train(nets.cnn(), loss=name))


def test_squares_add_up_in_64_bits() -> None:
    for count in (1, 2, 7, 8, 1000, 65_535, 65_536, 1 << 20):
        limit = (1 << (int8_targets.difference_bits(count) + int8_targets.REACH_BITS)) - 1
        assert count * limit**2 < 2**63, count
    assert int8_targets.difference_bits(8) >= 16 and int8_targets.difference_bits(1 << 20) >= int8_targets.LEAST_BITS
    assert int8_targets.difference_bits(1 << 23) < int8_targets.LEAST_BITS


# ---- planted faults -------------------------------------------------------------------------------------------------


def half(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments) // 2 * 2 + (1 << 18)


@pytest.mark.parametrize(("name", "what"), [("mse", "fixed"), ("bce", "fixed"), ("bce", "sigmoids")])
def test_a_wrong_conversion_is_noticed(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_targets, what, half(getattr(int8_targets, what)))
    with pytest.raises(AssertionError):
        check_accuracy(name)


def test_a_coarse_logarithm_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_targets.binary_log
    monkeypatch.setattr(int8_targets, "binary_log", lambda values: (real(values) >> 14) << 14)
    with pytest.raises(AssertionError):
        check_accuracy("bce")
