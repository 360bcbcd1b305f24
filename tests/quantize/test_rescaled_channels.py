"""--rescale on: channels whose weights reach +-127 get another scale, and nothing else changes with that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks.models import Network
from tests.e2e import chain
from tests.quantize import nets
from tests.quantize.gradients import real_inputs
from tinytrain_compile.data.samples import random_samples, stored_input
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import OPS, alias_of
from tinytrain_compile.ops.int8.rescale import ChannelRescaleAttrs, rescales
from tinytrain_compile.ops.names import operand
from tinytrain_compile.quantize import (
    QuantOptions,
    WeightStore,
    calibrate,
    count_saturations,
    prepare,
    quantise,
)
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.report.rows.formats import quant_tensors
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

State = dict[str, np.ndarray]
GROWTH = 5.0
"""What the weights of the growing net must be multiplied by."""
STEPS = 600


# ---- weights that must grow -----------------------------------------------------------------------------------------


def growing() -> onnx.ModelProto:
    net = Network("growing", "float[1, 4] x", "float[1, 3] y", seed=5)
    net.node("out", f"y = Identity ({net.dense('fc', 'x', 4, 3)})")
    return net.model()


def grow(
    rescale: bool, store: WeightStore, batch: int = 1, optimizer: str = "sgd"
) -> tuple[TrainGraph, State, list[np.ndarray], list[np.ndarray]]:
    """(int8 graph, last state, real weights after every update, those of the float graph); the first: at the start."""
    model = chain.imported(growing())
    wide = 2 * GROWTH * np.random.default_rng(1).standard_normal((32, 1, 4)).astype(np.float32)
    graph = prepare(calibrate(model.graph, wide), float_head=False)
    rate = 0.005 if optimizer == "sgd" else 0.001
    options = TrainingOptions("mse", optimizer, rate, momentum=0.8, batch=batch)
    floats = build_training(replace(model, graph=graph), resolve_update(graph, "all"), options)
    train = quantise(floats, QuantOptions(0, store, rescale))
    x = stored_input(2.0 * np.random.default_rng(2).standard_normal((STEPS, 1, 4)).astype(np.float32), train)
    start = floats.graph.constants["fc_weight"].astype(np.float64)
    y = (GROWTH * real_inputs(train, x) @ start.T).astype(np.float32)
    scale = np.abs(start).max(axis=1) / (126 if rescale else 127)
    ours, theirs = Trainer(train), Trainer(floats)
    found, expected = [start], [start]
    for i in range(0, STEPS, batch):
        ours.step(x[i : i + batch], y[i : i + batch])
        theirs.step(real_inputs(train, x[i : i + batch]), y[i : i + batch])
        doublings = np.zeros(3)
        if rescale:
            name = "fc_weight.forward_shift"
            doublings = ours.state[name].astype(float) - train.graph.constants[name]
        found.append(units(ours.state, "fc_weight").reshape(3, 4) * (scale * 2**doublings)[:, None])
        expected.append(theirs.state["fc_weight"].astype(np.float64))
    return train, ours.state, found, expected


def units(state: State, name: str) -> np.ndarray:
    """Weights in their unit, fractions included."""
    fraction = state.get(f"{name}.fraction")
    return state[name].astype(np.float64) + (0.0 if fraction is None else fraction / 256)


def distance(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Of trajectories: the largest relative to the largest weight of its time."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True))


GROWING: list[tuple[WeightStore, int, str]] = [
    ("sr8", 1, "sgd"),
    ("q8.8", 1, "sgd"),
    ("sr8", 4, "sgd"),
    ("q8.8", 4, "sgd"),
    ("sr8", 1, "momentum"),
    ("q8.8", 4, "momentum"),
]


@pytest.mark.parametrize(("store", "batch", "optimizer"), GROWING)
def test_weights_grow_past_their_first_scale(store: WeightStore, batch: int, optimizer: str) -> None:
    """With another scale they follow float32; without, they stay where they saturate."""
    train, state, found, expected = grow(True, store, batch, optimizer)
    grown = np.abs(found[-1]).max(axis=1) / np.abs(found[0]).max(axis=1)
    assert grown.min() > 2 and grown.max() > 3
    assert distance(found, expected) < 0.15
    counted = count_saturations(train, state)
    assert counted is not None and (counted.before, counted.after, counted.rescaled) == (0, 0, 3)
    fixed_train, fixed_state, fixed, _ = grow(False, store, batch, optimizer)
    assert (np.abs(fixed[-1]).max(axis=1) <= 1.0001 * np.abs(fixed[0]).max(axis=1)).all()
    assert distance(fixed, expected) > 0.5
    counted = count_saturations(fixed_train, fixed_state)
    assert counted is not None and counted.after >= counted.before >= 3 and counted.rescaled is None


# ---- a rescale changes nothing but the unit -------------------------------------------------------------------------


def rescale_nodes(train: TrainGraph) -> list[Node]:
    return [node for node in train.graph.nodes if rescales(node)]


def forced(train: TrainGraph, state: State) -> State:
    """The state after a rescale of every channel, whatever its weights are; errors have their new exponents at once."""
    result = {name: data.copy() for name, data in state.items()}
    for node in rescale_nodes(train):
        attrs = replace(node.attrs, limit=0)  # type: ignore[call-arg]
        owners = [owner(train, value.name) for value in node.inputs]
        arrays = tuple(result.get(name, train.graph.constants.get(name)) for name in owners)
        after = OPS[node.op].reference(arrays, attrs)  # type: ignore[arg-type]
        result.update(zip(owners, after, strict=False))
        result[exponent_of(train, owners[0])] += np.asarray([1, 0], np.int32)
    return result


def exponent_of(train: TrainGraph, weight: str) -> str:
    """The exponent of the error that a weight is updated with: the operand behind the rate."""
    (update,) = (n for n in train.graph.nodes if n.op == "QUpdate" and n.inputs[0].name == weight)
    assert train.rate is not None
    return update.inputs[[v.name for v in update.inputs].index(train.rate.name) + 1].name


def owner(train: TrainGraph, name: str) -> str:
    """The state tensor whose latest content a value is."""
    made = {out.name: (node, i) for node in train.graph.nodes for i, out in enumerate(node.outputs)}
    while name in made:
        node, index = made[name]
        name = node.inputs[dict(alias_of(node))[index]].name
    return name


def check_unchanged(**options: Any) -> None:
    """The same outputs and the same step of the real parameters before and after a rescale of all channels."""
    train = nets.int8_train(nets.cnn(), head="int8", store="q8.8", rescale=True, learning_rate=0.06, **options)
    samples = random_samples(train, 3 * train.batch, 2)  # of others rounding alone may exceed these bounds in place
    warm = Trainer(train)
    for part in (slice(0, train.batch), slice(train.batch, 2 * train.batch)):
        warm.step(samples.x[part], samples.y[part])
    halved = (*PARAMETERS, *(f"{name}.fraction" for name in PARAMETERS))
    state = {name: data & ~1 if name in halved else data for name, data in warm.state.items()}  # halves are exact
    trainers = [Trainer(replace(train, exponents_known=True)) for _ in range(2)]
    for trainer, given in zip(trainers, (state, forced(train, state)), strict=True):
        trainer.state = given
    plain, doubled = (trainer.infer(samples.x[:1]) for trainer in trainers)
    assert np.abs(plain - doubled).max() < 0.02 * np.abs(plain).max()
    before = [real_parameters(train, trainer.state) for trainer in trainers]
    for name in PARAMETERS:
        np.testing.assert_array_equal(before[0][name], before[1][name])
    for trainer in trainers:
        trainer.step(samples.x[2 * train.batch :], samples.y[2 * train.batch :])
    after = [real_parameters(train, trainer.state) for trainer in trainers]
    for name in PARAMETERS:
        a, b = ((new[name] - old[name]).ravel() for new, old in zip(after, before, strict=True))
        assert np.dot(a, a) > 0
        assert abs(np.dot(a, b) / np.dot(a, a) - 1) < 0.1, name
        assert np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) > 0.99, name


CONVS = ("stem", "deep", "point", "last")
PARAMETERS = [*(f"{layer}_weight" for layer in (*CONVS, "fc")), *(f"{layer}_beta" for layer in CONVS), "fc_bias"]


def real_parameters(train: TrainGraph, state: State) -> State:
    """Weights and biases in the units of the start."""
    result: State = {}
    for node in rescale_nodes(train):
        w, forward, bias = (owner(train, operand(node, name).name) for name in ("w", "forward", "bias"))
        unit = 2.0 ** (state[forward].astype(float) - train.graph.constants[forward])
        weight = units(state, w)
        result[w], result[bias] = weight * unit.reshape(-1, *(1,) * (weight.ndim - 1)), state[bias] * unit
    assert set(result) == set(PARAMETERS)
    return result


UNCHANGED: list[dict[str, Any]] = [{}, {"batch": 3}, {"optimizer": "momentum"}, {"batch": 3, "accumulate": "inplace"}]


@pytest.mark.parametrize("options", UNCHANGED, ids=str)
def test_a_rescale_changes_nothing_but_the_unit(options: dict[str, Any]) -> None:
    check_unchanged(**options)


OPERANDS = ("weight", "forward shift", "error shift", "update shift", "bias", "update shift of the bias")


@pytest.mark.parametrize("forgotten", range(len(OPERANDS)), ids=OPERANDS.__getitem__)
def test_a_forgotten_part_of_a_rescale_is_noticed(forgotten: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = OPS["ChannelRescale"]

    def faulty(arrays: tuple[np.ndarray, ...], attrs: Any) -> tuple[np.ndarray, ...]:
        return tuple(arrays[i] if i == forgotten else a for i, a in enumerate(real.reference(arrays, attrs)))

    monkeypatch.setitem(OPS, real.name, replace(real, reference=faulty))
    with pytest.raises(AssertionError):
        check_unchanged()


def rescaled(
    w: list[int], shifts: tuple[int, int, int, int], bias: int = 0, fraction: list[int] | None = None
) -> list[Any]:
    """A channel after ChannelRescale: [w, forward, error, update shift, bias, its update shift, fraction]."""
    attrs = ChannelRescaleAttrs(True, fraction is not None)
    arrays = [np.asarray([w], np.int8), *(np.asarray([s], np.int8) for s in shifts[:3])]
    arrays += [np.asarray([bias], np.int32), np.asarray(shifts[3:], np.int8)]
    arrays += [] if fraction is None else [np.asarray([fraction], np.int8)]
    return [a.ravel().tolist() for a in OPS["ChannelRescale"].reference(tuple(arrays), attrs)]


def test_halves_are_rounded_away_from_zero() -> None:
    assert rescaled([127, 5, -5, 4, 0], (-3, 2, 7, 1), -7) == [[64, 3, -3, 2, 0], [-2], [3], [5], [-4], [-1]]
    assert rescaled([-127, 1], (0, 0, 0, 0), 7) == [[-64, 1], [1], [1], [-2], [4], [-2]]
    kept = rescaled([126, -126], (-3, 2, 7, 1), -7)
    assert kept == [[126, -126], [-3], [2], [7], [-7], [1]]


def test_fractions_take_part() -> None:
    w, *_, fraction = rescaled([127, 5, -5, 3], (0, 0, 0, 0), fraction=[0, 3, -128, 127])
    values = 256 * np.asarray(w) + fraction
    assert values.tolist() == [127 * 128, 642, -704, 448]
    assert w == [64, 3, -3, 2]


@pytest.mark.parametrize("place", range(4))
def test_a_channel_whose_shifts_have_no_room_keeps_its_scale(place: int) -> None:
    shifts = [100 if i == place and i < 2 else -99 if i == place else 0 for i in range(4)]
    kept = rescaled([127, 6], tuple(shifts), 8)  # type: ignore[arg-type]
    assert kept == [[127, 6], *([s] for s in shifts[:3]), [8], [shifts[3]]]


# ---- which layers, and what is stored -------------------------------------------------------------------------------


def scheme(folder: Path, *layers: tuple[str, str]) -> str:
    """A scheme file of (layer, what is trained)."""
    text = "".join(f'[[update]]\nlayer = "{layer}"\n{what}\n' for layer, what in layers)
    (folder / "scheme.toml").write_text(text)
    return str(folder / "scheme.toml")


def test_layers_that_can_change_their_scales(tmp_path: Path) -> None:
    """All weights of the trained output channels in the arena, and the bias trained."""
    path = scheme(
        tmp_path,
        ("deep/Conv", 'weight = "all"'),
        ("point/Conv", 'weight = [1, 4]\naxis = "out"\nbias = true'),
        ("last/Conv", 'weight = [0, 2, 5]\naxis = "in"\nbias = true'),
        ("fc/Gemm", 'weight = "all"\nbias = true'),
    )
    train = nets.int8_train(nets.cnn(), path, "int8", rescale=True)
    assert {node.inputs[0].name.split("_")[0] for node in rescale_nodes(train)} == {"point", "fc"}
    assert sorted(node.inputs[0].shape[0] for node in rescale_nodes(train)) == [2, 5]
    plain = nets.int8_train(nets.cnn(), path, "int8")
    for name in ("deep_weight", "last_weight.updated"):
        np.testing.assert_array_equal(train.graph.constants[name], plain.graph.constants[name])
    frozen = [t.graph.constants["point_weight.frozen"] for t in (train, plain)]
    np.testing.assert_array_equal(frozen[0], frozen[1])
    for name in ("point_weight.updated", "fc_weight"):
        assert {int(np.abs(row).max()) for row in train.graph.constants[name]} == {126}
        assert {int(np.abs(row).max()) for row in plain.graph.constants[name]} == {127}


def test_nothing_to_rescale_is_said(tmp_path: Path) -> None:
    path = scheme(tmp_path, ("last/Conv", 'weight = 3\naxis = "in"\nbias = true'))
    train = nets.int8_train(nets.cnn(), path, rescale=True)
    plain = nets.int8_train(nets.cnn(), path)
    assert train.graph.nodes == plain.graph.nodes
    assert any("all scales are fixed" in note for note in train.graph.notes)


def test_a_reader_that_keeps_the_unit_of_an_error_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "QConvGradInput", replace(OPS["QConvGradInput"], traits=frozenset()))
    with pytest.raises(AssertionError, match="reads an error of"):
        nets.int8_train(nets.cnn(), rescale=True)


def test_slices_change_their_own_channels_only(tmp_path: Path) -> None:
    path = scheme(tmp_path, ("point/Conv", 'weight = [1, 4]\naxis = "out"\nbias = true'))
    train = nets.int8_train(nets.cnn(), path, rescale=True)
    after = forced(train, {v.name: train.graph.constants[v.name] for v in train.graph.state})
    for role, step, channels in (
        ("forward", 1, [1, 4]),
        ("error", 1, [1, 4]),
        ("weight", -2, [0, 1]),
        ("bias", -2, [1, 4]),
    ):
        name = f"point_weight.updated.{role}_shift"
        moved = after[name].astype(int) - train.graph.constants[name]
        assert np.flatnonzero(moved).tolist() == channels and set(moved[channels]) == {step}


@pytest.mark.parametrize("store", ["sr8", "q8.8"])
def test_tables_are_state(store: WeightStore) -> None:
    """Four bytes per channel with a bias, three without; named in the report; nothing without --rescale on."""
    for model, tables, size in (
        (nets.cnn(), 4 * 5, 4 * (6 + 6 + 6 + 12 + 5)),
        (nets.quantised(), 4 + 3 + 3, 4 * 4 + 3 * 4 + 3 * 5),
    ):
        train = nets.int8_train(model, head="int8", store=store, rescale=True)
        plain = nets.int8_train(model, head="int8", store=store)
        rows = [row for row in quant_tensors(train) if row["kind"] == "shift"]
        assert len(rows) == tables and sum(row["bytes"] for row in rows) == size
        saved, without = (sum(v.size_bytes for v in t.graph.state) for t in (train, plain))
        assert saved - without == size
        assert not rescale_nodes(plain) and "shift" not in {row["kind"] for row in quant_tensors(plain)}
        assert {row["kind"] for row in quant_tensors(plain)} == {row["kind"] for row in quant_tensors(train)} - {
            "shift"
        }


def test_weights_of_a_quantised_model_leave_room() -> None:
    """Only channels at +-127 are quantised anew, and the report says how many."""
    train = nets.int8_train(nets.quantised(), head="int8", rescale=True)
    plain = nets.int8_train(nets.quantised(), head="int8")
    changed = 0
    for name in ("w", "d", "f"):
        ours, theirs = (t.graph.constants[name].reshape(len(t.graph.constants[name]), -1) for t in (train, plain))
        full = np.abs(theirs.astype(int)).max(axis=1) == 127
        changed += int(full.sum())
        np.testing.assert_array_equal(ours[~full], theirs[~full])
        np.testing.assert_array_equal(ours[full], np.rint(theirs[full] * (126 / 127)))
    assert 0 < changed < 13
    assert any(f"3 layers can change scales; {changed} channels were" in note for note in train.graph.notes)
    assert not any("--rescale" in note for note in plain.graph.notes)


def test_a_huge_rate_doubles_every_step() -> None:
    """Nothing wraps: a channel at its limit doubles its scale with every update as long as its shifts have room."""
    train = nets.int8_train(nets.cnn(), head="int8", rescale=True, learning_rate=1e30)
    samples, trainer = random_samples(train, 4, 0), Trainer(train)
    for i in range(4):
        trainer.step(samples.x[i : i + 1], samples.y[i : i + 1])
    moved = trainer.state["fc_weight.forward_shift"].astype(int) - train.graph.constants["fc_weight.forward_shift"]
    assert moved.max() >= 1 and moved.min() >= 0
    assert np.abs(trainer.state["fc_weight"].astype(int)).max() <= 127
    for role in ("error", "weight", "bias"):
        own = trainer.state[f"fc_weight.{role}_shift"].astype(int) - train.graph.constants[f"fc_weight.{role}_shift"]
        np.testing.assert_array_equal(own, moved * (1 if role == "error" else -2))
