"""Weight gradients from low-rank copies of activations: against the exact ones, and against a form of their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.training.low_rank_nets import GRADS, everywhere, graph, kinds, shared
from tinytrain_compile.ir.activations import MODES, LowRank
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops import new_builder, run_node
from tinytrain_compile.ops.names import operand
from tinytrain_compile.reference.trainer import Trainer


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


def test_layers_that_share_a_weight_keep_a_copy_each() -> None:
    """With full ranks the sum of both gradients is the exact one; with one less it is not."""

    def fewer(shape: tuple[int, ...]) -> LowRank:
        full = rotated(shape)
        return LowRank((shape[-1] - 1,), "subspace", {len(shape) - 1: full.bases[len(shape) - 1][:-1]})

    exact = graph(shared(), {})
    x, y = samples(exact)
    wanted = gradients(exact, x, y)["both_weight"]
    for how, same in ((rotated, True), (fewer, False)):
        low = graph(shared(), {"both_weight": how((1, 10, 10, 4))})
        assert [item.layer for item in low.low_rank] == ["second/Conv", "first/Conv"]
        missing = np.linalg.norm(gradients(low, x, y)["both_weight"] - wanted)
        assert (missing <= 1e-6 * np.linalg.norm(wanted)) == same


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


class Watched:
    """Three steps of the low-rank graph beside the exact one, from the same weights."""

    def __init__(self) -> None:
        self.exact = graph(kinds(), {}, batch=4, micro_batch=4)
        low = everywhere(self.exact, lambda shape: LowRank(RANKS[len(shape)]))
        self.low = graph(kinds(), low, batch=4, micro_batch=4)
        self.trainer, self.plain = Trainer(self.low), Trainer(self.exact)
        self.trainer.state = {name: array.astype(np.float64) for name, array in self.trainer.state.items()}
        self.own: dict[str, Iteration] = {}

    def wanted(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Gradients of the weights of this step, by layer, as the published method has them."""
        self.plain.state |= {name: self.trainer.state[name] for name in self.low.trained}
        values, found = self.plain.values(x, y), dict[str, np.ndarray]()
        for node in self.exact.graph.nodes:
            if node.op not in GRADS:
                continue
            a, dy = (values[operand(node, name).name] for name in ("x", "dy"))
            seen = self.own.setdefault(node.origin, Iteration(self.subspaces(node.origin, a.ndim))).seen(a)
            layer = node.origin.partition("/")[0]
            found[layer] = dy.T @ seen if layer == "fc" else correlation(seen, dy, *CONVS[layer])
        return found

    def subspaces(self, origin: str, rank: int) -> dict[int, np.ndarray]:
        states = {axis: f"{origin}.{name}" for name, axis in MODES[rank]}
        return {axis: self.trainer.state[name] for axis, name in states.items() if name in self.trainer.state}


def test_steps_are_those_of_the_published_method() -> None:
    """Three steps on changing samples: every weight gradient, and what the subspaces of the state span."""
    run = Watched()
    for step in range(3):
        x, y = samples(run.low)
        wanted = run.wanted(x + step, y)
        before = dict(run.trainer.state)
        run.trainer.step(x + step, y)
        for layer, gradient in wanted.items():
            taken = (before[f"{layer}_weight"] - run.trainer.state[f"{layer}_weight"]) * 4  # the mean of four samples
            np.testing.assert_allclose(taken, gradient, rtol=1e-9, atol=1e-12)
        for origin, iteration in run.own.items():
            ours = run.subspaces(origin, 2 if origin.startswith("fc") else 4)
            assert set(ours) == set(iteration.bases)
            for axis, u in ours.items():
                np.testing.assert_allclose(u.T @ u, iteration.bases[axis] @ iteration.bases[axis].T, atol=1e-9)
    assert len(run.own) == 5


# ---- rows that vanish -----------------------------------------------------------------------------------------------


def orthonormal(rows: np.ndarray) -> np.ndarray:
    builder = new_builder(["p"])
    builder.emit("Orthonormalize", (Value("p", rows.shape),))
    return run_node(builder.nodes[0], (rows,))[0]


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((3, 5)),
        np.ones((4, 4)),
        np.asarray([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 1.0]]),
        np.asarray([[np.nan, 1.0, 0.0], [1.0, 0.0, 0.0]]),
        np.asarray([[np.inf, 1.0, 0.0], [1.0, 1.0, 0.0]]),
        np.asarray([[1.0, 1.0], [1.0, 1.0 + 1e-6]]),
    ],
)
def test_rows_are_orthonormal_whatever_was_given(rows: np.ndarray) -> None:
    for dtype, bound in ((np.float64, 1e-12), (np.float32, 2e-6)):
        u = orthonormal(rows.astype(dtype))
        np.testing.assert_allclose(u @ u.T, np.eye(len(rows)), atol=bound)


def test_a_row_that_vanishes_becomes_the_axis_that_the_others_cover_least() -> None:
    u = orthonormal(np.asarray([[3.0, 4.0, 0.0, 0.0], [6.0, 8.0, 0.0, 0.0]]))
    np.testing.assert_allclose(u, [[0.6, 0.8, 0, 0], [0, 0, 1, 0]])
    nothing = orthonormal(np.zeros((2, 3)))
    np.testing.assert_array_equal(nothing, np.eye(3)[:2])


# ---- which gradients ------------------------------------------------------------------------------------------------


def test_modes_of_full_rank_cost_nothing() -> None:
    exact = graph(kinds(), {})
    same = graph(kinds(), everywhere(exact, lambda shape: LowRank(tuple(shape[axis] for _, axis in MODES[len(shape)]))))
    assert [node.op for node in same.graph.nodes] == [node.op for node in exact.graph.nodes]
    assert not same.low_rank


def test_what_is_kept_is_counted_by_hand() -> None:
    """The 1x1 convolution: 5x5x12, ranks 3 of channels, 2 of rows, all columns."""
    low = graph(kinds(), {"point_weight": LowRank((3, 2))})
    (item,) = low.low_rank
    assert (item.layer, item.shape, item.ranks) == ("point/Conv", (1, 5, 5, 12), (3, 2, 5, 1))
    assert item.exact_bytes == 4 * 300
    assert item.core_bytes == 4 * 3 * 2 * 5
    assert item.subspace_bytes == item.state_bytes == 4 * (3 * 12 + 2 * 5)
    forward = 2 * 300 * (3 + 2) + (2 * 12 * 3 * 2 + 2 * 5 * 2 * 1) + 300 * 3 + 75 * 2  # powers, rows, cores
    backward = 250 * 2 + 2 * 5 * 10 * 3 + 10 * 3 * 12  # less than to expand the core: 30 * 5 + 250 * 3
    assert item.extra_macs == forward + backward - 25 * 12 * 10
