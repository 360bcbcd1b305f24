"""How trained int8 weights are kept (sr8, q8.8, mixed), and what an update rule must not do in any store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.int8 import update as int8_update
from tinytrain_compile.ops.int8.exponents import update_exponent
from tinytrain_compile.ops.int8.update import QUpdateAttrs
from tinytrain_compile.ops.names import operands
from tinytrain_compile.ops.names import trained as trained_by
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.quantize import WeightStore, count_saturations
from tinytrain_compile.quantize.storage import fine_weights, store_note
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.report.analysis import analyse
from tinytrain_compile.report.rows.formats import quant_tensors

STORES: tuple[WeightStore, ...] = ("sr8", "q8.8")
SIZES = {"stem_weight": 162, "deep_weight": 54, "point_weight": 36, "last_weight": 648, "fc_weight": 60}
"""Weights of nets.cnn()."""


def fine_steps(start: int, step: int, count: int, unit: int = 256) -> tuple[int, int]:
    """(weight, fraction) after `count` steps of step / unit weights, from the integer `start`."""
    multiplier, shift = fx.split_factors([1.0 / unit])
    scale = (multiplier, shift, np.asarray(fx.split_factor(1.0), np.int32), np.zeros(2, np.int32))
    state = np.full((1, 1, 1, 1), start, np.int8), np.zeros((1, 1, 1, 1), np.int8)
    gradient = np.full((1, 1, 1, 1), step, np.int32)
    for _ in range(count):
        state = OPS["QUpdate"].reference((state[0], gradient, *scale, state[1]), QUpdateAttrs("sum", fine=True))
    return int(state[0].item()), int(state[1].item())


def check_fine_steps() -> None:
    """Every step counts, in 1/256 of a weight; the weight is the sum, rounded half up."""
    for start in (0, 5, -5, 100):
        for step in (1, -1, 77, -128, 300):
            for count in (1, 3, 10):
                exact = 256 * start - count * step
                w, fraction = fine_steps(start, step, count)
                assert 256 * w + fraction == exact
                assert w == np.floor(exact / 256 + 0.5)


def test_fractions_keep_every_256th() -> None:
    check_fine_steps()
    assert fine_steps(5, 1, 256) == (4, 0)
    assert fine_steps(5, 1, 128) == (5, -128)
    assert fine_steps(5, 1, 129) == (4, 127)


def test_steps_below_half_a_256th_are_lost() -> None:
    """The dead zone: 1/512 of a weight is rounded to 1/256, less is nothing."""
    assert fine_steps(5, 1, 100, unit=512) == fine_steps(5, 1, 100, unit=256)
    assert fine_steps(5, 1, 100, unit=514) == (5, 0)


def test_fine_weights_saturate_and_come_back() -> None:
    assert fine_steps(127, -1, 10) == (127, 0)
    assert fine_steps(120, -(1 << 24), 3, unit=1) == (127, 0)
    assert fine_steps(-127, 1, 10) == (-127, 0)
    assert fine_steps(127, 1, 129) == (126, 127)


def test_a_lost_fraction_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int8_update.moved_fine
    monkeypatch.setattr(int8_update, "moved_fine", lambda w, f, *rest: real(w, np.zeros_like(f), *rest))
    with pytest.raises(AssertionError):
        check_fine_steps()


def test_a_weight_that_is_not_rounded_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """(v >> 8, v & 255) instead of the rounded weight."""
    real = int8_update.moved_fine

    def floored(*arguments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w, fraction = real(*arguments)  # type: ignore[arg-type]
        return np.where(fraction < 0, w - 1, w).astype(np.int8), fraction

    monkeypatch.setattr(int8_update, "moved_fine", floored)
    with pytest.raises(AssertionError):
        check_fine_steps()


@pytest.mark.parametrize("batch", [1, 4])
def test_fractions_are_state_and_need_no_noise(batch: int) -> None:
    train = nets.int8_train(nets.cnn(), head="int8", batch=batch, store="q8.8")
    weights = {v.name: v for v in train.graph.state if v.dtype == "int8"}
    fractions = [name for name in weights if name.endswith(".fraction")]
    assert len(fractions) * 2 == len(weights) == 10
    for name in fractions:
        assert weights[name].shape == weights[name.removesuffix(".fraction")].shape
        assert not np.any(train.graph.constants[name])
    assert not nets.nodes_of(train, "NoiseTick", "QConvUpdate", "QWeightApply")
    rows = {row["name"]: row for row in quant_tensors(train)}
    assert {rows[name]["kind"] for name in fractions} == {"fraction"}
    plain = nets.int8_train(nets.cnn(), head="int8", batch=batch)
    saved = [sum(v.size_bytes for v in t.graph.state) for t in (train, plain)]
    assert saved[0] - saved[1] == sum(weights[name].size_bytes for name in fractions) - 4, "a byte per weight, no noise"


def fractions_of(train: TrainGraph) -> list[str]:
    """The weights that have fraction bits."""
    return [v.name.removesuffix(".fraction") for v in train.graph.state if v.name.endswith(".fraction")]


def test_a_mixed_store_takes_whole_small_weights() -> None:
    weights = [Value(name, (count,), "int8") for name, count in zip("abcd", (40, 10, 50, 10), strict=True)]
    assert [v.name for v in fine_weights(weights, "mixed")] == ["b", "d"], "40 more would exceed 110 / 4"
    assert fine_weights(weights, "q8.8") == tuple(weights) and fine_weights(weights, "sr8") == ()
    assert fine_weights(weights[:1], "mixed") == (), "a single weight is more than a quarter of all"
    assert [v.name for v in fine_weights([*weights, Value("e", (50,), "int8")], "mixed")] == ["b", "d"]
    assert [v.name for v in fine_weights([*weights, Value("e", (130,), "int8")], "mixed")] == ["b", "d", "a"]


def test_the_note_names_the_other_store_if_no_tensor_is_small() -> None:
    """Two tensors of equal size: neither is a quarter of all."""
    weights = [Value(name, (40,), "int8") for name in "ab"]
    assert "q8.8 takes 80 B more" in store_note(weights, fine_weights(weights, "mixed"))
    assert "q8.8" not in store_note(weights, weights[:1]) + store_note((), ())


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"head": "int8"}, "deep point fc"),
        ({}, "deep point"),
        ({"optimizer": "momentum", "batch": 4}, "deep point"),
        ({"update": "last:2", "head": "int8"}, "fc"),
    ],
    ids=str,
)
def test_a_mixed_store_counts_trained_int8_weights(options: dict[str, Any], chosen: str) -> None:
    """Neither the float32 head nor frozen layers count; what has no fraction is rounded by noise."""
    train = nets.int8_train(nets.cnn(), store="mixed", **options)
    fine = fractions_of(train)
    assert set(fine) == {f"{layer}_weight" for layer in chosen.split()}
    trained = [v.name for v in train.graph.state if v.name in SIZES and v.dtype == "int8"]
    extra, total = (sum(SIZES[name] for name in names) for names in (fine, trained))
    assert 0 < extra <= total / 4
    expected = f"fractions in {len(fine)} of {len(trained)} tensors ({extra} of {total} B)"
    assert f"--weight-store mixed: {expected}" in train.graph.notes
    for node in train.graph.nodes:
        updated = trained_by(node)
        if updated is not None and updated.name in trained:
            assert ("fraction" in operands(node)) == (updated.name in fine), node.name
    assert len(nets.nodes_of(train, "NoiseTick")) == 1


def test_fine_steps_are_float_sgd() -> None:
    """256 w + fraction moves by 256 lr gradient / s, to a rounding of one 256th."""
    plain = nets.int8_train(nets.cnn(), head="int8", batch=4, learning_rate=0.02)
    train = nets.int8_train(nets.cnn(), head="int8", batch=4, learning_rate=0.02, store="q8.8")
    samples = random_samples(train, 4, 0)
    trainers = [Trainer(plain), Trainer(train)]
    for trainer in trainers:
        trainer.step(samples.x, samples.y)
    moved = 0
    for value in (v for v in plain.graph.state if v.dtype == "int8"):
        w, fraction = (trainers[1].state[name].astype(int) for name in (value.name, f"{value.name}.fraction"))
        start = train.graph.constants[value.name].astype(int)
        free = np.abs(256 * w + fraction) < 256 * 127
        difference = trainers[0].state[value.name] - (w + fraction / 256)
        assert np.abs(difference[free]).max() < 1, "stochastic rounding stays within a unit of the exact weight"
        moved += np.count_nonzero(256 * w + fraction != 256 * start)
    assert moved > 500


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e-39])
def test_rate_outside_its_range_changes_nothing(rate: float, store: WeightStore) -> None:
    train = nets.int8_train(nets.cnn(), head="int8", store=store)
    samples = random_samples(train, 2, 0)
    trainer = Trainer(train)
    trainer.set_rate(rate)
    for i in range(2):
        trainer.step(samples.x[i : i + 1], samples.y[i : i + 1])
    parameters = [v.name for v in train.graph.state if v.name.endswith(("weight", "bias", "beta", ".fraction"))]
    assert len(parameters) == (15 if store == "q8.8" else 10)
    for name in parameters:
        np.testing.assert_array_equal(trainer.state[name], train.graph.constants[name])


@pytest.mark.parametrize("options", [{}, {"optimizer": "momentum"}, {"batch": 4, "accumulate": "inplace"}], ids=str)
@pytest.mark.parametrize("store", STORES)
def test_a_huge_rate_saturates(store: WeightStore, options: dict[str, Any]) -> None:
    """Nothing wraps: weights with a gradient end at +-127, with the sign that the gradient asks for."""
    train = nets.int8_train(nets.cnn(), head="int8", store=store, learning_rate=1e30, **options)
    gentle = nets.int8_train(nets.cnn(), head="int8", store="q8.8", learning_rate=1e-3)
    samples = random_samples(train, 1, 0)
    trainers = [Trainer(train), Trainer(gentle)]
    for trainer in trainers:
        trainer.step(samples.x, samples.y)
    for name in ("point_weight", "last_weight", "fc_weight"):
        start = 256 * train.graph.constants[name].astype(int)
        asked = 256 * trainers[1].state[name].astype(int) + trainers[1].state[f"{name}.fraction"] - start
        free = (asked != 0) & (np.abs(start) < 127 * 256)
        assert np.count_nonzero(free) > free.size // 4
        np.testing.assert_array_equal(trainers[0].state[name][free], 127 * np.sign(asked[free]))


@pytest.mark.parametrize("batch", [1, 4])
def test_reports_tell_weights_from_other_state(batch: int) -> None:
    train = nets.int8_train(nets.cnn(), head="int8", batch=batch, store="q8.8")
    plan = plan_memory(train.graph, PlanOptions(alignment_bytes=8, effort="quick", keep=(train.loss.name,)))
    holdings = analyse(train, plan).holdings
    parameters = {v.name for v in nets.float_train(nets.cnn(), head="int8").graph.state} - {"learning_rate"}
    found = {h.buffer.name for h in holdings if h.tenants[0].category == "weights"}
    assert found == parameters
    assert len(parameters) == 10


# ---- accumulation in place ------------------------------------------------------------------------------------------


def without_exponent_updates(train: TrainGraph) -> TrainGraph:
    """The same training with exponents that stay as the first step found them."""
    nodes = tuple(node for node in train.graph.nodes if node.op != "ExponentUpdate")
    made = {value.name for node in nodes for value in node.outputs}
    updates = tuple(pair for pair in train.graph.updates if pair[1].name in made)
    return replace(train, graph=replace(train.graph, nodes=nodes, updates=updates))


@pytest.mark.parametrize("head", ["fp32", "int8"])
@pytest.mark.parametrize("store", STORES)
def test_in_place_is_that_many_steps_with_constant_exponents(store: WeightStore, head: str) -> None:
    """The weights after a batch are those of four steps at a quarter of the rate, to the byte."""
    train = nets.int8_train(nets.cnn(), head=head, store=store, batch=4, accumulate="inplace", learning_rate=0.08)
    single = nets.int8_train(nets.cnn(), head=head, store=store, learning_rate=0.02)
    samples = random_samples(train, 4, 0)
    ours, theirs = Trainer(train), Trainer(without_exponent_updates(single))
    losses = ours.step(samples.x, samples.y)
    assert losses == [theirs.step(samples.x[i : i + 1], samples.y[i : i + 1])[0] for i in range(4)]
    exponents = {node.inputs[0].name for node in nets.nodes_of(train, "ExponentUpdate")}
    moved = 0
    for name in set(ours.state) - exponents - {"learning_rate"}:
        np.testing.assert_array_equal(ours.state[name], theirs.state[name])
        moved += np.count_nonzero(ours.state[name] != train.graph.constants[name])
    assert moved > 100


def test_exponents_follow_the_largest_peak_of_a_batch() -> None:
    train = nets.int8_train(nets.cnn(), head="int8", batch=4, accumulate="inplace", learning_rate=0.05)
    assert {node.op for node in train.graph.nodes if node.phase == "apply"} == {"ExponentUpdate"}
    samples = random_samples(train, 8, 0)
    trainer = Trainer(train)
    trainer.step(samples.x[:4], samples.y[:4])
    updates = nets.nodes_of(train, "ExponentUpdate")
    before = {node.inputs[0].name: trainer.state[node.inputs[0].name] for node in updates}
    trainer.set_scalars(4)
    peaks: dict[str, int] = {}
    for x, y in zip(samples.x[4:], samples.y[4:], strict=True):
        values = trainer.gather(x.reshape(train.graph.inputs[0].shape), y.reshape(train.label.shape))
        peaks = {node.inputs[0].name: int(values[node.inputs[1].name]) for node in updates}
    again = Trainer(train)
    again.step(samples.x[:4], samples.y[:4])
    again.step(samples.x[4:], samples.y[4:])
    for node in updates:
        name = node.inputs[0].name
        expected = update_exponent(before[name], np.int32(peaks[name]), node.attrs.float_peak)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(again.state[name], expected)


@pytest.mark.parametrize("store", STORES)
def test_in_place_needs_no_sums(store: WeightStore) -> None:
    train = nets.int8_train(nets.cnn(), head="int8", store=store, batch=4, accumulate="inplace")
    sums = [value for value in train.graph.accumulators if value.shape not in ((), (2,))]
    assert sums == []
    assert not nets.nodes_of(train, "QConvSum", "QBiasSum", "Clear")


# ---- saturation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch": 4}, {"optimizer": "momentum"}, {"store": "q8.8"}], ids=str)
def test_saturated_weights_are_counted(options: dict[str, Any]) -> None:
    """Per channel one weight starts at +-127 at least; a huge rate drives all that have a gradient there."""
    train = nets.int8_train(nets.cnn(), head="int8", learning_rate=1e20, **options)
    counted = count_saturations(train, train.graph.constants)
    sizes = [v.elements for v in train.graph.state if v.dtype == "int8" and v.name.endswith("_weight")]
    assert counted is not None and counted.weights == sum(sizes)
    assert counted.before == counted.after >= 6 + 6 + 6 + 12 + 5
    trainer, samples = Trainer(train), random_samples(train, train.batch, 0)
    trainer.step(samples.x, samples.y)
    by_hand = sum(
        int(np.sum(np.abs(trainer.state[v.name].astype(int)) == 127))
        for v in train.graph.state
        if v.name.endswith("_weight")
    )
    after = count_saturations(train, trainer.state)
    assert after == replace(counted, after=by_hand) and by_hand > sum(sizes) // 2


def test_nothing_is_counted_without_int8_weights() -> None:
    train = nets.int8_train(nets.cnn(), "fc/Gemm")
    assert count_saturations(train, train.graph.constants) is None
    floats = nets.float_train(nets.cnn())
    assert count_saturations(floats, floats.graph.constants) is None
