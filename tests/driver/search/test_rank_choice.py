"""Ranks that samples measure: the error is the one that training has, and what is chosen keeps to the bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from testing.ops.case import make
from tests.e2e import chain
from tests.training.low_rank_nets import graph, kinds, shared
from tinytrain_compile.driver.candidates import ranks as rank_choice
from tinytrain_compile.driver.candidates.low_rank import gradient_nodes
from tinytrain_compile.driver.candidates.ranks import LayerRanks, Pair
from tinytrain_compile.ir.activations import MODES, ActivationKind, LowRank
from tinytrain_compile.ir.types import ELEMENT_BYTES, Node
from tinytrain_compile.ops.conv_form import ConvAttrs
from tinytrain_compile.ops.int8.subspace import rows_in_int8
from tinytrain_compile.ops.names import operand
from tinytrain_compile.reference.trainer import Trainer

SHAPE = (2, 8, 8, 12)


def node_of(x: np.ndarray, dy: np.ndarray) -> Node:
    return make("ConvGradWeight", (x, dy), ConvAttrs((3, 3), pads=(1, 1, 1, 1)), images=(0, 1)).node()


def layer(
    kind: ActivationKind, noise: float = 0.0, count: int = 4, element_bytes: int = ELEMENT_BYTES["float32"]
) -> LayerRanks:
    """Activations of rank 3, 2, 2 in the same subspaces, and noise."""
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((length, rank)) for length, rank in ((8, 2), (8, 2), (12, 3))]
    pairs: list[tuple[Pair]] = []
    for _ in range(count):
        x = np.einsum("bijk,yi,xj,ck->byxc", rng.standard_normal((2, 2, 2, 3)), *factors)
        pairs.append((Pair(x + noise * rng.standard_normal(SHAPE), rng.standard_normal((2, 8, 8, 5))),))
    return LayerRanks([node_of(pairs[0][0].x, pairs[0][0].dy)], pairs, kind, 0, element_bytes, element_bytes)


@pytest.mark.parametrize("kind", ["asi", "subspace"])
def test_true_ranks_lose_nothing_and_one_less_does(kind: ActivationKind) -> None:
    ranks = layer(kind)
    assert ranks.error((3, 2, 2, 2)) < 1e-9
    assert all(ranks.error(fewer) > 1e-2 for fewer in ((2, 2, 2, 2), (3, 1, 2, 2), (3, 2, 1, 2)))
    chosen = ranks.choose(1e-6)  # a mode that stays whole needs no subspace, which may be smaller
    assert chosen is not None and chosen.ranks[:3] == ((12, 2, 2) if kind == "asi" else (3, 2, 2))


@pytest.mark.parametrize("bound", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("kind", ["asi", "subspace"])
def test_what_is_chosen_keeps_to_the_bound(kind: ActivationKind, bound: float) -> None:
    ranks = layer(kind, noise=0.3)
    chosen = ranks.choose(bound)
    if chosen is None:
        assert bound == 0.02, "noise of full rank: exactly takes no more"
        return
    assert chosen.error is not None and chosen.error <= bound
    assert chosen.error == ranks.error(chosen.ranks)
    assert list(chosen.trials) == sorted(chosen.trials, key=lambda trial: (trial.size_bytes, trial.error))


@pytest.mark.parametrize("kind", ["asi", "subspace"])
def test_few_ranks_are_measured(kind: ActivationKind) -> None:
    """Each trial goes through all samples. For 35 bounds, squares that fall slowly get 48; 87 if nobody counts."""
    rng, shape = np.random.default_rng(0), (2, 16, 16, 24)
    falling = np.einsum("n,h,w,c->nhwc", *((1.0 + np.arange(length)) ** -0.5 for length in shape))
    pairs = [(Pair(rng.standard_normal(shape) * falling, rng.standard_normal((*shape[:3], 3))),) for _ in range(3)]
    ranks = LayerRanks([node_of(pairs[0][0].x, pairs[0][0].dy)], pairs, kind)
    found = [ranks.choose(percent / 100) for percent in range(80, 10, -2)]
    assert found[0] is not None
    assert max(len(how.trials) for how in found if how is not None) <= 64


@pytest.mark.parametrize("kind", ["asi", "subspace"])
def test_what_was_measured_for_another_bound_is_taken(kind: ActivationKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more ranks may be measured, the fewest bytes of those that were."""
    ranks = layer(kind, noise=0.3)
    fine = ranks.choose(0.3)
    assert fine is not None
    monkeypatch.setattr(rank_choice, "MOST_TRIALS", len(fine.trials))
    again = ranks.choose(0.8)
    assert again is not None and again.trials == fine.trials
    fitting = [trial for trial in fine.trials if trial.error <= 0.8]
    assert again.ranks == min(fitting, key=lambda trial: trial.size_bytes).ranks


