"""The table of kernels, each a TE definition plus a schedule; and the parts of which definitions are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tvm import ir, s_tir, te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, IterVar, Stmt

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.ops.base import Split
from tinytrain_compile.ops.linear import WEIGHT, runs
from tinytrain_compile.ops.names import operand, operands

Index = Expr | int
"""A place along an axis, or an extent: a number, or an expression of loop variables and arguments of a call."""
MapShape = tuple[int, Index, int, int]
"""(n, height, width, channels); the height may be an argument of a call, see streams/."""


class Elements(Protocol):
    """A tensor, or an object that is read like one."""

    @property
    def shape(self) -> Sequence[Index]:
        """Extents of its axes."""
        ...

    def __getitem__(self, index: Index | tuple[Index, ...], /) -> Expr:
        """Return the element at an index."""
        ...


Load = Callable[..., Expr]
"""index expressions -> element expression"""
Finish = Callable[..., Expr]
"""(a finished sum, the indices of its output element) -> output element"""
Schedule = Callable[[s_tir.Schedule], None]


@dataclass(frozen=True)
class KernelSpec:
    """inputs: one placeholder per node input; outputs: one tensor per node output; schedule: edits the loops in place.

    A placeholder may have any shape with the value's element count: the C sees plain pointers.
    An output that overwrites an input (OpDef.alias) may be None: then a helper that is called with the input's
    address (see `address`) writes it.
    """

    inputs: Sequence[te.Tensor]
    outputs: Sequence[te.Tensor | None]
    schedule: Callable[[s_tir.Schedule], None]


KernelRule = Callable[[Node, KernelContext], KernelSpec]
KERNELS: dict[str, KernelRule] = {}
VectorRule = Callable[[Node, KernelContext], "KernelSpec | None"]
VECTOR_KERNELS: dict[str, VectorRule] = {}
"""Rules for targets with integer vectors; one returns None to leave the node to that of KERNELS."""


def kernel(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Enter a rule as the kernel of these ops."""

    def enter(rule: KernelRule) -> KernelRule:
        for op in ops:
            if op in KERNELS:
                raise ValueError(f"op {op} has two kernels")
            KERNELS[op] = rule
        return rule

    return enter


def vector_kernel(*ops: str) -> Callable[[VectorRule], VectorRule]:
    """Enter a rule as the kernel of these ops on cores with integer vectors."""

    def enter(rule: VectorRule) -> VectorRule:
        VECTOR_KERNELS.update(dict.fromkeys(ops, rule))
        return rule

    return enter


NumbersRule = Callable[[Node, KernelContext], tuple[Node, tuple[str, ...]]]
NUMBERS: dict[str, NumbersRule] = {}
"""Rules that return a node, perhaps in another form that its kernel reads as well, and the names of int attributes that
its kernel may read from a table. So its kernel has to take an expression for each of them, and must not test it."""


def numbers(*ops: str) -> Callable[[NumbersRule], NumbersRule]:
    """Enter a rule for the numbers of these ops."""

    def enter(rule: NumbersRule) -> NumbersRule:
        NUMBERS.update(dict.fromkeys(ops, rule))
        return rule

    return enter


def kernel_spec(node: Node, context: KernelContext) -> KernelSpec:
    """Return the kernel of a node for such a target."""
    rule = VECTOR_KERNELS.get(node.op) if context.uses_vectors else None
    return (rule and rule(node, context)) or KERNELS[node.op](node, context)


def placeholder(value: Value, name: str, shape: Sequence[Index] | None = None) -> te.Tensor:
    """Return a kernel operand for a graph value; "bits" are bytes; `shape` may regroup its elements."""
    if value.dtype == "bits":
        return te.placeholder((value.size_bytes,), "uint8", name)
    return te.placeholder(tuple(shape or value.shape or (1,)), value.dtype, name)


def tensor(node: Node, name: str, shape: Sequence[Index] | None = None) -> te.Tensor:
    """Return an operand, whose C parameter has its name; `shape` may regroup its elements. KeyError if it is not
    there."""
    return placeholder(operand(node, name), name, shape)


