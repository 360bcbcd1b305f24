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
from tests.training.nets import convs, count, ops, shared_weight
from tinytrain_compile.driver.reference import Trainer
from tinytrain_compile.ir.activations import MODES, LowRank
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.names import operand
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training, fuse_updates

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
    shapes = {
        node.origin.partition("/")[0]: operand(node, "x").shape for node in train.graph.nodes if node.op in GRADS
    }
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
