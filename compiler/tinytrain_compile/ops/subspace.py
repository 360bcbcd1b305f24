"""Operators that make a low-rank copy of an activation, and a weight gradient from one (docs/activations.md).

A mode is an axis of the activation. Its subspace is a matrix u[r,d]: r orthonormal rows of the axis' length d. The
method is activation subspace iteration: one step of a subspace iteration per mode and training step, starting from the
last step's result. The copy is the Tucker core of the activation in these subspaces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, DType, Node, TensorType, Value
from tinytrain_compile.ops.base import NonDifferentiable, operator, traits
from tinytrain_compile.ops.exact import F32, product, sequential_sum
from tinytrain_compile.ops.names import BACKWARD, expect_float, expect_same_shape, kept_layout, operand, result
from tinytrain_compile.ops.owned import Owned

VANISHED = 1e-8
"""Share of a row's sum of squares left after orthogonalisation at or below which it is in the span of the rows before
it."""
LARGEST = float(np.finfo(np.float32).max)
PASSES = 2
"""Passes of orthogonalisation: after one, rows that were nearly parallel are not orthogonal in float32."""
FIBRES = 16
"""Most fibres (see `mode_form`) whose products with the subspace are kept at a time."""

_STATE = NonDifferentiable("subspaces follow activations, which no loss says anything about")


@dataclass(frozen=True)
class ModeAttrs(Attrs):
    """axis: the mode. expand: from the subspace back to the whole axis. steps: real values of 1 in the int8 form of the
    result, one for each index along the axis, or one for all; none if the result is float32 in int8 networks too.
    """

    axis: int
    expand: bool = False
    steps: tuple[float, ...] = ()


@dataclass(frozen=True)
class GroupAttrs(Attrs):
    """groups: of the convolution whose weight gradient this is."""

    groups: int = 1


def mode_form(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Return (outer, d, inner) of a tensor with outer * inner fibres of d elements along an axis, in memory order."""
    if not 0 <= axis < len(shape):
        raise ValueError(f"{shape} has no axis {axis}")
    return int(np.prod(shape[:axis], dtype=int)), shape[axis], int(np.prod(shape[axis + 1 :], dtype=int))


def fibre_block(count: int) -> int:
    """Count the fibres that are kept at a time: the largest divisor of their number that is not above FIBRES."""
    return max(size for size in range(1, FIBRES + 1) if count % size == 0)


def expect_subspace(op: str, u: Value, extent: int, place: int) -> None:
    """Raise ValueError unless the rows of u lie along an axis of this length (place 1), or are as many (place 0)."""
    if len(u.shape) != 2 or u.shape[place] != extent or u.shape[0] > u.shape[1]:
        raise ValueError(f"{op}: a subspace {u.shape} does not belong to an axis of {extent}")


# ---- one step of the iteration --------------------------------------------------------------------------------------


def _power_infer(inputs: tuple[Value, ...], attrs: ModeAttrs) -> tuple[TensorType, ...]:
    x, u = inputs
    expect_float("SubspacePower", x, u)
    expect_subspace("SubspacePower", u, mode_form(x.shape, attrs.axis)[1], 1)
    return (TensorType(u.shape),)


def _fibres(x: Array, axis: int) -> Array:
    """Return the fibres along an axis, one per row, in memory order."""
    return np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])


def _power(arrays: tuple[Array, ...], attrs: ModeAttrs) -> tuple[Array, ...]:
    x, u = arrays
    fibres = _fibres(x, attrs.axis)
    return ((fibres @ u.T).T @ fibres,)


def _power_exact(arrays: tuple[Array, ...], attrs: ModeAttrs) -> tuple[Array, ...]:
    x, u = arrays
    fibres = _fibres(x, attrs.axis)
    return (product(product(fibres, u.T).T, fibres),)


