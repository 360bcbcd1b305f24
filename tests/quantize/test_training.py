"""The pitfalls of int8 training as tests (overflow: test_overflow.py), and proof that they notice a planted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks import models
from tests.quantize import nets
from tests.quantize.gradients import (
    SAMPLES,
    check_gradients,
    check_unbiased,
    float_gradients,
    gathered,
    integer_gradients,
    integer_sums,
    one_step,
    per_channel,
    scales_of,
)
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8 import error as int8_error
from tinytrain_compile.ops.int8 import steps as int8_steps
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.exponents import update_exponent
from tinytrain_compile.ops.int8.steps import split_rate
from tinytrain_compile.ops.int8.update import weight_gradient
from tinytrain_compile.reference.trainer import Trainer

# ---- 1: rounding of the stored weight -------------------------------------------------------------------------------


def test_update_is_unbiased() -> None:
    check_unbiased()


def test_a_small_step_is_rare_and_whole() -> None:
    """5 - 0.0117 stays 5 but for 1.17 % of the draws; nothing decays."""
    after = one_step(5, 3)
    assert np.mean(after == 5) == pytest.approx(1 - 3 / 256, abs=0.002)
    assert np.mean(one_step(5, -3) == 6) == pytest.approx(3 / 256, abs=0.002)
    assert (one_step(5, 0) == 5).all()


def test_weights_saturate() -> None:
    assert (one_step(127, -256, 1000) == 127).all()
    assert (one_step(-127, 256, 1000) == -127).all()
    assert (one_step(120, -(1 << 20), 1000) == 127).all()
    assert (one_step(-120, 1 << 20, 1000) == -127).all()


# ---- 2: quantisation-aware scaling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, 0.37])
@pytest.mark.parametrize("model", [nets.cnn, nets.quantised, models.mlp])
def test_an_integer_step_is_float_sgd_on_the_real_parameter(model: Callable[[], onnx.ModelProto], rate: float) -> None:
    """q - step(sum), as real numbers without rounding, equals s q - rate * gradient; biases too, channel by channel."""
    floats = nets.float_train(model(), head="int8", batch=SAMPLES)
    train = nets.int8_train(model(), head="int8", batch=SAMPLES)
    scales, gradients = scales_of(floats), integer_gradients(model())
    constants = train.graph.constants
    sums = integer_sums(train, random_samples(train, SAMPLES, 0))
    shared = split_rate(np.float32(rate))
    for node in nets.nodes_of(train, "QWeightApply", "QBiasApply"):
        name = node.inputs[0].name
        total, exponent = sums[name]
        multiplier, shift = (constants[value.name] for value in node.inputs[2:4])
        size, power = int8_steps.step_size(multiplier, shift, shared, np.asarray([exponent, 0]), 0)
        move = total * per_channel(size * 2.0**power, total)
        real = (move * per_channel(scales[name], total)).reshape(gradients[name].shape)
        np.testing.assert_allclose(real, np.float32(rate) * gradients[name], rtol=1e-6, atol=0)
        assert np.any(real)


def test_rate_outside_its_range_changes_nothing() -> None:
    train = nets.int8_train(nets.quantised(), head="int8")
    samples = random_samples(train, 3, 0)
    for rate in (0.0, -1.0, float("nan"), float("inf"), 1e-39):
        trainer = Trainer(train)
        trainer.set_rate(rate)
        for i in range(3):
            trainer.step(samples.x[i : i + 1], samples.y[i : i + 1])
        for name in ("w", "d", "f", "bias"):
            np.testing.assert_array_equal(trainer.state[name], train.graph.constants[name])


# ---- 3: the zero point, and gradients as a whole --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cnn", "max pool", "overlapping", "qdq", "mlp"])
def test_gradients_are_those_of_the_float_graph(name: str) -> None:
    made = {
        "cnn": nets.cnn,
        "max pool": lambda: nets.cnn(pool="MaxPool"),
        "overlapping": lambda: nets.cnn(pool="MaxPool", window=nets.OVERLAPPING),
        "qdq": nets.quantised,
        "mlp": models.mlp,
    }
    few = name == "mlp"  # a single row: one sum whose sign rounding has turned is a tenth of a bias's gradient
    check_gradients(made[name](), slope=0.2 if few else 0.15)


def test_gradients_of_linear_layers_over_tokens() -> None:
    """Weights and biases of the encoder's last layers: products with constants, then added vectors."""
    check_gradients(models.transformer(tokens=4, width=8, heads=2), update="project/*,up/*,down/*,head/*")


