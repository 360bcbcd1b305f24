"""Weight gradients from low-rank copies of activations: against the exact ones, and against a form of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from testing.models import Network
from tests.e2e import chain
from tinytrain_compile.driver.reference import Trainer
from tinytrain_compile.ir.activations import MODES, LowRank
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.names import operand
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

RATE = 1.0


def kinds() -> onnx.ModelProto:
    """A 3x3 convolution with stride 2, a depthwise one, a grouped one, a 1x1 and a dense layer."""
    net = Network("kinds", "float[1, 4, 10, 10] x", "float[1, 3] y", seed=5)
    shapes = (
        ("dense3", (8, 4, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
        ("depthwise", (8, 1, 3, 3), "pads = [1, 1, 1, 1], group = 8"),
        ("grouped", (12, 4, 3, 1), "pads = [1, 0, 1, 0], group = 2"),
        ("point", (10, 12, 1, 1), ""),
    )
    x = "x"
    for name, shape, attributes in shapes:
        weight = net.weight(f"{name}_weight", *shape)
        text = f" <{attributes}>" if attributes else ""
        x = net.relu(net.node(f"{name}/Conv", f"{name} = Conv{text} ({x}, {weight})"))
    flat = net.node("flat", f"flat = Flatten ({x})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 250, 3)})")
    return net.model()


def graph(
    model: onnx.ModelProto, activations: Mapping[str, LowRank], update: str = "all", **options: Any
) -> TrainGraph:
    known = chain.imported(model)
    plan = replace(resolve_update(known.graph, update), activations=activations)
    return build_training(known, plan, TrainingOptions(learning_rate=RATE, **options))


def gradients(train: TrainGraph, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """What a step of SGD at rate 1 takes from each parameter, in the precision of x."""
    trainer = Trainer(train)
    before = {name: trainer.state[name].astype(x.dtype) for name in train.trained}
    trainer.state = {n: a.astype(x.dtype) if a.dtype.kind == "f" else a for n, a in trainer.state.items()}
    trainer.step(x, y)
    return {name: before[name] - trainer.state[name] for name in before}


def samples(train: TrainGraph, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((train.micro_batch, *train.graph.inputs[0].shape[1:])).astype(dtype)
    return x, rng.integers(0, 3, (train.micro_batch, 1)).astype(np.int32)


def square(length: int, seed: int) -> np.ndarray:
    """An orthonormal basis of the whole axis."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((length, length)))[0].T


def activations_of(train: TrainGraph) -> dict[str, tuple[int, ...]]:
    """Weight -> the shape of what its gradient reads."""
    shapes = {node.origin.partition("/")[0]: operand(node, "x").shape for node in train.graph.nodes if node.op in GRADS}
    return {name: shapes[name.removesuffix("_weight")] for name in train.trained if name.endswith("_weight")}


GRADS = ("ConvGradWeight", "GemmGradWeight")


def everywhere(train: TrainGraph, how: Any) -> dict[str, LowRank]:
    return {name: how(shape) for name, shape in activations_of(train).items()}


def rotated(shape: tuple[int, ...]) -> LowRank:
    """Every mode in another basis of the same length: the gradient is the exact one."""
    bases = {axis: square(shape[axis], axis) for _, axis in MODES[len(shape)]}
    return LowRank(tuple(shape[axis] for _, axis in MODES[len(shape)]), "subspace", bases)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-6), (np.float32, 1e-5)])
def test_full_ranks_give_the_exact_gradient(batch: int, dtype: type, bound: float) -> None:
    exact = graph(kinds(), {}, batch=batch, micro_batch=batch)
    low = graph(kinds(), everywhere(exact, rotated), batch=batch, micro_batch=batch)
    assert len(low.low_rank) == 5
    x, y = samples(exact, dtype)
    wanted, found = gradients(exact, x, y), gradients(low, x, y)
    for name, gradient in wanted.items():
        assert np.linalg.norm(found[name] - gradient) <= bound * np.linalg.norm(gradient), name


# ---- the published method, written for itself in float64 ------------------------------------------------------------


def unfolded(a: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1)


