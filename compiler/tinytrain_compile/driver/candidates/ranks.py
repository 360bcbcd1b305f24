"""The smallest ranks of low-rank activations whose gradients samples allow, and what rounding to int8 makes of copies.

A layer's error does not depend on what other layers keep: the forward pass and the gradients of data are exact. So
every layer is looked at by itself, on activations and gradients of one exact step per micro-batch. With subspaces that
follow (asi) the iteration is run through the micro-batches as the device runs it, in float64, and the first one is not
counted. Fixed subspaces are those of all micro-batches together. Their error is cross-validated: each part of the
micro-batches is judged by the subspaces of the others, because samples that choose a subspace always fit into it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tinytrain_compile.ir.activations import MODES, ActivationKind, LowRank, RankTrial, inward, outward
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.ops.base import run_node
from tinytrain_compile.ops.int8.subspace import LARGEST, NOTHING, in_steps, rows_in_int8
from tinytrain_compile.training.low_rank import first_subspace

MARGIN = 1.25
"""Headroom over the largest numbers of the samples: other samples have larger ones, and numbers beyond are clamped."""


def along(x: Array, matrix: Array, axis: int) -> Array:
    """Return every fibre of x along an axis times a matrix[rows, length]."""
    return np.moveaxis(np.tensordot(x, matrix, (axis, 1)), -1, axis)


def measured_steps(
    seen: Sequence[Array], bases: Mapping[int, Array]
) -> tuple[dict[int, tuple[float, ...]], dict[int, float]]:
    """Return LowRank.steps and LowRank.wide, by the largest numbers of activations that samples gave, in float64."""
    shape, reduced = seen[0].shape, {axis: len(basis) for axis, basis in bases.items()}
    steps, wide = dict[int, tuple[float, ...]](), dict[int, float]()
    for axis in inward(reduced, shape):
        products = [along(x, bases[axis], axis) for x in seen]
        peaks = np.max(
            [np.abs(np.moveaxis(x, axis, 0)).reshape(reduced[axis], -1).max(axis=1) for x in products], axis=0
        )
        found = in_steps(MARGIN * peaks, NOTHING)
        steps[axis] = tuple(float(step) for step in found)
        seen = [x / _spread(found, axis, x.ndim) for x in products]
    for axis in outward(reduced, shape)[:-1]:
        seen = [along(x, _way_back(bases[axis], steps[axis]), axis) for x in seen]
        peak = np.max([np.abs(x).max() for x in seen], keepdims=True)
        wide[axis] = float(in_steps(MARGIN * peak, NOTHING)[0])
    return steps, wide


def through_int8(x: Array, how: LowRank) -> Array:
    """Return x as its copy in int8 has it, but for rounding to the activation's own format; float64."""
    shape, reduced, unit = x.shape, how.reduced(x.shape), 1.0
    for axis in inward(reduced, shape):
        x = _rounded(along(x, _as_int8(how.bases[axis]), axis) / _spread(how.steps[axis], axis, x.ndim))
    for axis in outward(reduced, shape):
        x = along(x * unit, _as_int8(_way_back(how.bases[axis], how.steps[axis])), axis)
        unit = how.wide.get(axis, 1.0)
        x = _rounded(x / unit) if axis in how.wide else x
    return x


def _way_back(basis: Array, steps: Sequence[float]) -> Array:
    return (basis * np.asarray(steps)[:, None]).T


def _as_int8(matrix: Array) -> Array:
    numbers, scales = rows_in_int8(matrix)
    return numbers * scales[:, None]


def _rounded(x: Array) -> Array:
    return np.clip(np.rint(x), -LARGEST, LARGEST)


def _spread(steps: Sequence[float] | Array, axis: int, dimensions: int) -> Array:
    """Return steps along an axis, to divide by."""
    return np.asarray(steps).reshape(*(-1 if axis == place else 1 for place in range(dimensions)))


FLOAT_BYTES = 4
"""Size of a float32."""
TAILS = tuple(0.5 * 0.5**k for k in range(20))
"""Shares of a mode's squares that ranks leave out, from the coarsest on."""
MOST_TRIALS = 48
"""Rank vectors of a layer whose error is measured, at most."""
FOLDS = 4
"""Parts of the micro-batches if no domains are named; each judges the fixed subspaces of the others."""

Ranks = dict[int, int]
"""Axis -> rank."""


@dataclass(frozen=True, eq=False)
class Pair:
    """What one node makes a weight's gradient of: an activation and the gradient of its layer's output, float64."""

    x: Array
    dy: Array


