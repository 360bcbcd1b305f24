"""Momentum of int8 weights: the stored velocity follows v = momentum v + gradient, without bias, and moves weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.quantize import nets
from tests.quantize.gradients import per_channel, real_inputs, scales_of
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import Velocity
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.int8 import update as int8_update
from tinytrain_compile.ops.int8.exponents import ExponentAttrs
from tinytrain_compile.ops.int8.steps import new_exponent, split_rate
from tinytrain_compile.ops.int8.update import QMomentumAttrs
from tinytrain_compile.quantize import WeightStore
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.report.rows.formats import quant_tensors

COUNT = 20_000
MOMENTUM = 0.875
STORES: tuple[WeightStore, ...] = ("sr8", "q8.8")


def run(op: str, *operands: Any, attrs: Any = None) -> tuple[np.ndarray, ...]:
    return OPS[op].reference(tuple(np.asarray(a) for a in operands), attrs)


def follow(sums: list[int], samples: list[int], p: int = 0, shift: int = 0) -> tuple[list[float], list[np.ndarray]]:
    """(mean total, velocities as real numbers) after every step, with the same sum in COUNT weights."""
    velocity, peak = np.zeros((1, 1, 1, COUNT), np.int8), np.asarray(0, np.int32)
    exponent = new_exponent()
    noise, totals, kept = np.asarray(12345, np.int32), [], []
    for total, n in zip(sums, samples, strict=True):
        count = np.float32(n)
        parts = (np.float32(0.1), np.float32(MOMENTUM) * count, np.float32(1) / count)
        rate = np.concatenate([split_rate(part) for part in parts])
        given = np.full(velocity.shape, total, np.int32)
        scale = (np.asarray([shift], np.int8), rate, np.asarray([p, 0], np.int32), exponent)
        operands = (given, velocity, peak, *scale, noise, np.int32(7))
        moved, velocity, peak = run("QMomentum", *operands, attrs=QMomentumAttrs())
        exponent, peak = run("ExponentUpdate", exponent, peak, attrs=ExponentAttrs())
        (noise,) = run("NoiseTick", noise)
        totals.append(float(moved.mean()))
        kept.append(velocity.ravel() * 2.0 ** float(exponent[2] - p - (shift >> 1)))
    return totals, kept


SUMS, SAMPLES = [9000, 10000, -3000, 20000, 0, 0, 50000, 110, -7000, 400], [1, 1, 4, 4, 2, 1, 8, 8, 1, 1]


def check_velocity() -> None:
    """From the second step on: the mean over many weights is the exact velocity, to its own noise."""
    for p, shift in ((-14, 0), (-20, 13), (-10, -8)):
        totals, kept = follow(SUMS, SAMPLES, p, shift)
        v = float(kept[0].mean())
        for step in range(1, len(SUMS)):
            before = MOMENTUM * SAMPLES[step] * kept[step - 1].mean()
            assert totals[step] == pytest.approx(SUMS[step] + before, abs=0.51)
            v = MOMENTUM * v + SUMS[step] / SAMPLES[step]
            levels = np.unique(kept[step])
            grain = float(np.diff(levels).min(initial=np.inf)) if len(levels) > 1 else 0.0
            assert abs(kept[step].mean() - v) <= 6 * grain / np.sqrt(COUNT) + 1.0, (p, shift, step, v)


def test_velocity_is_unbiased() -> None:
    check_velocity()


def test_a_first_velocity_below_two_is_kept() -> None:
    for p in (-14, -18, -20):
        _, kept = follow([9000, 0], [1, 1], p)
        assert kept[0].mean() == pytest.approx(9000, rel=0.1)
        assert kept[1].mean() == pytest.approx(MOMENTUM * kept[0].mean(), rel=0.1)


@pytest.mark.parametrize("p", [-28, -40])
def test_far_smaller_gradients_find_their_exponent_soon(p: int) -> None:
    """Five bits with every update, not one in eight."""
    _, kept = follow([9000] * 40, [1] * 40, p)
    for step in range(8, 40):
        assert kept[step].mean() == pytest.approx(MOMENTUM * kept[step - 1].mean() + 9000, rel=0.02)


def test_a_first_velocity_above_two_is_cut_but_tells_its_exponent() -> None:
    _, kept = follow([9000, 9000, 9000], [1] * 3, p=-10)
    assert kept[0].mean() * 2.0**-10 == 127 / 64
    assert kept[1].mean() == pytest.approx(9000 + MOMENTUM * 127 / 64 * 1024, rel=0.01)


def test_velocity_dies_out() -> None:
    """Without gradients it shrinks by the momentum, step by step, down to nothing."""
    totals, kept = follow([4000] * 3 + [0] * 60, [1] * 63)
    for step in range(4, 20):
        assert kept[step].mean() == pytest.approx(MOMENTUM * kept[step - 1].mean(), rel=0.02, abs=0.6)
    assert abs(kept[-1].mean()) < 5
    assert abs(totals[-1]) < 5


def test_saturation_and_extremes() -> None:
    totals, kept = follow([fx.INT32_MAX] * 12, [1] * 12)
    assert max(totals) == fx.INT32_MAX, "sums saturate"
    assert kept[-1].mean() == pytest.approx(fx.INT32_MAX, rel=0.01)


@pytest.mark.parametrize("value", [0, 255])
def test_velocity_rounded_to_one_side_is_noticed(value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx, "noise_bytes", lambda _state, _salt, count: np.full(count, value, np.int64))
    with pytest.raises(AssertionError):
        check_velocity()


def test_a_velocity_read_with_the_new_exponent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_update.moved_velocity

    def wrong(velocity: Any, gradient: Any, rate: Any, state: Any, unit: Any, random: Any) -> Any:
        return real(velocity, gradient, rate, np.asarray([state[0], 0, state[0]]), unit, random)

    monkeypatch.setattr(int8_update, "moved_velocity", wrong)
    with pytest.raises(AssertionError):
        check_velocity()


# ---- in training ----------------------------------------------------------------------------------------------------


def displacements(batch: int, steps: int = 12) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """How far int8 (q8.8) and float parameters went in some steps of momentum on the same inputs."""
    options = {"batch": batch, "optimizer": "momentum", "momentum": 0.9, "learning_rate": 2e-3}
    train = nets.int8_train(nets.cnn(), head="int8", store="q8.8", **options)
    floats = nets.float_train(nets.cnn(), head="int8", **options)
    samples = random_samples(train, batch * steps, 0)
    inputs, scales = real_inputs(train, samples.x), scales_of(floats)
    ours, theirs = Trainer(train), Trainer(floats)
    start = dict(theirs.state)
    for step in range(steps):
        part = slice(step * batch, (step + 1) * batch)
        ours.step(samples.x[part], samples.y[part])
        theirs.step(inputs[part], samples.y[part])
    found: dict[str, np.ndarray] = {}
    for name in scales:
        now, before = ours.state[name].astype(float), train.graph.constants[name].astype(float)
        if f"{name}.fraction" in ours.state:
            now = now + ours.state[f"{name}.fraction"] / 256
        found[name] = ((now - before) * per_channel(scales[name], now)).reshape(start[name].shape)
    return found, {name: theirs.state[name].astype(float) - start[name] for name in scales}


def check_displacements(batch: int) -> None:
    found, expected = displacements(batch)
    a, b = (np.concatenate([d[name].ravel() for name in sorted(d)]) for d in (found, expected))
    assert np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) > 0.97
    assert abs(np.dot(a, b) / np.dot(b, b) - 1) < 0.12


@pytest.mark.parametrize("batch", [1, 4])
def test_weights_go_where_float_momentum_takes_them(batch: int) -> None:
    check_displacements(batch)


def test_missing_momentum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_update.moved_velocity
    monkeypatch.setattr(int8_update, "moved_velocity", lambda v, *rest: real(np.zeros_like(v), *rest))
    with pytest.raises(AssertionError):
        check_displacements(1)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(("batch", "accumulate"), [(1, "exact"), (4, "exact"), (4, "inplace")])
def test_what_momentum_keeps(store: WeightStore, batch: int, accumulate: str) -> None:
    """One int8 per trained parameter, weights and biases, and one exponent of three words for each tensor."""
    train = nets.int8_train(
        nets.cnn(), head="int8", batch=batch, accumulate=accumulate, optimizer="momentum", store=store
    )
    rows = {row["name"]: row for row in quant_tensors(train)}
    velocities = {name: row for name, row in rows.items() if row["kind"] == "velocity"}
    assert len(velocities) == 10
    for name, row in velocities.items():
        parameter = rows[name.removesuffix(".velocity")]
        assert (row["stored"], parameter["kind"]) in (("int8", "weight"), ("int8", "bias"))
        assert row["bytes"] == parameter["bytes"] // (4 if parameter["kind"] == "bias" else 1)
        assert (rows[f"{name}.exponent"]["kind"], rows[f"{name}.exponent"]["bytes"]) == ("exponent", 12)
    phases = {n.phase for n in nets.nodes_of(train, "QMomentum", "QConvMomentum", "QConvMomentumFine")}
    assert phases == {"apply" if (batch, accumulate) == (4, "exact") else "step"}
    assert train.velocity == Velocity(0.9)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("batch", [1, 3])
def test_rate_zero_moves_velocities_only(batch: int, store: WeightStore) -> None:
    options = {"batch": batch, "optimizer": "momentum", "learning_rate": 0.0}
    train = nets.int8_train(nets.cnn(), head="int8", store=store, **options)
    samples = random_samples(train, 2 * batch, 0)
    trainer = Trainer(train)
    for i in range(2):
        trainer.step(samples.x[i * batch : (i + 1) * batch], samples.y[i * batch : (i + 1) * batch])
    for value in train.graph.state:
        if value.name.endswith(("_weight", "_beta", "_bias", ".fraction")):
            np.testing.assert_array_equal(trainer.state[value.name], train.graph.constants[value.name])
        if value.name.endswith("_weight.velocity"):
            assert np.any(trainer.state[value.name])


@pytest.mark.parametrize("store", STORES)
def test_no_momentum_at_all_is_plain_sgd(store: WeightStore) -> None:
    """--momentum 0: the bytes of the weights are those of SGD where no noise is involved.

    Not those of a dense layer: there the step takes a velocity of 7 fraction bits, SGD the gradient as it is.
    """
    options = {"head": "int8", "learning_rate": 0.02, "store": store}
    trains = [nets.int8_train(nets.cnn(), optimizer=name, momentum=0.0, **options) for name in ("momentum", "sgd")]  # type: ignore[arg-type]
    samples = random_samples(trains[0], 4, 0)
    trainers = [Trainer(train) for train in trains]
    for trainer in trainers:
        for i in range(4 if store == "q8.8" else 1):
            trainer.step(samples.x[i : i + 1], samples.y[i : i + 1])
    names = [v.name for v in trains[1].graph.state if v.name.endswith(("_weight", "_beta", "_bias", ".fraction"))]
    for name in names:
        ours, theirs = (trainer.state[name].astype(int) for trainer in trainers)
        dense = name.startswith("fc_weight")
        assert np.abs(ours - theirs).max() <= (1 if name.endswith("_weight") and store == "sr8" else dense), name


def test_float_layers_and_int8_layers_take_the_same_momentum() -> None:
    train = nets.int8_train(nets.cnn(), optimizer="momentum", momentum=0.5)
    assert len(nets.nodes_of(train, "MomentumUpdate")) == 2, "the float head"
    assert len(nets.nodes_of(train, "QConvMomentum")) == len(nets.nodes_of(train, "QMomentum")) == 4
    assert train.velocity == Velocity(0.5)