def test_weight_gradient_is_of_centred_inputs() -> None:
    """By hand: x = -128 everywhere stands for zero and gives no gradient; -127 gives the sum of the errors."""
    g = np.asarray([[[[3], [-4]], [[5], [6]]]], np.int8)
    for stored, expected in ((-128, 0), (-127, 10), (127, 2550)):
        x = np.full((1, 2, 2, 1), stored, np.int8)
        assert weight_gradient(x, g, -128, ConvAttrs((1, 1))).item() == expected


# ---- 4: masks -------------------------------------------------------------------------------------------------------


def test_masks_at_the_limits() -> None:
    y = np.asarray([-128, -127, 0, 126, 127], np.int8)
    errors = np.arange(10, 60, 10)
    whole, relu = MaskAttrs("value"), MaskAttrs("value", low=0)
    assert int8_error.masked(errors, y, whole).tolist() == [0, 20, 30, 40, 0]
    assert int8_error.masked(errors, y, relu).tolist() == [0, 0, 0, 40, 0]
    for attrs, expected in ((whole, 0b01110), (relu, 0b01000)):
        (bits,) = OPS["QClipMask"].reference((y,), attrs)
        assert bits.tolist() == [expected]
    assert int8_error.masked(errors, np.asarray([0b01110], np.uint8), MaskAttrs("bits")).tolist() == [0, 20, 30, 40, 0]


def test_masks_take_the_bounds_of_the_fused_relu() -> None:
    """With zero point 0 a ReLU is off at 0, not at -128: the masks of kept values and the bits must both know."""
    train = nets.int8_train(nets.symmetric_relu())
    clamps = [n.attrs for n in nets.nodes_of(train, "QClipMask")]
    clamps += [n.attrs.mask for n in nets.nodes_of(train, "QConvGradInput", "ErrorScale") if n.attrs.mask.kind]
    clamps = [c for c in clamps if c.kind == "value"]
    assert clamps and all((c.low, c.high) == (0, 127) for c in clamps)


def twins() -> onnx.ModelProto:
    """Two convolutions of very different scales, added and averaged: their biases have the same gradient."""
    net = models.Network("twins", "float[1, 2, 6, 6] x", "float[1, 3] y", seed=4)
    for name, factor in (("small", 0.05), ("large", 1.0)):
        net.near(f"{name}_weight", 0.0, factor, 4, 2, 3, 3)
        net.near(f"{name}_bias", 0.0, factor, 4)
        net.node(name, f"{name}_y = Conv <pads = [1, 1, 1, 1]> (x, {name}_weight, {name}_bias)")
    net.node("join", "joined = Add (small_y, large_y)")
    net.node("pool", "pooled = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (joined)")
    net.node("mean", "mean = GlobalAveragePool (pooled)")
    net.node("flat", "flat = Flatten <axis = 1> (mean)")
    net.node("logits", f"y = Identity ({net.dense('fc', 'flat', 4, 3)})")
    return net.model()


def test_add_and_pool_pass_the_same_error() -> None:
    """Both operands get it whole, in units of their own; the average passes it on without loss."""
    found, expected = integer_gradients(twins()), float_gradients(twins())
    np.testing.assert_allclose(expected["small_bias"], expected["large_bias"], rtol=0.05)  # saturation differs a little
    for name in ("small_bias", "large_bias"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0.1, atol=0.02 * np.abs(expected[name]).max())


# ---- 5: exact accumulation ------------------------------------------------------------------------------------------


