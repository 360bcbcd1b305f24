"""A .tflite file after its reader: frozen data that the translation can rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.types import Array

ABSENT = -1
"""Index of an operand that an operator leaves out."""


@dataclass(frozen=True, eq=False)
class Scales:
    """real = (stored - zero) * scale: one element, or one for each index of `axis`."""

    scale: NDArray[np.float32]
    zero: NDArray[np.int64]
    axis: int

    def same(self, other: Scales | None) -> bool:
        """Tell whether two tensors store a number by the same integer."""
        return (
            other is not None
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero, other.zero)
            and (self.scale.size == 1 or self.axis == other.axis)
        )


@dataclass(frozen=True, eq=False)
class Tensor:
    """kind: numpy's name of the type, or that of the schema in small letters; data: None unless it is a constant."""

    name: str
    shape: tuple[int, ...]
    kind: str
    scales: Scales | None = None
    data: Array | None = None
    is_variable: bool = False

    @property
    def itemsize(self) -> int:
        """Return the bytes of an element."""
        return 1 if self.kind in ("int8", "uint8") else 4


@dataclass(frozen=True, eq=False)
class Operator:
    """inputs, outputs: indices of tensors, ABSENT where one is left out; options: as the schema names them."""

    name: str
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, int | float | str] = field(default_factory=dict[str, int | float | str])

    def input(self, index: int) -> int:
        """Return an operand; ABSENT where there is none."""
        return self.inputs[index] if index < len(self.inputs) else ABSENT

    def number(self, option: str) -> int:
        """Return an option that is a whole number or a truth value."""
        return int(self.options.get(option, 0))


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Operators in the order in which they run. Every index that an operator has is that of a tensor."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def with_tensors(self, changed: Mapping[int, Tensor]) -> Subgraph:
        """Return it with other tensors in these places."""
        return replace(self, tensors=tuple(changed.get(k, one) for k, one in enumerate(self.tensors)))


@dataclass(frozen=True, eq=False)
class TfliteFile:
    """subgraphs: the first is the model."""

    name: str
    subgraphs: tuple[Subgraph, ...]
