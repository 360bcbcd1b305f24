"""Where the numbers of constants come from, so that one weight of the file becomes one parameter.

A weight may reach several places of the graph in several forms: transposed, cut, or multiplied into something else.
Constants of the graph that hold the same elements of one weight, and of which one is trained, would drift apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.imported import FileNumbers, ParameterSource
from tinytrain_compile.ir.types import Array

Lay = Callable[[Array], Array]
"""Moves the elements of an array, whatever they are."""
Indices = NDArray[np.int64]


def as_it_is(array: Array) -> Array:
    """The lay of a weight that is used in its own shape."""
    return array


@dataclass(frozen=True, eq=False)
class Origin:
    """Where the elements of a constant come from.

    base: the initializer, or the table computed from some, whose elements these are; shape: of the base.
    lays: bring an array of that shape into the constant's, one after the other. parents: what a computed table was
    computed from.
    """

    base: str
    shape: tuple[int, ...]
    lays: tuple[Lay, ...] = ()
    parents: tuple[Origin, ...] = ()

    def laid(self, lay: Lay) -> Origin:
        """The origin of what `lay` makes of the constant."""
        return replace(self, lays=(*self.lays, lay))

    def lay(self, array: Array) -> Array:
        """An array of the base's shape, as the constant holds it."""
        for lay in self.lays:
            array = lay(array)
        return array

    def indices(self) -> Indices:
        """The place in the base of every element."""
        return self.lay(np.arange(math.prod(self.shape), dtype=np.int64).reshape(self.shape))

    def roots(self) -> frozenset[str]:
        """The initializers that the elements depend on."""
        return frozenset((self.base,)).union(*(parent.roots() for parent in self.parents))

    def touched(self, root: str) -> Indices:
        """Which elements of an initializer (or table) the constant depends on, flat."""
        if self.base == root:
            return np.unique(self.indices())
        found = [parent.touched(root) for parent in self.parents if root in parent.roots()]
        return np.unique(np.concatenate(found))


@dataclass(frozen=True, eq=False)
class Fold:
    """What was multiplied into the elements of a constant and added to them, one number each for its first axis.

    origins: where these numbers come from.
    """

    origins: tuple[Origin | None, ...]
    factor: NDArray[np.float64]
    offset: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Claim:
    """One constant of the graph. origins: of its elements, and of what was multiplied into them (`fold`).

    group: constants that stand for one layer together share it: what their elements have in common is no conflict.
    """

    name: str
    group: str
    origins: tuple[Origin, ...]
    fold: Fold | None = None

    def source(self, tensors: Mapping[str, FileNumbers]) -> ParameterSource:
        """Which numbers of the file the elements are."""
        origin, fold = self.origins[0], self.fold
        factor, offset = (np.ones(1), np.zeros(1)) if fold is None else (fold.factor, fold.offset)
        return ParameterSource(tensors[origin.base], origin.indices(), factor, offset)


def tied_weights(claims: Iterable[Claim], trained: frozenset[str]) -> frozenset[str]:
    """Names of the weights of which an element is in several constants of the graph, a trained one among them."""
    by_root: dict[str, list[tuple[Claim, Origin]]] = {}
    for claim in claims:
        for origin in claim.origins:
            for root in origin.roots():
                by_root.setdefault(root, []).append((claim, origin))
    return frozenset(root for root, uses in by_root.items() if _conflict(root, uses, trained))


def _conflict(root: str, uses: list[tuple[Claim, Origin]], trained: frozenset[str]) -> bool:
    """Whether groups overlap. What one computed table holds counts as one: it has a conflict of its own, if any."""
    groups: Mapping[str, list[Origin]] = {}
    for claim, origin in uses:
        groups.setdefault(claim.group if origin.base == root else f"table {origin.base}", []).append(origin)
    if len(groups) < 2 or not any(claim.name in trained for claim, _ in uses):
        return False
    touched = [np.unique(np.concatenate([o.touched(root) for o in origins])) for origins in groups.values()]
    return len(np.unique(np.concatenate(touched))) < sum(len(part) for part in touched)


@dataclass(frozen=True)
class Rearrangement:
    """Reshape to `dims`, transpose by `perm`: what brings one arrangement of a weight into another, up to its shape."""

    dims: tuple[int, ...]
    perm: tuple[int, ...]


def rearrangement(own: Indices, wanted: Indices) -> Rearrangement | None:
    """What brings the elements that lie in the order `own` into the order `wanted`; None if axes do not tell."""
    if own.size != wanted.size:
        return None
    place = np.empty(own.size, np.int64)
    place[own.reshape(-1)] = np.arange(own.size)
    rest = place[wanted.reshape(-1)]
    order = rest
    axes: list[tuple[int, int]] = []
    """(stride, length) of the axes of the result, the last one first."""
    while rest.size > 1:
        stride = int(rest[1] - rest[0])
        steps = np.flatnonzero(np.diff(rest) != stride)
        length = int(steps[0]) + 1 if steps.size else rest.size
        if stride < 1 or rest.size % length:
            return None
        axes.insert(0, (stride, length))
        rest = rest[::length]
    lying = sorted(range(len(axes)), key=lambda axis: -axes[axis][0])
    dims = tuple(axes[axis][1] for axis in lying)
    perm = tuple(lying.index(axis) for axis in range(len(axes)))
    found = np.arange(own.size).reshape(dims).transpose(perm) if dims else np.zeros(1, np.int64)
    return Rearrangement(dims, perm) if np.array_equal(found.reshape(-1), order) else None
