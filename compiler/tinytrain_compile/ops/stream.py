"""Streams: a few layers computed row by row, so that the large maps between them are never in memory whole.

To the planner a stream is one node. It computes what its inner nodes compute, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.base import NonDifferentiable, Overlap, Placed, op_def, operator, run_node
from tinytrain_compile.ops.names import ErrorOperands, attrs_of, error_operands

UNTIL = "_until"
"""Suffix of a stream's C function whose last argument is the number of inner nodes to compute."""


@dataclass(frozen=True)
class Ring:
    """The last `rows` rows of an inner map, in scratch from `offset` on: row r is in slot r modulo rows."""

    name: str
    rows: int
    offset: int


@dataclass(frozen=True)
class RowCall:
    """Call in which inner node number `node` computes rows [first, first + rows) of its result."""

    node: int
    first: int
    rows: int


@dataclass(frozen=True)
class StreamAttrs(Attrs):
    """nodes: the inner graph, in order. inputs, outputs: names in it of the stream's operands and results, in order.

    rings: of every inner map that is not a result. work: offset in scratch of the working memory of each inner node.
    calls: in the order in which they run; sums over rows are applied after the last one. covers: which results may
    cover which operands, and how far (see Overlap). overwrites: pairs as in `alias_of`: peaks of errors, and updated
    tensors.
    position: offset in scratch of the progress (position_bytes of it) of a stream that begins with InputLines. Such a
    stream stops before every call that takes a row of the image, until the caller has that row. -1: it runs at once.
    pauses: increasing numbers of calls before which any other stream may stop (see pieces_of); its C function then gets
    the calls to make.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rings: tuple[Ring, ...] = ()
    work: tuple[int, ...] = ()
    calls: tuple[RowCall, ...] = ()
    scratch_bytes: int = 0
    covers: tuple[Overlap, ...] = ()
    position: int = -1
    overwrites: tuple[tuple[int, int], ...] = ()
    pauses: tuple[int, ...] = ()


def pieces_of(attrs: StreamAttrs) -> tuple[tuple[int, int], ...]:
    """Return (first call, end) of every piece between two pauses."""
    return tuple(zip((0, *attrs.pauses), (*attrs.pauses, len(attrs.calls)), strict=True))


def position_bytes(nodes: int) -> int:
    """Return the bytes of a resumable stream's progress, as int32: its next call, and the rows done of each node."""
    return 4 * (1 + nodes)


def _infer(inputs: tuple[Value, ...], attrs: StreamAttrs) -> tuple[TensorType, ...]:
    made = {value.name: value.type for node in attrs.nodes for value in node.outputs}
    read = {value.name: value.type for node in attrs.nodes for value in node.inputs if value.name not in made}
    if read != {name: value.type for name, value in zip(attrs.inputs, inputs, strict=True)}:
        raise ValueError("Stream: its operands are not what its inner nodes read")
    return tuple(made[name] for name in attrs.outputs)


def _reference(arrays: tuple[Array, ...], attrs: StreamAttrs, exact: bool = False) -> tuple[Array, ...]:
    known = dict(zip(attrs.inputs, arrays, strict=True))
    for node in attrs.nodes:
        results = run_node(node, tuple(known[value.name] for value in node.inputs), exact)
        known.update({value.name: array for value, array in zip(node.outputs, results, strict=True)})
    return tuple(known[name] for name in attrs.outputs)


def _attrs(node: Node) -> StreamAttrs:
    return attrs_of(node, StreamAttrs)


def computed(node: Node) -> Iterator[Node]:
    """Yield the nodes that a node stands for: itself, or those of a stream, with the stream's operands and results."""
    attrs = node.attrs
    if not isinstance(attrs, StreamAttrs):
        yield node
        return
    values = dict(zip((*attrs.inputs, *attrs.outputs), (*node.inputs, *node.outputs), strict=True))

    def outside(value: Value) -> Value:
        return values.get(value.name, value)

    for inner in attrs.nodes:
        yield replace(inner, inputs=tuple(map(outside, inner.inputs)), outputs=tuple(map(outside, inner.outputs)))


def errors_of(node: Node) -> list[tuple[int, ErrorOperands]]:
    """Return the error states that a node keeps, in order, each with the number of the inner node that makes it."""
    found = ((index, error_operands(inner)) for index, inner in enumerate(computed(node)))
    return [(index, error) for index, error in found if error is not None]


operator(
    "Stream",
    "Some layers, row by row: their maps lie in ring buffers, as far as nobody else reads them.",
    _infer,
    _reference,
    NonDifferentiable("streams are planned after differentiation"),
    StreamAttrs,
    exact=lambda arrays, attrs: _reference(arrays, attrs, exact=True),
    scratch=lambda node: _attrs(node).scratch_bytes,
    macs=lambda node: sum(op_def(inner.op).macs(inner) for inner in _attrs(node).nodes),
    overlaps=lambda node: _attrs(node).covers,
    placed=Placed(overwrites=lambda node: _attrs(node).overwrites),
    inputs=("x*",),
    outputs=("y*",),
)
