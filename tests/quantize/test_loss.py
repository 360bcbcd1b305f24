"""The integer cross entropy: as accurate as its formats allow, used where it can be, and free of float instructions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.marks import needs_qemu
from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.fixed_point import EXPONENT_START, split_factor
from tinytrain_compile.ops.int8 import loss as int8_loss
from tinytrain_compile.ops.int8.exponents import first_exponent
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import compile_project
from tinytrain_compile.verify.symbols import read_object
from tinytrain_compile.verify.tools import find_tools

LOSS = {"LogSoftmax", "NegativeLogLikelihood", "NegativeLogLikelihoodGrad", "LogSoftmaxGrad"}


def integer_loss(logits: np.ndarray, label: int, scale: float) -> tuple[float, np.ndarray, int]:
    """(loss, errors, their exponent) of one group as a first step finds them."""
    classes, labels = logits.size, np.asarray([label], np.int32)
    bits, x = int8_loss.table_bits(classes), logits[None]
    table = int8_loss.exponentials(scale, bits)
    sums = OPS["QSoftmaxSum"].reference((x, table), int8_loss.SoftmaxSumAttrs(1, bits))
    loss_bits = int8_loss.loss_fraction_bits(scale, classes, 1)
    factors = (split_factor(math.ldexp(scale, loss_bits - int8_loss.DISTANCE_BITS)), split_factor(2.0**-loss_bits))
    attrs = int8_loss.QLossAttrs(1, "mean", None, bits, loss_bits, *factors)
    (loss,) = OPS["QSoftmaxLoss"].reference((x, labels, *sums), attrs)
    error, zero = int8_loss.QLossErrorAttrs(1, "mean", None, bits), np.asarray(0, np.int32)
    p = EXPONENT_START + int8_loss.probe(bits)
    for _ in range(2):
        state = np.asarray([p, 0], np.int32)
        errors, peak = OPS["QSoftmaxError"].reference((zero, state, x, labels, *sums, table), error)
        p = first_exponent(p, int(peak), False)
    return float(loss), errors[0].astype(np.float64), int(state[0])


def check_accuracy(classes: int, scale: float) -> None:
    """Loss within 1e-4; every error within half of its unit of the gradient in float64 (and 1e-5 for the table)."""
    rng = np.random.default_rng([classes, int(scale * 1e4)])
    for trial in range(20):
        logits = rng.integers(-128, 128, classes).astype(np.int8)
        if trial % 2:
            logits = (logits // 16).astype(np.int8)
        label = int(rng.integers(0, classes)) if trial % 3 else int(logits.argmax())
        real = logits * scale - (logits * scale).max()
        expected = np.exp(real) / np.exp(real).sum()
        expected_loss = math.log(np.exp(real).sum()) - real[label]
        expected[label] = -(np.exp(real).sum() - np.exp(real[label])) / np.exp(real).sum()
        loss, errors, p = integer_loss(logits, label, scale)
        assert abs(loss - expected_loss) < 1e-4, (loss, expected_loss)
        assert np.abs(errors * 2.0**p - expected).max() <= 0.5 * 2.0**p + 1e-5, (p, errors, expected)
        assert np.abs(errors).max() >= 31 or np.abs(expected).max() < 1e-5


@pytest.mark.parametrize("scale", [0.01, 0.06, 0.3, 2.0])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_loss_and_gradient_are_those_of_float(classes: int, scale: float) -> None:
    check_accuracy(classes, scale)


def test_a_table_of_a_thousand_classes_fits() -> None:
    for classes in (2, 3, 10, 1000, 1024, 100_000):
        bits = int8_loss.table_bits(classes)
        assert classes << bits < 2**31 <= classes << (bits + 1)


# ---- where it is used -----------------------------------------------------------------------------------------------


def test_only_the_output_is_converted() -> None:
    train = nets.int8_train(nets.cnn(), head="int8")
    assert [node.op for node in nets.float_nodes(train)] == ["Dequantize"]
    assert [n.op for n in train.graph.nodes if n.op.startswith("QSoftmax")] == [
        "QSoftmaxSum",
        "QSoftmaxLoss",
        "QSoftmaxError",
    ]


def test_the_loss_agrees_with_the_float_loss() -> None:
    """The first loss of the whole network, before anything is trained."""
    from tinytrain_compile.data.samples import random_samples
    from tinytrain_compile.reference.trainer import Trainer

    train = nets.int8_train(nets.cnn(), head="int8")
    samples = random_samples(train, 6, 0)
    for x, y in zip(samples.x, samples.y, strict=True):
        logits = Trainer(train).infer(x.reshape(train.graph.inputs[0].shape)).astype(np.float64).ravel()
        expected = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[int(y.ravel()[0])]
        assert Trainer(train).step(x[None], y[None])[0] == pytest.approx(expected, abs=1e-4)


def ops_of(train: TrainGraph) -> set[str]:
    return {node.op for node in train.graph.nodes}


def test_what_stays_float() -> None:
    """A float head, weights below 0."""
    assert ops_of(nets.int8_train(nets.cnn())) >= LOSS
    assert ops_of(nets.int8_train(nets.pixels([1.0, -2.0, 0.5]), head="int8")) >= LOSS
    own = ops_of(nets.int8_train(models.with_loss(nets.cnn()), head="int8"))
    assert "QSoftmaxError" in own and not own & LOSS


# ---- no float instructions ------------------------------------------------------------------------------------------


def float_calls(train: TrainGraph, folder: Path) -> set[str]:
    """Soft-float routines that the generated objects for a Cortex-M0+ call."""
    context = KernelContext(InstructionSet(fpu=False))
    kernels = lower_nodes(train.graph.nodes, LowerOptions("net", context))
    made, target = chain.project(train, "cortex-m0plus", kernels), load_target("cortex-m0plus")
    objects = compile_project(made.bundle, target, "qemu", find_tools(target), folder).model_objects
    names = {name for path in objects for name in read_object(path).undefined}
    soft = ("__aeabi_f", "__aeabi_cf", "__aeabi_i2f", "__aeabi_ui2f", "__aeabi_l2f", "__aeabi_ul2f", "__aeabi_d")
    return {name for name in names if name.startswith(soft)}


@needs_qemu
@pytest.mark.parametrize(
    ("pool", "window", "options"),
    [
        ("AveragePool", nets.APART, {}),
        ("AveragePool", nets.APART, {"batch": 4}),
        ("MaxPool", nets.OVERLAPPING, {}),
        ("AveragePool", nets.APART, {"batch": 4, "optimizer": "momentum"}),
        ("AveragePool", nets.APART, {"loss": "mse"}),
        ("AveragePool", nets.APART, {"loss": "bce", "batch": 4}),
    ],
)
def test_an_integer_head_needs_no_floats(pool: str, window: str, options: dict[str, Any], tmp_path: Path) -> None:
    train = nets.int8_train(nets.cnn(pool=pool, window=window), head="int8", learning_rate=0.05, **options)
    assert float_calls(train, tmp_path) == set()


@needs_qemu
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weighted_labels_need_no_floats(reduction: str, tmp_path: Path) -> None:
    train = nets.int8_train(nets.pixels([1.0, 0.25, 3.0], reduction, ignore=1), head="int8", learning_rate=0.05)
    assert float_calls(train, tmp_path) == set()


@needs_qemu
def test_a_float_head_is_noticed(tmp_path: Path) -> None:
    assert {"__aeabi_fmul", "__aeabi_fadd"} <= float_calls(nets.int8_train(nets.cnn()), tmp_path)


# ---- planted faults -------------------------------------------------------------------------------------------------


def _planted(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., object]) -> None:
    monkeypatch.setattr(int8_loss, name, wrong)
    with pytest.raises(AssertionError):
        check_accuracy(10, 0.06)


def test_a_table_of_another_scale_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_loss.exponentials
    _planted(monkeypatch, "exponentials", lambda scale, bits: real(scale * 1.02, bits))


def test_a_coarse_logarithm_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_loss.binary_log
    _planted(monkeypatch, "binary_log", lambda values: (real(values) >> 14) << 14)


def test_a_coarse_inverse_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_loss.ratio
    _planted(monkeypatch, "ratio", lambda a, b: (real(a, b) >> 24) << 24)


def test_a_forgotten_label_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = OPS["QSoftmaxError"]
    no_label = lambda a, attrs: rule.reference((*a[:3], np.where(a[3] == 0, 1, 0), *a[4:]), attrs)  # noqa: E731
    monkeypatch.setitem(OPS, "QSoftmaxError", replace(rule, reference=no_label))
    with pytest.raises(AssertionError):
        check_accuracy(10, 0.06)