def test_samples_are_not_judged_by_the_subspace_that_they_chose() -> None:
    """Two domains with subspaces of their own: each is judged by that of the other, but four parts have both."""
    rng, pairs = np.random.default_rng(3), list[tuple[Pair]]()
    domains = [number // 6 for number in range(12)]
    channels = [rng.standard_normal((12, 2)) for _ in range(2)]
    for own in domains:
        x = rng.standard_normal((2, 8, 8, 2)) @ channels[own].T
        pairs.append((Pair(x, rng.standard_normal((2, 8, 8, 5))),))
    nodes = [node_of(pairs[0][0].x, pairs[0][0].dy)]
    assert LayerRanks(nodes, pairs, "subspace").error((4, 8, 8, 2)) < 1e-6
    assert LayerRanks(nodes, pairs, "subspace", folds=domains).error((4, 8, 8, 2)) > 0.5
    noise = [(Pair(rng.standard_normal(SHAPE), each[0].dy),) for each in pairs[:4]]
    assert LayerRanks(nodes, noise, "subspace").error((11, 8, 8, 2)) > LayerRanks(nodes, noise[:1], "subspace").error(
        (11, 8, 8, 2)
    )


def test_fixed_subspaces_in_int8_count_what_rounding_costs() -> None:
    """Of true ranks that is all there is; a core takes a byte a number."""
    ranks = layer("subspace", count=16, element_bytes=1)
    assert 1e-3 < ranks.error((3, 2, 2, 2)) < 0.1
    chosen = ranks.choose(0.1)
    assert chosen is not None and chosen.ranks == (3, 2, 2, 2)
    assert [t.size_bytes for t in chosen.trials if t.ranks == chosen.ranks] == [3 * 2 * 2 * 2]
    assert set(chosen.steps) == {1, 2, 3} and len(chosen.wide) == 2
    assert not layer("subspace").measured((3, 2, 2)).steps


@pytest.mark.parametrize("dead", [False, True])
def test_steps_of_what_is_always_zero_are_numbers(dead: bool) -> None:
    """A channel, a row and singular values that are 0 but for rounding; or everything."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 4, 4, 1)) * np.ones(6) * (not dead)
    x[..., 2] *= 1e-18
    x[:, 1] = 0
    ranks = LayerRanks([node_of(x, x[..., :2])], [[Pair(x, x[..., :2])]], "subspace", 0, 1, 1)
    how = ranks.measured((6, 4, 4))
    assert all(1e-6 < step < 1e3 for steps in how.steps.values() for step in steps)
    assert how.error is not None and how.error < 0.1
    for axis, steps in how.steps.items():
        _, scales = rows_in_int8((how.bases[axis] * np.asarray(steps)[:, None]).T)
        assert (scales > 1e-9).all()


def test_bases_are_the_same_in_every_run_and_orthonormal() -> None:
    first, second = (layer("subspace", 0.3).choose(0.4) for _ in range(2))
    assert first is not None and second is not None and first.bases
    for axis, u in first.bases.items():
        np.testing.assert_array_equal(u, second.bases[axis])
        np.testing.assert_allclose(u @ u.T, np.eye(len(u)), atol=1e-12)
        assert (u[np.arange(len(u)), np.abs(u).argmax(axis=1)] > 0).all()


def error_of_training(model: onnx.ModelProto, weight: str, ranks: tuple[int, ...]) -> tuple[float, float]:
    """Of a weight's gradient, measured and in training: four micro-batches through the training graph at rate 0, beside
    the exact one. Gradients are what a step at rate 1 takes."""
    exact, low = graph(model, {}), graph(model, {weight: LowRank(ranks)})
    nodes = gradient_nodes(chain.imported(model), exact)[weight]
    rng = np.random.default_rng(2)
    pairs, squares = list[tuple[Pair, ...]](), list[float]()
    plain, trainer = Trainer(exact), Trainer(low)
    first = {name: trainer.state[name].astype(np.float64) for name in exact.trained}
    for index in range(4):
        x, y = rng.standard_normal((1, 10, 10, 4)).astype(np.float32), np.asarray([[index % 3]], np.int32)
        for each in (plain, trainer):
            each.state |= first
        values, found = plain.values(x, y), list[np.ndarray]()
        pairs.append(tuple(Pair(*(np.asarray(values[operand(node, n).name]) for n in ("x", "dy"))) for node in nodes))
        for each in (plain, trainer):
            each.step(x, y)
            found.append(first[weight] - each.state[weight])
        squares.append(float(np.linalg.norm(found[1] - found[0]) / np.linalg.norm(found[0])) ** 2)
    whole = operand(nodes[0], "x").shape
    asked = [*ranks, *(whole[axis] for _, axis in MODES[4][len(ranks) :])]
    return LayerRanks(nodes, pairs, "asi").error(tuple(asked)), float(np.sqrt(np.mean(squares[1:])))


@pytest.mark.parametrize(("model", "weight"), [(kinds, "point_weight"), (shared, "both_weight")])
def test_the_error_is_that_of_training(model: Callable[[], onnx.ModelProto], weight: str) -> None:
    """Of a weight that two layers read, it is that of the sum of both."""
    measured, trained = error_of_training(model(), weight, (3, 3, 3))
    assert measured == pytest.approx(trained, rel=1e-4)
    assert measured > 0.05
