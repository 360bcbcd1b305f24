"""The data model between all stages: small frozen dataclasses, no behaviour beyond sizes and look-ups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from numpy.typing import NDArray

DType = Literal["float32", "int32", "int16", "int8", "uint8", "bits"]
"""Element types. "bits" is one bit per element, packed little-endian into bytes (a mask)."""

Layout = Literal["", "NHWC", "NWC"]
"""Axis order of a value: "" is ONNX order, "NHWC" is channels last (4-D images; 1-D signals have H == 1).

"NWC" is the input of a signal whose channels are last, before it becomes an image of height 1.
"""

Phase = Literal["step", "apply"]
"""When a node runs: in every micro-batch, or only when accumulated gradients are applied."""

ELEMENT_BYTES: Mapping[str, int] = {"float32": 4, "int32": 4, "int16": 2, "int8": 1, "uint8": 1}

Array = NDArray[Any]


class TensorType(NamedTuple):
    """Shape, element type and axis order of a tensor, as inferred by an OpDef."""

    shape: tuple[int, ...]
    dtype: DType = "float32"
    layout: Layout = ""

    def __str__(self) -> str:
        """Return the type as messages show it."""
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True, slots=True)
class Quant:
    """int8 format of a real tensor (int32 for biases): real = (q - zero) * scale, q clamped to [low, high].

    scale: one element for the whole tensor, or one per output channel of a weight or bias (first axis).
    """

    scale: tuple[float, ...]
    zero: int = 0
    low: int = -128
    high: int = 127


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Integers that a file stores for a tensor: real = (integer - zero) * scale; dtype: int8 or uint8."""

    dtype: str
    scale: float
    zero: int


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor. `name` is unique in its graph; `origin` is its ONNX name, known to the user.

    quant: set if the model (QDQ) or calibration defines a format for this real tensor; the value itself is float32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType = "float32"
    layout: Layout = ""
    origin: str = ""
    quant: Quant | None = None

    def __hash__(self) -> int:
        """Hash the name, which equal ones share: planners look values up often."""
        return hash(self.name)

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar, whose shape is ())."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes that the tensor occupies, without alignment."""
        if self.dtype == "bits":
            return (self.elements + 7) // 8
        return self.elements * ELEMENT_BYTES[self.dtype]

    @property
    def type(self) -> TensorType:
        """The value's type without its names."""
        return TensorType(self.shape, self.dtype, self.layout)


@dataclass(frozen=True)
class Attrs:
    """Base of every op's attributes; subclasses are frozen dataclasses of ints, floats, strings and tuples."""


NO_ATTRS = Attrs()


@dataclass(frozen=True, slots=True)
class External:
    """A C function of the user (--kernels) that computes a node, and the bytes of working memory that it needs."""

    function: str
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `name` is unique; `origin` is its ONNX node, carried through every rewrite.

    external: function that computes it instead of our kernel. It changes no result, so it is not part of the text form.
    """

    name: str
    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: Attrs = NO_ATTRS
    origin: str = ""
    phase: Phase = "step"
    external: External | None = None

    def __hash__(self) -> int:
        """Hash the name, as for a value."""
        return hash(self.name)


Key = TypeVar("Key")
Item = TypeVar("Item")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Return the items of each key, keys and items in the order in which they come."""
    found: dict[Key, list[Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


def first_free(names: Iterable[str], taken: set[str]) -> str:
    """Return the first of these names that is not taken, and add it to `taken`."""
    found = next(name for name in names if name not in taken)
    taken.add(found)
    return found


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of a parameter in the file: its tensors, and the modules that hold these, from the inside out."""

    tensors: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order and the values that they read from outside.

    inputs: data inputs first, then labels; written by the caller before a step. label: name of the labels ("": none).
    outputs: returned by inference.
    constants: initial data of every value that no node produces and that is not an input (weights, tables).
    parameters: names of the constants that training may update (weights, biases, scales, shifts, slopes).
    state: values that always live in the arena and start as constants[name]; a checkpoint saves them. accumulators:
    values that always live in the arena, start as zero and are not saved.
    guard: name of the value that must be computed before any state or accumulator is overwritten: the loss, because if
        it is NaN or infinite the rest of the step does not run. "": none.
    updates: (state or accumulator value, value that holds its new content after the step); the two share memory.
    known_as: for forward graphs, names of parameters in the file.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: Mapping[str, Array]
    parameters: tuple[Value, ...] = ()
    state: tuple[Value, ...] = ()
    accumulators: tuple[Value, ...] = ()
    updates: tuple[tuple[Value, Value], ...] = ()
    notes: tuple[str, ...] = field(default=())
    """One-line remarks for the user on what a stage decided (for instance an absorbed softmax)."""
    guard: str = ""
    label: str = ""
    known_as: Mapping[str, FileNames] = field(default_factory=dict[str, FileNames])

    @property
    def data(self) -> tuple[Value, ...]:
        """The inputs for samples: all except the labels."""
        return tuple(value for value in self.inputs if value.name != self.label)

    def producers(self) -> dict[str, Node]:
        """Return value name -> the node that produces it."""
        return {out.name: node for node in self.nodes for out in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Return value name -> nodes that read it, in order."""
        return grouped((value.name, node) for node in self.nodes for value in dict.fromkeys(node.inputs))

    def ancestors(self, targets: tuple[Value, ...]) -> frozenset[str]:
        """Return names of the nodes on which the targets depend."""
        needed = {value.name for value in targets}
        names: set[str] = set()
        for node in reversed(self.nodes):
            if any(out.name in needed for out in node.outputs):
                names.add(node.name)
                needed.update(value.name for value in node.inputs)
        return frozenset(names)