def test_eight_samples_are_the_sum_of_eight() -> None:
    train = nets.int8_train(nets.cnn(), head="int8", batch=8)
    samples = random_samples(train, 8, 3)
    _, trainer = gathered(train, samples)  # exponents are found; they stay until the update
    totals = {value.name: trainer.sums[value.name] for value in train.graph.accumulators}
    parts: dict[str, Any] = {}
    for i in range(8):
        trainer.sums = trainer.zero_sums()
        trainer.gather(samples.x[i : i + 1], samples.y[i].reshape(train.label.shape))
        for name, data in trainer.sums.items():
            merge = np.maximum if data.ndim == 0 else np.add
            parts[name] = merge(parts[name], data) if name in parts else data
    tensors = [name for name, data in totals.items() if data.dtype == np.int32 and data.ndim > 0 and name != "rate"]
    assert len(tensors) == 10
    for name in tensors:
        np.testing.assert_array_equal(parts[name], totals[name])
        assert np.any(totals[name])


# ---- 6: channel slices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "axis", "channels"),
    [
        *(("point", "out", [1, 4, 5]), ("point", "in", [0, 2, 5]), ("point", "in", [2, 3])),
        *(("last", "out", [3]), ("last", "out", [0, 11]), ("last", "in", [0, 2, 5])),
        *(("deep", "out", [1, 4, 5]), ("deep", "out", [3])),
    ],
)
def test_slices_are_the_selected_channels(layer: str, axis: str, channels: list[int], tmp_path: Path) -> None:
    """Not the first n ones: bit for bit the rows (columns) of the whole gradient."""
    text = 'layer = "{}/Conv"\nweight = {}\naxis = "{}"\n'
    (tmp_path / "part.toml").write_text("[[update]]\n" + text.format(layer, channels, axis))
    (tmp_path / "whole.toml").write_text(f'[[update]]\nlayer = "{layer}/Conv"\nweight = "all"\n')
    sums = []
    for name in ("part", "whole"):
        train = nets.int8_train(nets.cnn(), str(tmp_path / f"{name}.toml"), batch=2)
        sums.append(integer_sums(train, random_samples(train, 2, 0)))
    (part, p), (whole, q) = sums[0][f"{layer}_weight.updated"], sums[1][f"{layer}_weight"]
    assert p == q
    np.testing.assert_array_equal(part, np.take(whole, channels, axis=0 if axis == "out" else 3))
    assert np.any(part)


# ---- 7: delayed exponents -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [nets.cnn, nets.quantised, nets.float_regions])
def test_first_step_finds_its_exponents(model: Callable[[], onnx.ModelProto]) -> None:
    """Without history every error uses its range from the first step on: at most 63, more than half of that."""
    train = nets.int8_train(model(), head="int8", batch=2)
    values, trainer = gathered(train, random_samples(train, 1, 0))
    seen = 0
    for node in nets.nodes_of(train, *nets.ERROR_OPS):
        largest = int(np.abs(values[node.outputs[0].name].astype(int)).max())
        if largest == 0:
            assert int(values[node.inputs[1].name][0]) == fx.EXPONENT_START
            continue
        assert 31 <= largest <= 64, node.name  # 64: rounded up
        assert int(trainer.state[node.inputs[1].name][0]) != fx.EXPONENT_START or largest > 31
        seen += 1
    assert seen >= 5


def test_later_steps_use_what_earlier_ones_saw() -> None:
    train = nets.int8_train(nets.cnn(), head="int8", learning_rate=0.05)
    samples = random_samples(train, 12, 0)
    trainer = Trainer(train)
    for i in range(12):
        before = {name: trainer.state[name].copy() for name in trainer.state}
        values = trainer.gather(samples.x[i : i + 1], samples.y[i].reshape(train.label.shape))
        if i == 0:
            continue
        for node in nets.nodes_of(train, "ExponentUpdate"):
            state, peak = (value.name for value in node.inputs)
            expected = update_exponent(before[state], values[peak], node.attrs.float_peak)  # type: ignore[attr-defined]
            np.testing.assert_array_equal(trainer.state[state], expected)