def power_scratch(node: Node) -> int:
    """Return the bytes of the products of a block of fibres."""
    x, u, attrs = operand(node, "x"), operand(node, "u"), node.attrs
    assert isinstance(attrs, ModeAttrs)
    return 4 * u.shape[0] * fibre_block(x.elements // x.shape[attrs.axis])


def power_macs(node: Node) -> int:
    """Count the multiply-accumulates of one step of the iteration."""
    return 2 * operand(node, "x").elements * operand(node, "u").shape[0]


operator(
    "SubspacePower",
    "One step of a subspace iteration along an axis: p[k,c] = sum_f x[f,c] (sum_e x[f,e] u[k,e]), f all fibres.",
    _power_infer,
    _power,
    _STATE,
    ModeAttrs,
    scratch=power_scratch,
    macs=power_macs,
    exact=_power_exact,
    inputs=("x", "u"),
    outputs=("p",),
    traits=traits("subspace"),
)


# ---- orthonormal rows -----------------------------------------------------------------------------------------------


def _orthonormalize_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (p,) = inputs
    expect_float("Orthonormalize", p)
    if len(p.shape) != 2 or p.shape[0] > p.shape[1]:
        raise ValueError(f"Orthonormalize: {p.shape} are not at most as many rows as they are long")
    return (p.type,)


def _squares(row: Array, exact: bool) -> Array:
    return sequential_sum(row * row) if exact else np.dot(row, row)


def _made_orthogonal(row: Array, before: Array, exact: bool) -> Array:
    """Apply modified Gram-Schmidt against the rows before, one after another, twice."""
    for _ in range(PASSES):
        for other in before:
            dot = sequential_sum(other * row) if exact else np.dot(other, row)
            row = row - dot * other
    return row


def _uncovered(before: Array, exact: bool) -> Array:
    """Return the coordinate axis that the rows before cover least (the first of several), as a row."""
    squares = before * before
    covered = sequential_sum(squares) if exact else squares.sum(axis=0)
    row = np.zeros(before.shape[1], before.dtype)
    row[int(np.argmin(covered))] = 1
    return row


def _orthonormal(p: Array, exact: bool) -> tuple[Array, ...]:
    u = np.array(p)
    one = p.dtype.type
    for k in range(len(u)):
        first = _squares(u[k], exact)
        row = _made_orthogonal(u[k], u[:k], exact)
        squares = _squares(row, exact)
        if not (squares > one(VANISHED) * first and squares <= one(LARGEST)):
            row = _made_orthogonal(_uncovered(u[:k], exact), u[:k], exact)
            squares = _squares(row, exact)
        u[k] = row * (one(1) / np.sqrt(squares))
    return (u,)


def _orthonormalize_macs(node: Node) -> int:
    rows, length = operand(node, "p").shape
    return PASSES * rows * (rows - 1) * length


operator(
    "Orthonormalize",
    "Rows made orthonormal in their order (modified Gram-Schmidt, twice); one that vanishes or is no number becomes"
    " the axis that the rows before it cover least.",
    _orthonormalize_infer,
    lambda arrays, _attrs: _orthonormal(arrays[0], exact=False),
    _STATE,
    macs=_orthonormalize_macs,
    exact=lambda arrays, _attrs: _orthonormal(arrays[0], exact=True),
    inputs=("p",),
    outputs=("u",),
    reuses=("p",),
)


def _keep_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    u, new = inputs
    expect_float("KeepSubspace", u, new)
    expect_same_shape("KeepSubspace", u, new)
    return (u.type,)


def _keep(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    _, new = arrays
    return (new,)


operator(
    "KeepSubspace",
    "A subspace of the state becomes that of this step.",
    _keep_infer,
    _keep,
    _STATE,
    inputs=("u", "new"),
    outputs=("u",),
    owned=Owned({"u": "FINITE"}, "float"),
)


# ---- into subspaces and back ----------------------------------------------------------------------------------------


def mode_type(op: str, inputs: tuple[Value, ...], attrs: ModeAttrs, dtype: DType) -> TensorType:
    """Return the type of x with an axis that was taken into a subspace u, or back out of it."""
    x, u = inputs
    expect_subspace(op, u, mode_form(x.shape, attrs.axis)[1], 0 if attrs.expand else 1)
    shape = list(x.shape)
    shape[attrs.axis] = u.shape[1 if attrs.expand else 0]
    return TensorType((*shape,), dtype, kept_layout(x, len(shape)))


def _mode_infer(inputs: tuple[Value, ...], attrs: ModeAttrs) -> tuple[TensorType, ...]:
    expect_float("ModeProduct", *inputs)
    return (mode_type("ModeProduct", inputs, attrs, "float32"),)


def _along(x: Array, axis: int, to: Array) -> Array:
    """Put the rows of a product back as fibres along the axis."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :], to.shape[-1])
    return np.ascontiguousarray(np.moveaxis(to.reshape(shape), -1, axis))


def _mode(arrays: tuple[Array, ...], attrs: ModeAttrs) -> tuple[Array, ...]:
    x, u = arrays
    return (_along(x, attrs.axis, _fibres(x, attrs.axis) @ (u if attrs.expand else u.T)),)


def _mode_exact(arrays: tuple[Array, ...], attrs: ModeAttrs) -> tuple[Array, ...]:
    x, u = arrays
    return (_along(x, attrs.axis, product(_fibres(x, attrs.axis), u if attrs.expand else u.T)),)


def mode_macs(node: Node) -> int:
    """Count the multiply-accumulates of a product along an axis."""
    x, u = operand(node, "x"), operand(node, "u")
    return x.elements * u.shape[1 if isinstance(node.attrs, ModeAttrs) and node.attrs.expand else 0]


operator(
    "ModeProduct",
    "Every fibre along an axis times a subspace: y[k] = sum_c u[k,c] x[c], or back: y[c] = sum_k u[k,c] x[k].",
    _mode_infer,
    _mode,
    BACKWARD,
    ModeAttrs,
    macs=mode_macs,
    exact=_mode_exact,
    inputs=("x", "u"),
    traits=traits("subspace"),
)


def _weight_infer(inputs: tuple[Value, ...], attrs: GroupAttrs) -> tuple[TensorType, ...]:
    dz, u = inputs
    expect_float("SubspaceGradWeight", dz, u)
    expect_subspace("SubspaceGradWeight", u, dz.shape[-1], 0)
    if len(dz.shape) < 2 or dz.shape[0] % attrs.groups or u.shape[1] % attrs.groups:
        raise ValueError(f"SubspaceGradWeight: {dz.shape} and {u.shape} have no {attrs.groups} groups")
    return (TensorType((*dz.shape[:-1], u.shape[1] // attrs.groups)),)


def _by_group(dz: Array, u: Array, groups: int) -> tuple[Array, Array]:
    """Return dz[group, row, k] and u[group, k, channel]."""
    channels = u.reshape(u.shape[0], groups, -1).transpose(1, 0, 2)
    return dz.reshape(groups, -1, dz.shape[-1]), channels


def _weight(arrays: tuple[Array, ...], attrs: GroupAttrs) -> tuple[Array, ...]:
    dz, u = arrays
    rows, channels = _by_group(dz, u, attrs.groups)
    return ((rows @ channels).reshape(*dz.shape[:-1], -1),)


def _weight_exact(arrays: tuple[Array, ...], attrs: GroupAttrs) -> tuple[Array, ...]:
    dz, u = arrays
    rows, channels = _by_group(dz, u, attrs.groups)
    return (np.asarray(product(rows, channels), F32).reshape(*dz.shape[:-1], -1),)


SUBSPACE_GRAD_WEIGHT = operator(
    "SubspaceGradWeight",
    "Gradient of a weight from that for channels in a subspace: dw[o,c] = sum_k dz[o,k] u[k,c], c of o's group.",
    _weight_infer,
    _weight,
    BACKWARD,
    GroupAttrs,
    macs=lambda node: result(node, "dw").elements * operand(node, "u").shape[0],
    exact=_weight_exact,
    inputs=("dz", "u"),
    outputs=("dw",),
)
