"""Low-rank copies of int8 activations: against the exact step, and against the published method in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import onnx
import pytest

from testing.planning.kept_inputs import kept_bytes
from tests.quantize import nets
from tests.training.low_rank_nets import GRADS, everywhere, kinds, points
from tests.training.test_low_rank import CONVS, Iteration, correlation, rotated, square
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.candidates.ranks import measured_steps, through_int8
from tinytrain_compile.ir.activations import MODES, LowRank
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.ops.int8.subspace import QModeAttrs
from tinytrain_compile.ops.int8.update import QSumAttrs
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.reference.trainer import Trainer, run_reference
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training, fuse_updates, join_pieces

RANKS = {4: (3, 2, 3, 1), 2: (4, 1)}


def followed(shape: tuple[int, ...]) -> LowRank:
    return LowRank(RANKS[len(shape)])


def whole_channels(shape: tuple[int, ...]) -> LowRank:
    return LowRank((shape[-1], 2, 1) if len(shape) == 4 else RANKS[2])


Model = Callable[[], onnx.ModelProto]


@cache
def known(model: Model = kinds) -> ImportedModel:
    return nets.prepared(model(), "int8")


def int8_graph(
    how: Callable[[tuple[int, ...]], LowRank] | None, store: Any = "sr8", model: Model = kinds, **options: Any
) -> TrainGraph:
    """Dense layers included; how: every layer keeps its input, by its shape."""
    plan = resolve_update(known(model).graph, "all")
    settings: dict[str, Any] = {"learning_rate": 0.05, **options}
    chosen = TrainingOptions(integer=True, **settings)
    exact = build_training(known(model), plan, chosen)
    activations: Mapping[str, LowRank] = {} if how is None else everywhere(exact, how)
    train = build_training(known(model), replace(plan, activations=activations), chosen)
    return quantise(train, QuantOptions(0, store))


@pytest.mark.parametrize("options", [{}, {"optimizer": "momentum", "batch": 2}, {"store": "q8.8"}], ids=str)
def test_full_ranks_give_the_exact_step_to_the_byte(options: dict[str, Any]) -> None:
    """The way back rounds to the steps that went in, so that the bound of dW is 0: six steps end in the same state."""
    exact, low = int8_graph(None, **options), int8_graph(rotated, **options)
    assert len(nets.nodes_of(low, "QModeExpand")) == 5
    samples = random_samples(exact, 12, 0)
    wanted, found = (run_reference(train, samples, 6) for train in (exact, low))
    for before, after in zip(wanted.states, found.states, strict=True):
        assert before.keys() <= after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in before)


def test_one_rank_less_is_another_step() -> None:
    """So that the test above says something."""

    def fewer(shape: tuple[int, ...]) -> LowRank:
        full = rotated(shape)
        channels = len(shape) - 1
        bases = {**full.bases, channels: full.bases[channels][:-1]}
        return LowRank((full.ranks[0] - 1, *full.ranks[1:]), "subspace", bases)

    exact, low = int8_graph(None), int8_graph(fewer)
    samples = random_samples(exact, 6, 0)
    wanted, found = (run_reference(train, samples, 6).states[-1] for train in (exact, low))
    assert any(not np.array_equal(wanted[name], found[name]) for name in wanted)


@pytest.mark.parametrize(
    ("model", "how", "inside"),
    [(kinds, followed, set()), (points, followed, {"narrow/Conv"}), (points, whole_channels, {"narrow/Conv"})],
)
def test_gradients_are_those_of_the_published_method(model: Model, how: Any, inside: set[str]) -> None:
    """Three steps, in float64 on the same integers. inside: gradients in the subspaces are rounded once, behind float32
    sums; for others what is expanded is within half a step, so the gradient within half a step per error it sums."""
    exact, low = (int8_graph(way, model=model, batch=4) for way in (None, how))
    whole, trainer, own = Trainer(exact), Trainer(low), dict[str, Iteration]()
    sums = {node.origin: node for node in nets.nodes_of(low, "QConvSum", "QRoundedSum")}
    assert {origin for origin, node in sums.items() if shown_name(node) == "QRoundedSum"} == inside
    for step in range(3):
        x = random_samples(exact, 3, 0).x[step : step + 1]
        y = np.asarray([[step]], np.int32)
        before = dict(trainer.sums)
        true, values = whole.gather(x, y), trainer.gather(x, y)
        for wanted in nets.nodes_of(exact, "QConvSum"):
            node, (a, error) = sums[wanted.origin], (true[operand(wanted, name).name] for name in ("x", "g"))
            found = values[result(node, "sum").name] - before[operand(node, "sum").name].astype(np.float64)
            assert isinstance(wanted.attrs, QSumAttrs)
            a = a.astype(np.float64) - wanted.attrs.x_zero
            modes = (a.shape[1], a.shape[3]) if "Gemm" in wanted.origin else a.shape
            copy = own.setdefault(node.origin, Iteration(first(trainer, low, node.origin))).seen(a.reshape(modes))
            of_copy = (copy.reshape(a.shape), error.astype(np.float64), *geometry(node.origin))
            if shown_name(node) == "QRoundedSum":
                size = correlation(np.abs(of_copy[0]), np.abs(of_copy[1]), *of_copy[2:])
                assert (np.abs(found - correlation(*of_copy)) <= 0.5 + 1e-5 * size).all(), node.origin
                assert np.abs(found).max() > 100, "so that half a unit says something"
            else:
                check_expanded(low, node, values, found, of_copy)


def geometry(origin: str) -> tuple[tuple[int, int], tuple[int, int], int, int]:
    return CONVS.get(origin.partition("/")[0], ((1, 1), (0, 0), 1, 1))


def check_expanded(low: TrainGraph, node: Node, values: Any, found: np.ndarray, of_copy: tuple[Any, ...]) -> None:
    """of_copy: arguments of `correlation`, the copy in float64."""
    copy, error, *conv = of_copy
    back, zero = expansion(low, node.origin)
    clipped = np.clip(copy, -128 - zero, 127 - zero)
    expanded = (values[back.name].astype(np.float64) - zero).reshape(copy.shape)
    assert np.abs(expanded - clipped).max() <= 0.5 + 1e-3
    np.testing.assert_array_equal(found, correlation(expanded, error, *conv))
    off = np.abs(found - correlation(clipped, error, *conv))
    assert (off <= 0.501 * np.abs(error).sum(axis=(0, 1, 2))[:, None, None, None]).all()


# ---- fixed subspaces ------------------------------------------------------------------------------------------------


@cache
def seen() -> dict[str, list[np.ndarray]]:
    """What the gradient of each weight reads in exact steps of the float network: real numbers."""
    exact = build_training(known(), resolve_update(known().graph, "all"), TrainingOptions(learning_rate=0.05))
    trainer, found = Trainer(exact), dict[str, list[np.ndarray]]()
    for index, x in enumerate(random_samples(exact, 4, 0).x):
        values = trainer.values(x[None], np.asarray([[index % 3]], np.int32))
        for node in nets.nodes_of(exact, *GRADS):
            name = f"{node.origin.partition('/')[0]}_weight"
            found.setdefault(name, []).append(np.asarray(values[operand(node, "x").name], np.float64))
    return found


def fixed(name: str) -> LowRank:
    """Leading singular vectors of all modes but that of samples; what is kept is int8."""
    arrays = seen()[name]
    axes = {3: 3, 1: 2, 2: 4} if arrays[0].ndim == 4 else {1: 4}
    bases = dict[int, np.ndarray]()
    for axis, rank in axes.items():
        fibres = np.concatenate([np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in arrays], axis=1)
        bases[axis] = np.ascontiguousarray(np.linalg.svd(fibres)[0].T[:rank])
    steps, wide = measured_steps(arrays, bases)
    ranks = tuple(axes[axis] if axis in axes else arrays[0].shape[axis] for _, axis in MODES[arrays[0].ndim])
    return LowRank(ranks, "subspace", bases, steps, wide)


def fixed_graph(**options: Any) -> TrainGraph:
    """Every layer keeps an int8 core in fixed subspaces."""
    plan = resolve_update(known().graph, "all")
    chosen = TrainingOptions(integer=True, learning_rate=0.05, **options)
    train = build_training(known(), replace(plan, activations={name: fixed(name) for name in seen()}), chosen)
    return quantise(train, QuantOptions(0, "sr8"))


@pytest.mark.parametrize("sample", range(2))
def test_what_comes_back_is_the_projection_within_what_rounding_can_do(sample: int) -> None:
    """Against the float64 subspaces that the scheme names: half a step for each product, and half a step of the numbers
    of each matrix, carried through (docs/activations.md)."""
    low = fixed_graph()
    assert not nets.nodes_of(low, "ModeProduct", "QModeProduct", "QModeExpand", "KeepSubspace")
    values = Trainer(low).gather(random_samples(low, 4, 0).x[sample : sample + 1], np.asarray([[0]], np.int32))
    producers = low.graph.producers()
    copies = [node for node in low.graph.nodes if any(value.name.endswith(".matrix") for value in node.inputs)]
    assert {node.op for node in copies} == {"QConv", "QModeProductInt8"}
    for name in seen():
        own = [node for node in copies if node.origin.partition("/")[0] == name.removesuffix("_weight")]
        assert len(own) == (2 if name == "fc_weight" else 6)
        q, back = operand(own[0], "x"), result(own[-1], "y")
        if name == "fc_weight":  # rows as an image
            q = operand(producers[q.name], "x")
        quant = low.formats[q.name]
        real = (values[q.name].astype(np.float64) - quant.zero) * quant.scale[0]
        truth, bound = projected(real, fixed(name), quant.scale[0])
        low_end, high_end = ((limit - quant.zero) * quant.scale[0] for limit in (-128, 127))
        found = (values[back.name].astype(np.float64).reshape(real.shape) - quant.zero) * quant.scale[0]
        assert (np.abs(found - np.clip(truth, low_end, high_end)) <= 1.001 * bound).all(), name
        assert bound.mean() < 0.2 * np.abs(real).max(), "so that the bound says something"
        measured = np.clip(through_int8(real, fixed(name)), low_end, high_end)  # what --rank-error is about
        off = (
            np.abs(found - measured) / quant.scale[0]
        )  # of numbers halfway between two steps, one may go the other way
        assert np.quantile(off, 0.75) <= 0.501 and off.max() < 2, name


def projected(x: np.ndarray, how: LowRank, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """x in its subspaces and back, and how far int8 may be from that, element by element; scale: of a step of x."""
    axes = sorted(how.bases, key=lambda axis: len(how.bases[axis]) / x.shape[axis])
    bound, unit = np.zeros_like(x), np.ones((1,) * x.ndim)
    for axis in axes:
        step = np.asarray(how.steps[axis]).reshape([-1 if place == axis else 1 for place in range(x.ndim)])
        x, bound = times(x, bound, how.bases[axis], axis)
        unit = unit * step
        bound = bound + 0.5 * unit
    for axis in reversed(axes):
        step = np.asarray(how.steps[axis]).reshape([-1 if place == axis else 1 for place in range(x.ndim)])
        matrix = (how.bases[axis] * np.asarray(how.steps[axis])[:, None]).T
        x, bound = times(x / step, bound / step, matrix, axis)
        unit = np.take(unit / step, [0], axis)
        bound = bound + 0.5 * (unit * how.wide[axis] if axis in how.wide else scale)
    return x, bound


def times(x: np.ndarray, bound: np.ndarray, matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """A product along an axis, and what it makes of the bound where the rows of the matrix are rounded to int8."""

    def along(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.moveaxis(np.tensordot(values, rows, (axis, 1)), -1, axis)

    off = np.repeat(0.5 / 127 * np.abs(matrix).max(axis=1, keepdims=True), matrix.shape[1], axis=1)
    return along(x, matrix), along(np.abs(x) + bound, off) + along(bound, np.abs(matrix))


def test_full_ranks_in_fixed_subspaces_lose_no_more_than_rounding() -> None:
    """The gradient of every weight, with every mode but that of samples in another basis of full length."""
    errors = {name: full_rank_error(name) for name in seen()}
    assert all(error < 0.06 for error in errors.values()), errors
    assert any(error > 0 for error in errors.values())


def full_rank_error(name: str) -> float:
    """|x back - x| / |x| of real numbers."""
    arrays = seen()[name]
    shape = arrays[0].shape
    bases = {axis: square(shape[axis], axis) for _, axis in MODES[len(shape)] if axis}
    steps, wide = measured_steps(arrays, bases)
    how = LowRank(tuple(shape[axis] for _, axis in MODES[len(shape)]), "subspace", bases, steps, wide)
    back = [through_int8(x, how) for x in arrays]
    missing = sum(float(((x - y) ** 2).sum()) for x, y in zip(arrays, back, strict=True))
    return math.sqrt(missing / sum(float((x**2).sum()) for x in arrays))


def first(trainer: Trainer, train: TrainGraph, origin: str) -> dict[int, np.ndarray]:
    """Subspaces of a layer that the state begins with, by axis."""
    names = {f"{origin}.{name}": axis for modes in MODES.values() for name, axis in modes}
    return {names[name]: train.graph.constants[name] for name in trainer.state if name in names}


def expansion(train: TrainGraph, origin: str) -> tuple[Any, int]:
    """What a layer's gradient reads, and its zero point."""
    (node,) = (each for each in nets.nodes_of(train, "QModeExpand") if each.origin == origin)
    assert isinstance(node.attrs, QModeAttrs)
    return result(node, "y"), node.attrs.zero