def test_exponents_rise_at_once_and_fall_slowly() -> None:
    state = np.asarray([-5, 0], np.int32)
    assert update_exponent(state, np.int32(63), False).tolist() == [-5, 0]
    assert update_exponent(state, np.int32(64), False).tolist() == [-4, 0]
    assert update_exponent(state, np.int32(5000), False).tolist() == [2, 0]
    assert update_exponent(state, np.int32(0), False).tolist() == [-5, 0], "nothing seen: nothing learnt"
    for quiet in range(fx.QUIET_APPLIES - 1):
        state = update_exponent(state, np.int32(3), False)
        assert state.tolist() == [-5, quiet + 1]
    assert update_exponent(state, np.int32(3), False).tolist() == [-6, 0]
    assert update_exponent(state, np.int32(40), False).tolist() == [-5, 0]


# ---- planted faults -------------------------------------------------------------------------------------------------


def test_rounding_down_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx, "noise_bytes", lambda _state, _salt, count: np.zeros(count, np.int64))
    with pytest.raises(AssertionError):
        check_unbiased()


def test_rounding_to_nearest_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx, "noise_bytes", lambda _state, _salt, count: np.full(count, 128, np.int64))
    with pytest.raises(AssertionError):
        check_unbiased()


def test_noise_of_half_a_range_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fx.noise_bytes
    monkeypatch.setattr(fx, "noise_bytes", lambda *arguments: real(*arguments) >> 1)
    with pytest.raises(AssertionError):
        check_unbiased()


def test_a_missing_zero_point_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = OPS["QSum"]
    wrong = replace(rule, reference=lambda a, attrs: rule.reference(a, replace(attrs, x_zero=0)))
    monkeypatch.setitem(OPS, "QSum", wrong)
    with pytest.raises(AssertionError):
        check_gradients(nets.cnn())


@pytest.mark.parametrize("kind", ["value", "bits"])
def test_a_missing_mask_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_error.masked
    monkeypatch.setattr(int8_error, "masked", lambda e, mask, k: e if k.kind == kind else real(e, mask, k))
    with pytest.raises(AssertionError):
        check_gradients(nets.cnn() if kind == "value" else saturated())


def test_a_wrong_winner_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error goes to the tap after the one that won."""
    rule = OPS["MaxPoolIndex"]
    other = replace(rule, exact=lambda a, attrs: ((rule.reference(a, attrs)[0] + 1) % 4,))
    monkeypatch.setitem(OPS, "MaxPoolIndex", other)
    with pytest.raises(AssertionError):
        check_gradients(nets.cnn(pool="MaxPool"))


@pytest.mark.parametrize("lost", ["sum", "exponent"])
def test_a_wrong_sum_of_windows_is_noticed(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors halved, or stored as if the exponent were that of the error before."""
    rule = OPS["QMaxPoolGrad"]

    def wrong(a: tuple[np.ndarray, ...], attrs: Any) -> tuple[np.ndarray, ...]:
        if lost == "exponent":
            return rule.reference((*a[:2], a[1] + 1, *a[3:]), attrs)
        return rule.reference((*a[:3], a[3] // 2, *a[4:]), attrs)

    monkeypatch.setitem(OPS, "QMaxPoolGrad", replace(rule, reference=wrong))
    with pytest.raises(AssertionError):
        check_gradients(nets.cnn(pool="MaxPool", window=nets.OVERLAPPING))


def saturated() -> onnx.ModelProto:
    """A QDQ model whose sum leaves its range often."""
    model = nets.quantised()
    for tensor in model.graph.initializer:
        if tensor.name == "b_s":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(0.006, np.float32), "b_s"))
    return model


def test_gradients_of_a_model_that_saturates() -> None:
    check_gradients(saturated())


def test_a_wrong_channel_constant_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 / s instead of 1 / s**2: learning rates that differ between channels."""
    real = fx.split_factors
    monkeypatch.setattr(fx, "split_factors", lambda f: real(np.sqrt(f) if np.min(f, initial=np.inf) > 300 else f))
    with pytest.raises(AssertionError):
        test_an_integer_step_is_float_sgd_on_the_real_parameter(nets.cnn, 0.01)
