"""Facts about each ONNX tensor during the import: shape, axis order, and where its numbers come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.imported import FileNumbers, ParameterSource
from tinytrain_compile.ir.types import Array, DType, Value

# ---- entries and axis orders -----------------------------------------------------------------------------------------
# What the importer knows of each ONNX tensor, and the arithmetic of axis orders. An order says for every axis of an
# IR value which ONNX axis it holds; -1 is an axis of size 1 that ONNX does not have (signals are images of height 1).
# Every ONNX axis occurs exactly once.

Order = tuple[int, ...]
UNIT = -1
"""In an order: an axis of size 1 that ONNX does not have."""
KINDS: Mapping[str, DType] = {"f": "float32", "b": "uint8", "i": "int32", "u": "int32"}
"""Kind of an array of the file -> type of what stands for it in the graph; uint8 holds truth values."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One ONNX tensor during import.

    shape: the ONNX shape.
    value, order: the IR value and its axis order; None for a tensor that is known at compile time.
    array: the data of such a tensor, in ONNX order.
    source: the ONNX initializer that the data comes from (through views); "" for computed tables.
    origin: of the elements of floating-point data (None for other data).
    columns: only for a flattened channels-last image: the ONNX index of each element of the last axis.
    """

    shape: tuple[int, ...]
    value: Value | None = None
    order: Order = ()
    array: Array | None = None
    source: str = ""
    columns: tuple[int, ...] | None = None
    origin: Origin | None = None

    def laid(self, lay: Lay) -> Entry:
        """Return the constant with its elements moved."""
        array = lay(self.data)
        origin = None if self.origin is None else self.origin.laid(lay)
        return replace(self, shape=tuple(array.shape), array=array, origin=origin)

    @property
    def dtype(self) -> DType:
        """Type in the graph: real numbers, integers, or truth values (uint8)."""
        return KINDS[self.data.dtype.kind] if self.value is None else self.value.dtype

    @property
    def is_constant(self) -> bool:
        """Whether the tensor is known at compile time."""
        return self.array is not None

    @property
    def data(self) -> Array:
        """The data of a constant."""
        assert self.array is not None, "not a constant"
        return self.array

    @property
    def computed(self) -> Value:
        """The IR value of a tensor that is not known at compile time."""
        assert self.value is not None, "a constant"
        return self.value

    @property
    def rank(self) -> int:
        """Number of ONNX axes."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def constant_entry(array: Array, source: str = "", origin: Origin | None = None) -> Entry:
    """Return the entry of a tensor that is known at compile time."""
    return Entry(tuple(array.shape), array=array, source=source, origin=origin if array.dtype.kind == "f" else None)


def initial_entry(array: Array, name: str, source: str = "") -> Entry:
    """Return the entry of a constant that comes from nothing else; `source` as in Entry."""
    return constant_entry(array, source, Origin(name, tuple(array.shape)))


def plain(rank: int) -> Order:
    """Return ONNX's own order."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Return NHWC for images (rank 4), N1WC for signals (rank 3)."""
    return (0, 2, 3, 1) if rank == 4 else (0, UNIT, 2, 1)


def is_time_first(shape: tuple[int, ...]) -> bool:
    """Tell whether a shape can be (time, 1 sample, ...)."""
    return len(shape) in (2, 3) and shape[0] > 1 and shape[1] == 1


def time_second(rank: int) -> Order:
    """Return the order with samples, then time, of a tensor that has them the other way round."""
    return (1, 0, *range(2, rank))