def through(a: np.ndarray, bases: Mapping[int, np.ndarray]) -> np.ndarray:
    """a, projected onto the columns of a basis of each of these axes."""
    for axis, basis in bases.items():
        a = np.moveaxis(np.tensordot(basis @ basis.T, a, (1, axis)), 0, axis)
    return a


class Iteration:
    """Subspaces by axis as columns: V = A^T U, U = QR(A V), as the paper has it."""

    def __init__(self, first: Mapping[int, np.ndarray]) -> None:
        self.bases = {axis: u.T.astype(np.float64) for axis, u in first.items()}

    def seen(self, a: np.ndarray) -> np.ndarray:
        """The activation as its low-rank copy has it, after a step on it."""
        for axis, u in self.bases.items():
            flat = unfolded(a, axis)
            self.bases[axis] = np.linalg.qr(flat @ (flat.T @ u))[0]
        return through(a, self.bases)


def correlation(a: np.ndarray, dy: np.ndarray, kernel: tuple[int, int], pad: tuple[int, int], stride: int, groups: int):
    """dw[o, r, s, i] of a convolution, window by window."""
    channels = a.shape[3]
    padded = np.pad(a, ((0, 0), (pad[0], pad[0]), (pad[1], pad[1]), (0, 0)))
    per_in, per_out = channels // groups, dy.shape[3] // groups
    dw = np.zeros((dy.shape[3], *kernel, per_in))
    for b, y, x, o in np.ndindex(*dy.shape):
        first = o // per_out * per_in
        rows, columns = slice(y * stride, y * stride + kernel[0]), slice(x * stride, x * stride + kernel[1])
        dw[o] += dy[b, y, x, o] * padded[b, rows, columns, first : first + per_in]
    return dw


CONVS = {
    "dense3": ((3, 3), (1, 1), 2, 1),
    "depthwise": ((3, 3), (1, 1), 1, 8),
    "grouped": ((3, 1), (1, 0), 1, 2),
    "point": ((1, 1), (0, 0), 1, 1),
}
"""Kernel, padding, stride, groups of `kinds`."""
RANKS = {4: (3, 2, 3, 2), 2: (4, 2)}


def test_steps_are_those_of_the_published_method() -> None:
    """Three steps on changing samples: every weight gradient, and what the subspaces of the state span."""
    exact = graph(kinds(), {}, batch=4, micro_batch=4)
    low = graph(kinds(), everywhere(exact, lambda shape: LowRank(RANKS[len(shape)])), batch=4, micro_batch=4)
    own: dict[str, Iteration] = {}
    trainer, plain = Trainer(low), Trainer(exact)
    trainer.state = {n: a.astype(np.float64) for n, a in trainer.state.items()}
    for step in range(3):
        x, y = samples(low)
        x = x + step
        before = {n: trainer.state[n] for n in low.trained}
        plain.state |= before
        values = plain.values(x, y)
        for node in exact.graph.nodes:
            if node.op not in GRADS and "GradWeight" not in node.op:
                continue
            a, dy = (values[operand(node, name).name] for name in ("x", "dy"))
            layer = node.origin.partition("/")[0]
            states = {
                axis: trainer.state[f"{node.origin}.{name}"]
                for name, axis in MODES[a.ndim]
                if f"{node.origin}.{name}" in trainer.state
            }
            seen = own.setdefault(layer, Iteration(states)).seen(a)
            before[f"{layer}_weight.wanted"] = dy.T @ seen if layer == "fc" else correlation(seen, dy, *CONVS[layer])
        trainer.step(x, y)
        for layer, iteration in own.items():
            taken = (before[f"{layer}_weight"] - trainer.state[f"{layer}_weight"]) * 4  # divided by four samples
            np.testing.assert_allclose(taken, before[f"{layer}_weight.wanted"], rtol=1e-9, atol=1e-12)
            for axis, basis in iteration.bases.items():
                name = next(name for name, place in MODES[4 if layer != "fc" else 2] if place == axis)
                origin = "fc/Gemm" if layer == "fc" else f"{layer}/Conv"
                u = trainer.state[f"{origin}.{name}"]
                np.testing.assert_allclose(u.T @ u, basis @ basis.T, atol=1e-9)
    assert len(own) == 5
