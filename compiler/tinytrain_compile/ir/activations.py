"""Low-rank copies of a trained layer's input, kept for the gradient of its weight instead of the input itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tinytrain_compile.ir.types import Array

ActivationKind = Literal["asi", "subspace"]
"""Kinds of subspaces. asi: they follow the activations, step by step; subspace: they are fixed."""

MODES: Mapping[int, tuple[tuple[str, int], ...]] = {
    4: (("channels", 3), ("height", 1), ("width", 2), ("samples", 0)),
    2: (("features", 1), ("samples", 0)),
}
"""Modes and their axes in the order of ranks: for images (channels last), and for the rows of a dense layer."""


@dataclass(frozen=True)
class RankTrial:
    """Measured ranks. ranks: of all modes, in the order of MODES; size_bytes: in the arena (the core, subspaces that
    follow, and those in the state); error: of the weight's gradient, |dW - exact| / |exact|."""

    ranks: tuple[int, ...]
    size_bytes: int
    error: float


@dataclass(frozen=True, eq=False)
class LowRank:
    """A layer's input kept as a Tucker core and one subspace per mode.

    ranks: by mode, in the order of MODES; missing ones, and those above an axis' length, are that length. A mode of
    full rank is not reduced. bases: fixed subspaces u[rank, length] by axis, one for each reduced mode. steps: for
    fixed subspaces in int8 networks, the real value of 1 in the core: the product of one step for each axis and index
    along it. wide: the real value of 1 in intermediate results of the expansion, by the axis expanded last. error: of
    these ranks, if samples measured it; trials: all measured ranks, the smallest first.
    """

    ranks: tuple[int, ...]
    kind: ActivationKind = "asi"
    bases: Mapping[int, Array] = field(default_factory=dict[int, Array])
    steps: Mapping[int, tuple[float, ...]] = field(default_factory=dict[int, tuple[float, ...]])
    wide: Mapping[int, float] = field(default_factory=dict[int, float])
    error: float | None = None
    trials: tuple[RankTrial, ...] = ()

    def reduced(self, shape: tuple[int, ...]) -> dict[int, int]:
        """Return axis -> rank of the modes of an activation of this shape that lose something.

        Their rank is below their length, or they have a basis of that length.
        """
        ranks = {axis: rank for (_, axis), rank in zip(MODES.get(len(shape), ()), self.ranks, strict=False)}
        fixed = {axis for axis, basis in self.bases.items() if basis.shape[1] == shape[axis]}
        return {axis: rank for axis, rank in ranks.items() if rank < shape[axis] or axis in fixed}


def inward(reduced: Mapping[int, int], shape: tuple[int, ...]) -> list[int]:
    """Return the axes of an activation of this shape, reduced to these ranks, in the order of the fewest products."""
    return sorted(reduced, key=lambda axis: (reduced[axis] / shape[axis], axis))


def outward(reduced: Mapping[int, int], shape: tuple[int, ...]) -> list[int]:
    """Return the axes in the order of the fewest products for the expansion."""
    return sorted(reduced, key=lambda axis: (-reduced[axis] / shape[axis], axis))


@dataclass(frozen=True)
class KeptActivation:
    """Low-rank copy that one weight gradient keeps, and its costs.

    layer: its layer; shape: of the activation; ranks: of all its modes, in the order of MODES. core_bytes,
    subspace_bytes: kept from the forward pass on; state_bytes: of subspaces that are kept from step to step;
    const_bytes: of fixed ones. extra_macs: multiply-accumulates of a step beyond those of the exact gradient (may be
    below 0).
    error, trials: as in LowRank.
    """

    layer: str
    kind: ActivationKind
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    exact_bytes: int
    core_bytes: int
    subspace_bytes: int
    state_bytes: int
    const_bytes: int
    extra_macs: int
    error: float | None = None
    trials: tuple[RankTrial, ...] = ()

    @property
    def kept_bytes(self) -> int:
        """Bytes kept in the arena between the forward pass and the gradient for this layer."""
        return self.core_bytes + self.subspace_bytes