def one_by_one(how: LowRank) -> LowRank:
    """For any number of samples, which stay whole."""
    return replace(how, ranks=how.ranks[:-1])


def test_without_an_fpu_no_gradient_is_computed_in_float32() -> None:
    ways = (int8_graph(followed, model=points, fpu=fpu) for fpu in (True, False))
    assert [len(nets.nodes_of(low, "QRoundedUpdate")) for low in ways] == [1, 0]


@pytest.mark.parametrize("head", ["int8", "fp32"])
@pytest.mark.parametrize("how", ["asi", "subspace"])
def test_bytes_are_those_of_the_plan(head: Literal["int8", "fp32"], how: str) -> None:
    """What layers would keep exactly is what they do keep in the exact step: a float head reads float32 numbers, here
    sample by sample; and what is kept is the sum of the copies, as long as every layer has one."""
    model = nets.prepared(kinds(), head)
    plan, chosen = resolve_update(model.graph, "all"), TrainingOptions(integer=True, batch=2, micro_batch=2)
    float_graph = build_training(model, plan, chosen)
    ways = everywhere(float_graph, followed) if how == "asi" else {n: one_by_one(fixed(n)) for n in seen()}
    low = build_training(model, replace(plan, activations=ways), chosen)
    exact, low = (fuse_updates(join_pieces(quantise(train, QuantOptions(0, "sr8")))) for train in (float_graph, low))
    assert len(low.low_rank) == len(nets.nodes_of(float_graph, *GRADS)) == 5
    assert kept_bytes(exact) == sum(item.exact_bytes for item in low.low_rank)
    assert kept_bytes(low) == sum(item.kept_bytes for item in low.low_rank) > 0


def test_no_float_copy_of_an_activation_is_made() -> None:
    """Nor of the network's input: the first product reads int8, the last one writes it."""
    low = int8_graph(followed)
    kept = {operand(node, "x").name for node in nets.nodes_of(low, "QSubspacePower")}
    assert len(kept) == 5 and not nets.nodes_of(low, *GRADS)
    assert not [node for node in nets.nodes_of(low, "Dequantize") if node.inputs[0].name in kept]
    sizes = {node.origin: operand(node, "x").elements for node in nets.nodes_of(low, "QSubspacePower")}
    for node in nets.nodes_of(low, "ModeProduct", "QModeProduct"):
        assert result(node, "y").elements < sizes[node.origin]