def ir_shape(shape: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Return shape of the IR value that holds an ONNX tensor in this order."""
    return tuple(1 if axis == UNIT else shape[axis] for axis in order)


def significant(shape: tuple[int, ...], order: Order) -> list[int]:
    """Return the ONNX axes longer than 1, in IR order: two orders that agree here differ by a reshape only."""
    return [axis for axis in order if axis != UNIT and shape[axis] > 1]


def transposition(order: Order, target: Order) -> tuple[int, ...]:
    """Return the permutation of IR axes from `order` to `target`, up to axes of size 1 (the rest is at the end)."""
    free = [index for index, axis in enumerate(order) if axis == UNIT or axis not in target]
    perm: list[int] = []
    for axis in target:
        if axis != UNIT and axis in order:
            perm.append(order.index(axis))
        elif free:
            perm.append(free.pop(0))
    return (*perm, *free)


def arranged(array: Array, order: Order) -> Array:
    """Return an ONNX array in an IR order; ONNX axes that the order leaves out must have size 1."""
    real = [axis for axis in order if axis != UNIT]
    left_out = [axis for axis in range(array.ndim) if axis not in real]
    moved = np.transpose(array, (*real, *left_out))
    return np.ascontiguousarray(moved).reshape(ir_shape(tuple(array.shape), order))


def lifted(order: Order, added: int) -> Order:
    """Return the order of an IR value that is seen with further ONNX axes of size 1 in front (left out of it)."""
    return tuple(axis if axis == UNIT else axis + added for axis in order)


def after_transpose(order: Order, perm: tuple[int, ...]) -> Order:
    """Return order of the same IR value as a holder of ONNX's Transpose(perm) of the tensor."""
    return tuple(axis if axis == UNIT else perm.index(axis) for axis in order)


def without_axes(order: Order, removed: frozenset[int]) -> Order:
    """Return order of the same IR value after ONNX axes of size 1 are dropped."""
    renumber = {axis: axis - sum(r < axis for r in removed) for axis in order if axis not in removed}
    return tuple(UNIT if axis in removed or axis == UNIT else renumber[axis] for axis in order)


def regrouped(shape: tuple[int, ...], order: Order, new_shape: tuple[int, ...]) -> Order | None:
    """Return an order in which the IR value, read as it lies, holds ONNX's Reshape(new_shape); None if there is none.

    A reshape splits and joins runs of neighbouring axes. If every run also lies together, in order, in the IR value,
    then the runs can stay in IR order. Images over which a reshape joins height and width stay channels-last.
    """
    runs = _runs(shape, new_shape)
    lying = significant(shape, order)
    result: list[int] = []
    position = 0
    while position < len(lying):
        run = next((r for r in runs if r[0] and r[0][0] == lying[position]), None)
        if run is None or lying[position : position + len(run[0])] != run[0]:
            return None
        result.extend(run[1])
        position += len(run[0])
    return _completed(new_shape, result)


def _runs(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Return smallest groups of neighbouring axes (longer than 1) with equal products: (old axes, new axes)."""
    olds = [axis for axis, dim in enumerate(old) if dim > 1]
    news = [axis for axis, dim in enumerate(new) if dim > 1]
    runs: list[tuple[list[int], list[int]]] = []
    while olds or news:
        left, right = [olds.pop(0)], [news.pop(0)]
        while (a := math.prod(old[i] for i in left)) != (b := math.prod(new[i] for i in right)):
            if a < b:
                left.append(olds.pop(0))
            else:
                right.append(news.pop(0))
        runs.append((left, right))
    return runs


def _completed(shape: tuple[int, ...], lying: list[int]) -> Order:
    """Return a whole order with these long axes: a usual one if possible, else with the short axes in front."""
    usual = [plain(len(shape))]
    if len(shape) in (3, 4):
        usual.append(channels_last(len(shape)))
    for order in usual:
        if significant(shape, order) == lying:
            return order
    return (*(axis for axis in range(len(shape)) if axis not in lying), *lying)


# ---- origins of constants --------------------------------------------------------------------------------------------
# Where the numbers of constants come from, so that one weight of the file becomes one parameter. A weight may reach
# several places of the graph in several forms: transposed, cut, or multiplied into something else. Constants of the
# graph that hold the same elements of one weight, and of which one is trained, would drift apart.

Lay = Callable[[Array], Array]
"""Moves the elements of an array, whatever they are."""
Indices = NDArray[np.int64]


def as_it_is(array: Array) -> Array:
    """Return the lay of a weight that is used in its own shape."""
    return array


@dataclass(frozen=True, eq=False)
class Origin:
    """Origin of the elements of a constant.

    base: the initializer, or the table computed from some, whose elements these are; shape: of the base.
    lays: bring an array of that shape into the constant's, one after the other. parents: what a computed table was
    computed from.
    """

    base: str
    shape: tuple[int, ...]
    lays: tuple[Lay, ...] = ()
    parents: tuple[Origin, ...] = ()

    def laid(self, lay: Lay) -> Origin:
        """Return the origin of what `lay` makes of the constant."""
        return replace(self, lays=(*self.lays, lay))

    def lay(self, array: Array) -> Array:
        """Return an array of the base's shape, as the constant holds it."""
        for lay in self.lays:
            array = lay(array)
        return array

    def indices(self) -> Indices:
        """Return the place in the base of every element."""
        return self.lay(np.arange(math.prod(self.shape), dtype=np.int64).reshape(self.shape))

    def roots(self) -> frozenset[str]:
        """Return the initializers that the elements depend on."""
        return frozenset((self.base,)).union(*(parent.roots() for parent in self.parents))

    def touched(self, root: str) -> Indices:
        """Return which elements of an initializer (or table) the constant depends on, flat."""
        if self.base == root:
            return np.unique(self.indices())
        found = [parent.touched(root) for parent in self.parents if root in parent.roots()]
        return np.unique(np.concatenate(found))


@dataclass(frozen=True, eq=False)
class Fold:
    """Factor and summand that were folded into the elements of a constant, one number each for its first axis.

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
        """Return which numbers of the file the elements are."""
        origin, fold = self.origins[0], self.fold
        factor, offset = (np.ones(1), np.zeros(1)) if fold is None else (fold.factor, fold.offset)
        return ParameterSource(tensors[origin.base], origin.indices(), factor, offset)


def tied_weights(claims: Iterable[Claim], trained: frozenset[str]) -> frozenset[str]:
    """Return the names of weights of which an element is in several constants, a trained one among them."""
    by_root: dict[str, list[tuple[Claim, Origin]]] = {}
    for claim in claims:
        for origin in claim.origins:
            for root in origin.roots():
                by_root.setdefault(root, []).append((claim, origin))
    return frozenset(root for root, uses in by_root.items() if _conflict(root, uses, trained))


def _conflict(root: str, uses: list[tuple[Claim, Origin]], trained: frozenset[str]) -> bool:
    """Tell whether groups overlap.

    What one computed table holds counts as one: it has a conflict of its own, if any.
    """
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
    """Return what brings the elements that lie in the order `own` into the order `wanted`; None if axes do not tell."""
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
