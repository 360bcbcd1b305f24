"""Lion in int8: the sign of gradient and moment, steps of the learning rate, and what integers have no form of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.quantize import nets
from tests.quantize.gradients import per_channel, real_inputs, scales_of
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.int8 import steps as int8_steps
from tinytrain_compile.ops.int8 import update as int8_update
from tinytrain_compile.ops.int8.exponents import ExponentAttrs
from tinytrain_compile.ops.int8.steps import split_rate
from tinytrain_compile.ops.int8.update import QMomentumAttrs
from tinytrain_compile.ops.update import OPTIMIZERS, Settings
from tinytrain_compile.reference.trainer import Trainer

BETA1, BETA2 = 0.75, 0.875
COUNT = 20_000
START = 5
"""Exponent of a moment that is known: 127 2**5 is more than any below."""
SUMS, SAMPLES = [9000, 10000, -3000, 20000, -50, 0, 50000, 110, -12000, 400], [1, 1, 4, 4, 2, 1, 8, 8, 1, 1]


def follow(p: int, shift: int) -> tuple[list[float], list[float]]:
    """(mean sign, mean moment as a real number) after every step, with the same sum in COUNT weights."""
    velocity, peak = np.zeros((1, 1, 1, COUNT), np.int8), np.asarray(0, np.int32)
    settled, noise = START + p + shift, np.asarray(12345, np.int32)
    exponent = np.asarray([settled, 0, settled], np.int32)
    signs, moments = list[float](), list[float]()
    for total, n in zip(SUMS, SAMPLES, strict=True):
        count, one = np.float32(n), np.float32(1)
        kept, ahead = (np.float32(beta / (1 - beta)) for beta in (BETA2, BETA1))
        parts = (np.float32(0.1), kept * count, np.float32(1 - BETA2) * (one / count), ahead * count)
        rate = np.concatenate([split_rate(part) for part in parts])
        given, rule = np.full(velocity.shape, total, np.int32), OPS["QMomentum"].reference
        scale = (np.asarray([shift], np.int8), rate, np.asarray([p, 0], np.int32), exponent)
        arrays = (given, velocity, peak, *scale, noise, np.asarray(7, np.int32))
        sign, velocity, peak = rule(arrays, QMomentumAttrs(signed=True))
        exponent, peak = OPS["ExponentUpdate"].reference((exponent, peak), ExponentAttrs())
        (noise,) = OPS["NoiseTick"].reference((noise,), None)  # type: ignore[arg-type]
        signs.append(float(sign.mean()))
        moments.append(float(velocity.mean()) * 2.0 ** float(exponent[2] - p - shift))
    return signs, moments


def check_moment(p: int = 0, shift: int = 0) -> None:
    """Signs and moments are those of the published formula in float64."""
    signs, moments = follow(p, shift)
    moment = 0.0
    for total, n, sign, kept in zip(SUMS, SAMPLES, signs, moments, strict=True):
        g = total / n
        assert sign == np.sign(BETA1 * moment + (1 - BETA1) * g)
        moment = BETA2 * moment + (1 - BETA2) * g
        assert abs(kept - moment) <= 0.02 * max(abs(moment), 100.0)


@pytest.mark.parametrize(("p", "shift"), [(0, 0), (-9, 3), (7, -12)])
def test_signs_and_moments_are_those_of_the_paper(p: int, shift: int) -> None:
    check_moment(p, shift)


def test_the_new_moment_in_a_sign_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """beta2 in the place of beta1: the sign of what is stored."""
    real = int8_steps.sign_ahead
    same = [0, 1, 2, 3, 4, 5, 2, 3]

    def wrong(velocity: Any, gradient: Any, rate: Any, *rest: Any) -> Any:
        return real(velocity, gradient, rate[same], *rest)

    monkeypatch.setattr(int8_update, "sign_ahead", wrong)
    with pytest.raises(AssertionError):
        check_moment()


def test_a_sign_without_the_moment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_velocity: Any, gradient: Any, *_rest: Any) -> Any:
        return np.sign(gradient)

    monkeypatch.setattr(int8_update, "sign_ahead", wrong)
    with pytest.raises(AssertionError):
        check_moment()


# ---- in training ----------------------------------------------------------------------------------------------------

STEPS, RATE = 10, 4e-3


def trained(batch: int, steps: int = STEPS, **more: Any) -> tuple[TrainGraph, Trainer, dict[str, np.ndarray], Trainer]:
    """(graph, its trainer after some steps, how far its weights went in real numbers, float32 on the same inputs)."""
    options: dict[str, Any] = {"batch": batch, "optimizer": "lion", "learning_rate": RATE, **more}
    train = nets.int8_train(nets.cnn(), head="int8", store="q8.8", **options)
    floats = nets.float_train(nets.cnn(), head="int8", **options)
    samples = random_samples(train, batch, 0)
    inputs, scales = real_inputs(train, samples.x), scales_of(floats)
    ours, theirs = Trainer(train), Trainer(floats)
    for _ in range(steps):  # of the same samples, so that most gradients keep their signs
        ours.step(samples.x, samples.y)
        theirs.step(inputs, samples.y)
    found: dict[str, np.ndarray] = {}
    for name in scales:
        now, before = ours.state[name].astype(float), train.graph.constants[name].astype(float)
        if f"{name}.fraction" in ours.state:
            now = now + ours.state[f"{name}.fraction"] / 256
        found[name] = (now - before) * per_channel(scales[name], now)
    return train, ours, found, theirs


@pytest.mark.parametrize("batch", [1, 4])
def test_weights_go_where_float_lion_takes_them(batch: int) -> None:
    check_displacements(batch)


def check_displacements(batch: int) -> None:
    """Of numbers that float32 moves to one side in every step: gradients near 0 change their sign by any rounding."""
    _, _, found, theirs = trained(batch)
    first = nets.float_train(nets.cnn(), head="int8", batch=batch, optimizer="lion").graph.constants
    ours = np.concatenate([found[name].ravel() for name in sorted(found)])
    wanted = np.concatenate([(theirs.state[name] - first[name]).astype(float).ravel() for name in sorted(found)])
    clear = np.abs(wanted) > 0.99 * STEPS * RATE
    assert clear.mean() > 0.2
    assert (np.sign(ours) == np.sign(wanted))[clear].mean() > 0.95
    assert abs(np.abs(ours[clear]).mean() / (STEPS * RATE) - 1) < 0.15


def test_steps_along_the_gradient_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_steps.sign_ahead

    def wrong(*arguments: Any) -> Any:
        return -real(*arguments)

    monkeypatch.setattr(int8_update, "sign_ahead", wrong)
    with pytest.raises(AssertionError):
        check_displacements(1)


def test_every_number_moves_by_the_learning_rate_or_stays() -> None:
    """One step of weights with 8 fraction bits and of biases: the whole 256ths, and units, that are nearest to it."""
    train, trainer, found, _ = trained(1, steps=1)
    for name, moved in found.items():
        unit = train.trained[name].unit
        assert unit is not None
        grid = np.asarray(unit.scale) / (256 if unit.fraction else 1)
        sizes = np.rint(RATE / grid) * grid
        sizes = sizes.reshape(-1, *(1,) * (moved.ndim - 1)) if sizes.size > 1 else sizes
        steps = np.abs(moved)
        end = np.abs(trainer.state[name].astype(int)) == 127
        assert (np.isclose(steps, sizes, rtol=1e-6) | (steps == 0) | end).all(), name
        assert (steps > 0).mean() > 0.5, name


def test_the_learning_rate_is_not_divided_by_the_batch() -> None:
    """Unless each sample is a step of its own."""
    ways = ("exact", "inplace")
    whole, place = (nets.int8_train(nets.cnn(), batch=4, optimizer="lion", accumulate=way) for way in ways)
    rates = dict[str, Any]()
    for name, train in (("whole", whole), ("place", place)):
        trainer = Trainer(train)
        trainer.set_scalars(4)
        assert train.rate is not None
        rates[name] = trainer.sums[train.rate.name]
    assert (rates["whole"][:2] == split_rate(np.float32(whole.graph.constants[whole.learning_rate.name]))).all()
    assert (rates["place"][:2] == split_rate(np.float32(place.graph.constants[place.learning_rate.name]), 4)).all()
    assert rates["whole"].size == 8


def test_the_report_says_how_far_weights_move() -> None:
    note = " ".join(nets.int8_train(nets.cnn(), optimizer="lion", learning_rate=1e-2).graph.notes)
    assert "int8 weights move by signs, at the first learning rate by" in note and "do not move" not in note
    still = " ".join(nets.int8_train(nets.cnn(), optimizer="lion", learning_rate=1e-6).graph.notes)
    assert "output channels do not move" in still


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"clip_norm": 1.0}, "--clip-norm"),
        ({"rescale": True}, "--rescale on"),
        ({"weight_decay": 0.1}, "--weight-decay"),
    ],
)
def test_settings_without_an_integer_form_are_refused(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(CompileError, match=f"E0113.*{flag}"):
        nets.int8_train(nets.cnn(), optimizer="lion", **options)


def test_without_the_declared_form_int8_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description of the operator has it: without, nothing is trained as float32 and called a pass."""
    rule = OPTIMIZERS["lion"].rule(Settings(), OPTIMIZERS["lion"], False)
    assert rule.op.owned is not None
    monkeypatch.setitem(OPS, rule.op.name, replace(rule.op, owned=replace(rule.op.owned, int8="refused")))
    with pytest.raises(CompileError, match="E0113"):
        nets.int8_train(nets.cnn(), optimizer="lion")
