"""What a random case of an operator is, and the table of generators that tests of meaning and of kernels draw from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import NO_ATTRS, Attrs, Node, Value
from tinytrain_compile.ops import OpDef, new_builder, op_def

Rng = np.random.Generator

DTYPES = {"float64": "float32", "int32": "int32", "uint8": "uint8", "int8": "int8"}


@dataclass(frozen=True, eq=False)
class Bits:
    """A mask operand: packed data and the shape that it stands for."""

    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """One operator on random data: float operands are float64, away from kinks and ties by at least 1e-2.

    differentiable: indices of the inputs that the gradient rule must serve.
    """

    op: str
    attrs: Attrs
    inputs: tuple[Value, ...]
    arrays: tuple[np.ndarray, ...]
    differentiable: tuple[int, ...]

    def node(self) -> Node:
        """The operator as a graph node, with inferred outputs."""
        builder = new_builder(value.name for value in self.inputs)
        builder.emit_all(self.op, self.inputs, self.attrs)
        return builder.nodes[0]

    def float32(self) -> tuple[np.ndarray, ...]:
        """The operands in the types that generated code has."""
        return tuple(a.astype(np.float32) if a.dtype == np.float64 else a for a in self.arrays)

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, value.shape)) or "()" for value in self.inputs)
        return f"{self.op} {shapes} {self.attrs}"


Generator = Callable[[Rng, int], Case]
GENERATORS: dict[str, tuple[Generator, int]] = {}


def generator(op: str, count: int = 5) -> Callable[[Generator], Generator]:
    """Register a function (rng, index) -> Case as the source of `count` cases of an operator."""

    def enter(function: Generator) -> Generator:
        assert op not in GENERATORS, op
        GENERATORS[op] = (function, count)
        return function

    return enter


def cases_of(op: str, wanted: int | None = None) -> list[Case]:
    """All cases of an operator, or `wanted` ones where its shapes go on (`listed`); the same ones in every run."""
    function, count = GENERATORS[op]
    indices = range(count if wanted is None else wanted)
    return [function(np.random.default_rng([zlib.crc32(op.encode()), index]), index) for index in indices]


def operator_of(form: str) -> OpDef:
    """Return the operator of the cases that stand under a name: its own, or that which one of its forms shows."""
    return op_def(cases_of(form, 1)[0].op)


def forms_where(wanted: Callable[[OpDef], bool] = lambda _definition: True) -> list[str]:
    """Return the names of cases, sorted: of every operator that is wanted, or of each form that it shows."""
    return sorted(form for form in GENERATORS if wanted(operator_of(form)))


def listed(rng: Rng, shapes: Sequence[tuple[int, ...]], index: int, rounds: int) -> tuple[int, ...]:
    """A shape from a list that is gone through `rounds` times; then a random one of the same rank."""
    shape = shapes[index % len(shapes)]
    return shape if index < rounds * len(shapes) else sizes(rng, len(shape), 1, 14)


def make(
    op: str,
    operands: tuple[Any, ...],
    attrs: Attrs = NO_ATTRS,
    differentiable: tuple[int, ...] | None = None,
    images: tuple[int, ...] = (),
) -> Case:
    """A case from arrays (or Bits); float operands are differentiable unless told; `images` are NHWC operands."""
    values: list[Value] = []
    arrays: list[np.ndarray] = []
    for index, operand in enumerate(operands):
        data = operand.data if isinstance(operand, Bits) else np.asarray(operand)
        dtype = "bits" if isinstance(operand, Bits) else DTYPES[str(data.dtype)]
        layout = "NHWC" if index in images else ""
        values.append(Value(f"in{index}", tuple(operand.shape), dtype, layout))  # type: ignore[arg-type]
        arrays.append(data)
    floats = tuple(index for index, value in enumerate(values) if value.dtype == "float32")
    return Case(op, attrs, tuple(values), tuple(arrays), floats if differentiable is None else differentiable)


# ---- data -----------------------------------------------------------------------------------------------------------


def normal(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers."""
    return np.asarray(rng.standard_normal(shape))


def positive(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [0.5, 2]."""
    return np.asarray(rng.uniform(0.5, 2.0, shape))


def nonzero(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [0.5, 2] of either sign."""
    return positive(rng, shape) * np.where(rng.random(shape) < 0.5, -1.0, 1.0)


def away(x: np.ndarray, *kinks: float, margin: float = 0.02) -> np.ndarray:
    """x moved away from the kinks of a function by at least the margin."""
    for kink in kinks:
        side = np.where(x >= kink, 1.0, -1.0)
        x = np.where(np.abs(x - kink) < margin, kink + side * margin, x)
    return x


def spaced(rng: Rng, shape: tuple[int, ...], gap: float = 0.02) -> np.ndarray:
    """Distinct numbers at least `gap` apart, in random order: no ties for a maximum."""
    count = int(np.prod(shape))
    return ((rng.permutation(count) - count / 2) * gap).reshape(shape)


def sizes(rng: Rng, rank: int, low: int = 1, high: int = 6) -> tuple[int, ...]:
    """A random shape."""
    return tuple(int(n) for n in rng.integers(low, high, rank))