def tensors(node: Node, *names: str) -> list[te.Tensor]:
    """Return operands in their own shapes; one whose name ends in "?" may be missing."""
    there = operands(node)
    return [tensor(node, name.removesuffix("?")) for name in names if name[-1] != "?" or name[:-1] in there]


def flat_tensor(node: Node, name: str) -> te.Tensor:
    """Return an operand as a vector of its elements."""
    return tensor(node, name, (operand(node, name).elements,))


def channel_rows(value: Value) -> tuple[int, int]:
    """Return the output channels of a weight or its gradient, and elements of each."""
    return value.shape[0], value.elements // value.shape[0]


def pixel_rows(value: Value) -> tuple[int, int]:
    """Return the pixels of an image, and channels of each."""
    return value.elements // value.shape[-1], value.shape[-1]


def map_shape(value: Value) -> tuple[int, int, int, int]:
    """Return the shape of an image, or of several."""
    count, height, width, channels = value.shape
    return count, height, width, channels


def weight_parts(node: Node) -> list[te.Tensor]:
    """Return the weight of a layer or of its data gradient: in one part, or in two."""
    return tensors(node, *WEIGHT)


def whole_weight(parts: Sequence[te.Tensor], split: Split | None, out_axis: int, in_axis: int) -> Load:
    """Return access to a weight by its own indices, whether it is in one part or in two (see Split)."""
    first = parts[0]
    if split is None:
        return lambda *index: first[index]
    axis = out_axis if split.axis == "out" else in_axis
    pieces: list[tuple[int, te.Tensor, int]] = []  # (end of the run, the part it is in, channel -> index offset)
    for part, channels in ((parts[0], split.channels), (parts[1], split.rest)):
        done = 0
        for start, count in runs(channels):
            pieces.append((start + count, part, done - start))
            done += count
    pieces.sort(key=lambda piece: piece[0])

    def load(*index: Expr) -> Expr:
        def element(part: te.Tensor, offset: int) -> Expr:
            return part[(*index[:axis], index[axis] + offset, *index[axis + 1 :])]

        _, part, offset = pieces[-1]
        value = element(part, offset)
        for end, part, offset in reversed(pieces[:-1]):
            value = tirx.if_then_else(index[axis] < end, element(part, offset), value)
        return value

    return load


def weight_of(node: Node, split: Split | None) -> tuple[list[te.Tensor], Load]:
    """Return the weight of a convolution or of its data gradient: its parts, and access to all of it."""
    parts = weight_parts(node)
    return parts, whole_weight(parts, split, 0, 3)


def peels(split: Split | None) -> bool:
    """Tell whether the load of a weight has conditions at which loops are cut: runs of channels in two parts."""
    return split is not None


def f32(value: float) -> Expr:
    """Return a float32 constant expression."""
    return tirx.const(float(value), "float32")


def call(function: str, *args: Expr | float) -> Expr:
    """Call a float32 scalar helper of tt_runtime.h."""
    return tirx.call_pure_extern("float32", function, *args)


def call_int(function: str, *args: Index, dtype: str = "int32") -> Expr:
    """Call an integer helper (tt_fixed.h, tt_qloss.h, tt_dsp.h); it may write through addresses among its arguments."""
    return tirx.call_extern(dtype, function, *args)


def address(operand: te.Tensor, *index: Index) -> Expr:
    """Return the address of an operand's element (its first without an index), for a helper that writes there."""
    element = operand(*(index or [0] * len(operand.shape)))
    return ir.Call("tirx.address_of", [element], ret_ty=ir.PointerType(ir.PrimType(str(operand.dtype))))


def i32(value: Index) -> Expr:
    """Return an int32 constant, or an expression widened to int32."""
    return tirx.const(value, "int32") if isinstance(value, int) else value.astype("int32")