@dataclass(eq=False)
class LayerRanks:
    """One weight gradient on several micro-batches. nodes: that make it, of the exact step; several, all alike, where
    several layers share the weight: it is their sum. pairs: of each micro-batch, one for each node. element_bytes: of
    an element that is kept exactly; core_bytes: of one of a core in fixed subspaces, others are float32.

    folds: the domain of each micro-batch; (): not known, FOLDS parts in turn.

    Samples come in any order, so that their mode has no fixed subspace: it stays whole. Layers that share a weight have
    the same ranks, the same fixed subspaces, and subspaces of their own that follow.
    """

    nodes: Sequence[Node]
    pairs: Sequence[Sequence[Pair]]
    kind: ActivationKind
    seed: int = 0
    element_bytes: int = FLOAT_BYTES
    core_bytes: int = FLOAT_BYTES
    folds: Sequence[int] = ()
    _grams: dict[int, list[list[Array]]] = field(default_factory=dict[int, list[list[Array]]])
    _rows: dict[tuple[int, int | None], Array] = field(default_factory=dict[tuple[int, "int | None"], Array])
    _trials: dict[tuple[int, ...], RankTrial] = field(default_factory=dict[tuple[int, ...], RankTrial])

    def __post_init__(self) -> None:
        self._shape = self.pairs[0][0].x.shape
        self._folds = self.folds or [index % FOLDS for index in range(len(self.pairs))]
        self._axes = [axis for _, axis in MODES[len(self._shape)]]
        self._open = [axis for axis in self._axes if axis or self.kind == "asi"]
        for axis in self._open:
            self._grams[axis] = [[_gram(pair.x, axis) for pair in each] for each in self.pairs]
        first = 1 if self.kind == "asi" and len(self.pairs) > 1 else 0  # the iteration begins at random in it
        self._exact = {
            i: sum((self._gradient(pair.x, pair.dy) for pair in each), np.zeros(()))
            for i, each in enumerate(self.pairs)
            if i >= first
        }

    def choose(self, bound: float) -> LowRank | None:
        """Return the fewest bytes with an error of at most `bound` that are found; None: exactly takes no more."""
        for tail in TAILS:
            ranks = self._fewest_bytes(self._whole() | {axis: self._rank(axis, tail) for axis in self._open})
            if self._bytes(ranks) >= self._bytes(self._whole()):
                break
            trial = self._tried(ranks)
            if trial is not None and trial.error <= bound:
                return self.low_rank(self._lowered(trial, bound).ranks)
        known = [trial for trial in self._trials.values() if trial.error <= bound]  # for another bound
        return self.low_rank(min(known, key=lambda t: (t.size_bytes, t.error)).ranks) if known else None

    def measured(self, ranks: tuple[int, ...]) -> LowRank:
        """Return these ranks of the user's."""
        whole = [self._shape[axis] for axis in self._axes]
        listed = [min(pair) for pair in zip(ranks, whole, strict=False)] + whole[len(ranks) :]
        asked = dict(zip(self._axes, listed, strict=True))
        return self.low_rank(self._measured(self._whole() | {axis: asked[axis] for axis in self._open}).ranks)

    def low_rank(self, ranks: tuple[int, ...]) -> LowRank:
        """Return ranks that were measured, with their bases where subspaces are fixed."""
        trials = tuple(sorted(self._trials.values(), key=lambda t: (t.size_bytes, t.error)))
        plain = LowRank(ranks, self.kind, error=self._trials[ranks].error, trials=trials)
        return plain if self.kind == "asi" else self._fixed(plain)

    def _fixed(self, plain: LowRank, without: int | None = None) -> LowRank:
        """Return ranks with subspaces, and in int8 networks with steps of what is kept. without: a fold."""
        how = replace(plain, bases=self.bases(plain.reduced(self._shape), without))
        if self.core_bytes == FLOAT_BYTES:
            return how
        seen = [pair.x for index in self._others(without) for pair in self.pairs[index]]
        steps, wide = measured_steps(seen, how.bases)
        return replace(how, steps=steps, wide=wide)

    def bases(self, ranks: Ranks, without: int | None = None) -> dict[int, Array]:
        """Return fixed subspaces by HOSVD over the micro-batches, float64; a row's largest element is positive."""
        return {axis: self._leading(axis, without)[:rank] for axis, rank in ranks.items()}

    def _leading(self, axis: int, without: int | None) -> Array:
        if (axis, without) not in self._rows:
            grams = [self._grams[axis][index] for index in self._others(without)]
            self._rows[axis, without] = _principal(np.sum(grams, axis=(0, 1)))
        return self._rows[axis, without]

    def _others(self, fold: int | None) -> list[int]:
        """Return the micro-batches of other folds; all if there is no other."""
        return [i for i, own in enumerate(self._folds) if own != fold] or list(range(len(self.pairs)))

    def error(self, ranks: tuple[int, ...]) -> float:
        """Return |dW - exact| / |exact|, the root mean square over the micro-batches that count.

        If the samples name domains, it is that of the worst one.
        """
        reduced, plain = LowRank(ranks).reduced(self._shape), LowRank(ranks, self.kind)
        fixed = {} if self.kind == "asi" else {fold: self._fixed(plain, fold) for fold in set(self._folds)}
        follow = [{axis: self._first(node, axis, rank) for axis, rank in reduced.items()} for node in self.nodes]
        squares = dict[int, list[float]]()
        for index, each in enumerate(self.pairs):
            follow = [{a: self._next(a, index, i, u) for a, u in own.items()} for i, own in enumerate(follow)]
            exact = self._exact.get(index)
            norm = 0.0 if exact is None else float(np.linalg.norm(exact))
            if exact is not None and norm > 0:
                copies = (
                    self._gradient_of_copy(pair, fixed.get(self._folds[index], own))
                    for pair, own in zip(each, follow, strict=True)
                )
                square = (float(np.linalg.norm(sum(copies, -exact))) / norm) ** 2
                squares.setdefault(self._folds[index] if self.folds else 0, []).append(square)
        return max((math.sqrt(sum(each) / len(each)) for each in squares.values()), default=0.0)

    def _gradient_of_copy(self, pair: Pair, how: LowRank | Mapping[int, Array]) -> Array:
        """Return how: subspaces by axis, or fixed ones. A gradient is a sum over samples, so that these are left in
        their subspace in both x and dy, which is much less work."""
        if isinstance(how, LowRank) and how.steps:
            return self._gradient(through_int8(pair.x, how), pair.dy)
        subspaces, core, dy = how.bases if isinstance(how, LowRank) else how, pair.x, pair.dy
        ranks = {axis: len(u) for axis, u in subspaces.items()}
        for axis in inward(ranks, pair.x.shape):
            core = along(core, subspaces[axis], axis)
        for axis in outward(ranks, pair.x.shape):
            core = along(core, subspaces[axis].T, axis) if axis else core
        return self._gradient(core, along(dy, subspaces[0], 0) if 0 in subspaces else dy)

    def _first(self, node: Node, axis: int, rank: int) -> Array:
        mode = next(name for name, place in MODES[len(self._shape)] if place == axis)
        name = f"{node.origin or node.name}.{mode}"
        return first_subspace(rank, self._shape[axis], self.seed, name).astype(np.float64)

    def _next(self, axis: int, index: int, place: int, u: Array) -> Array:
        """Return one step of the iteration of a node on a micro-batch."""
        return np.linalg.qr(self._grams[axis][index][place] @ u.T)[0].T

    def _gradient(self, x: Array, dy: Array) -> Array:
        return run_node(self.nodes[0], (x, dy))[0]

    def _whole(self) -> Ranks:
        return {axis: self._shape[axis] for axis in self._axes}

    def _rank(self, axis: int, tail: float) -> int:
        """Return the smallest rank that leaves out no more than this share of the squares along an axis."""
        grams = (gram for each in self._grams[axis] for gram in each)
        values = np.linalg.eigvalsh(sum(gram / max(float(np.trace(gram)), 1e-300) for gram in grams))
        left = np.cumsum(np.maximum(values, 0.0))
        return int(max(1, np.sum(left > tail * left[-1])))

    def _bytes(self, ranks: Mapping[int, int]) -> int:
        """Return bytes of the arena because of these layers: cores, and subspaces that follow, of this step and of the
        state."""
        core = len(self.nodes) * math.prod(ranks.values())
        if ranks == self._whole():
            return self.element_bytes * core
        rows = len(self.nodes) * sum(
            rank * self._shape[axis] for axis, rank in ranks.items() if rank < self._shape[axis]
        )
        return FLOAT_BYTES * (core + 2 * rows) if self.kind == "asi" else self.core_bytes * core

    def _fewest_bytes(self, ranks: Ranks) -> Ranks:
        """Return the same with some modes left whole, which only makes the error smaller, where that takes fewer
        bytes."""
        whole = self._whole()
        choices = itertools.product(*({ranks[axis], whole[axis]} for axis in self._axes))
        return min((dict(zip(self._axes, each, strict=True)) for each in choices), key=self._cost)

    def _cost(self, ranks: Ranks) -> tuple[int, int]:
        return self._bytes(ranks), -sum(ranks.values())

    def _measured(self, ranks: Ranks) -> RankTrial:
        listed = tuple(ranks[axis] for axis in self._axes)
        if listed not in self._trials:
            self._trials[listed] = RankTrial(listed, self._bytes(ranks), self.error(listed))
        return self._trials[listed]

    def _tried(self, ranks: Ranks) -> RankTrial | None:
        """Return the measured ranks; None: not measured yet, and no more are."""
        known = tuple(ranks[axis] for axis in self._axes) in self._trials
        return self._measured(ranks) if known or len(self._trials) < MOST_TRIALS else None

    def _lowered(self, trial: RankTrial, bound: float) -> RankTrial:
        """Return smaller ranks of one mode after another, most bytes first, as long as the error allows it."""
        going = True
        while going:
            going = False
            ranks = dict(zip(self._axes, trial.ranks, strict=True))
            smaller = [
                ranks | {axis: rank - max(1, rank // 6)}
                for axis, rank in ranks.items()
                if rank > 1 and axis in self._open
            ]
            better = (each for each in sorted(smaller, key=self._cost) if self._bytes(each) < trial.size_bytes)
            for each in better:
                lower = self._tried(each)
                if lower is not None and lower.error <= bound:
                    trial, going = lower, True
                    break
        return trial


def _gram(x: Array, axis: int) -> Array:
    flat = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    return flat @ flat.T


def _principal(gram: Array) -> Array:
    """Return the eigenvectors as rows, those of large eigenvalues first, each with its largest element positive."""
    rows = np.linalg.eigh(gram)[1].T[::-1]
    signs = np.sign(rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)])
    return rows * signs[:, None]