def i16(value: Index) -> Expr:
    """Return an int16 constant, or an expression as int16."""
    return tirx.const(value, "int16") if isinstance(value, int) else value.astype("int16")


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Return a choice without side effects: both sides may be evaluated."""
    return tirx.Select(condition, yes, no)


def guarded(condition: Expr, value: Expr) -> Expr:
    """Return `value` if the condition holds, else 0 (and then `value` is not evaluated)."""
    dtype = str(value.ty.dtype if hasattr(value, "ty") else value.dtype)
    return tirx.if_then_else(condition, value, tirx.const(0, dtype))


def left_over(extent: Index, unit: int) -> int:
    """Count the elements after whole units; none if the number is variable, since streams/ request whole units."""
    return extent % unit if isinstance(extent, int) else 0


def tiles_of(extent: Index, tile: int) -> Index:
    """Return the number of tiles for these rows or columns; the last one may be incomplete (see row_of_tile)."""
    return extent // tile + (1 if left_over(extent, tile) else 0)


def row_of_tile(tile: Expr, place: Expr, rows: Index, size: int, peeled: bool = False) -> Expr:
    """Return the row at a place of a tile; an incomplete last tile repeats rows before it, or the last one.

    peeled: the last tile has code of its own.
    """
    first = tile * size
    if not left_over(rows, size):
        return first + place
    if isinstance(rows, int) and rows < size:
        return tirx.min(first + place, rows - 1)
    last = rows - size
    return (tirx.if_then_else(first <= last, first, last) if peeled else tirx.min(first, last)) + place


def sum_of_row(sums: Callable[[Expr, Expr], Expr], row: Expr, rows: Index, size: int) -> Expr:
    """Return sums(tile, place) of a row: see row_of_tile; tiles of more than one row have two."""
    tile, place = tirx.indexdiv(row, size), tirx.indexmod(row, size)
    if not left_over(rows, size) or (isinstance(rows, int) and rows < size):
        return sums(tile, place)
    return tirx.if_then_else(row < rows - 1, sums(tile, place), sums(tile, i32(size - 1)))


def both(tests: Iterable[Expr | None]) -> Expr | None:
    """Return the conjunction of all tests; None if there are none (a test may be None)."""
    result: Expr | None = None
    for test in tests:
        if test is not None:
            result = test if result is None else tirx.And(result, test)
    return result


def guard(condition: Expr | None, value: Expr) -> Expr:
    """Return `value` if the condition holds or is None, else 0."""
    return value if condition is None else guarded(condition, value)


def total(term: Expr, axes: Sequence[IterVar]) -> Expr:
    """Return a sum over reduction axes."""
    return te.sum(term, list(axes))


def reduce_axes(*extents: Index, prefix: str = "k") -> list[IterVar]:
    """Return reduction axes of the given extents."""
    return [te.reduce_axis((0, extent), f"{prefix}{i}") for i, extent in enumerate(extents)]


def plain(_schedule: s_tir.Schedule) -> None:
    """Leave the loops unchanged: the schedule of kernels whose default loops are right."""


# ---- kernels that are one call ---------------------------------------------------------------------------------------

Body = Callable[[Buffer, Sequence[Buffer]], Stmt]
"""(output, inputs) -> the statement that writes it"""


def first(buffer: Buffer) -> Expr:
    """Return the address of a buffer's first element."""
    element = buffer[tuple([0] * len(buffer.shape))]
    return ir.Call("tirx.address_of", [element], ret_ty=ir.PointerType(ir.PrimType(str(buffer.dtype))))


def struct(name: str, numbers: Sequence[Index]) -> Expr:
    """Return a call of the helper that makes a struct of numbers."""
    return call_int(name, *(i32(number) for number in numbers))


def called(name: str, *operands: Expr) -> Stmt:
    """Return a call as a statement."""
    return tirx.Evaluate(call_int(name, *operands))


def written(inputs: Sequence[te.Tensor], shape: Sequence[Index], dtype: str, body: Body) -> te.Tensor:
    """Return an output that a statement writes."""
    sources = [tirx.decl_buffer(t.shape, t.dtype, t.op.name) for t in inputs]
    target = tirx.decl_buffer(shape, dtype, "y")

    def make(given: Sequence[Buffer], made: Sequence[Buffer]) -> Stmt:
        return body(made[0], given)

    return te.extern([target.shape], list(inputs), make, "out", in_buffers=sources, out_buffers=[target], dtype=dtype)
