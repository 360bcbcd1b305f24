"""The C functions of a kernel that is called for a few rows of a map at a time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.function import lower_spec, printer_of
from tinytrain_compile.lower.kernels import KernelContext
from tinytrain_compile.lower.kernels.row_blocks import RowBlockSpec, row_block_spec
from tinytrain_compile.lower.printing.printer import Parameter, Printer
from tinytrain_compile.lower.tir_walk import buffers_of
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.ops.describe import comment as comment_of
from tinytrain_compile.ops.describe import parameter_names
from tinytrain_compile.ops.rows import RowSum


@dataclass(frozen=True)
class CFunction:
    """A C function. parameters: those of the node that it has, by name, in its order; then a count, then scratch."""

    name: str
    source: str
    declaration: str
    parameters: tuple[str, ...]
    scratch_dtype: str = ""


@dataclass(frozen=True)
class RowKernel:
    """prepare: to be called before the first rows (or None): it puts widened weights into scratch, which has to stay.

    rows: computes `count` rows; its parameters are pointers to the first of them, and with windows a table of the
    beginnings of the rows that they read. An elementwise kernel may read and write the same rows. names: of the node's
    inputs and outputs, in order. spec: of the rows.
    """

    prepare: CFunction | None
    rows: CFunction
    scratch_bytes: int
    scratch_dtype: str
    names: tuple[str, ...]
    spec: RowBlockSpec


TABLE = "row_at"
"""Name of the table of a kernel with windows."""


def lower_rows(node: Node, name: str, context: KernelContext) -> RowKernel:
    """Return the kernel of a node for a few rows of one image.

    Fused: see lower_node. Errors: NoRowsError (there is none).
    """
    block = row_block_spec(node, context)
    spec, count = block.kernel, len(node.inputs)
    lowered, computed, loops = lower_spec(spec, context)
    names = parameter_names(node)
    extra = [TABLE] * (len(spec.inputs) - count)
    given = [*names[:count], *extra, *(names[count + i] for i in computed)]
    maps = {names[i] for i in block.maps} | {names[count]}
    shared = maps if block.in_place else set[str]()
    parameters = [Parameter(n, p, n in shared, n == TABLE) for n, p in zip(given, lowered.params, strict=True)]
    same = {given.index(names[count + out]): i for out, i in alias_of(node) if out in computed}
    printer = printer_of(context)(lowered, parameters, same, context.style.unroll_moves, loops)
    before, each = _split(lowered.body, printer, maps | {TABLE})
    comment = re.sub(r" Padding: [^.]*\.", "", comment_of(node))  # the rows that it reads are in a table
    prepare = None
    if before is not None:
        prepare = _function(printer, f"{name}_prepare", comment.replace(" */", " Prepares the weights. */"), before)
    rows = _function(printer, name, comment.replace(" */", " Computes `count` rows. */"), each, (block.count,))
    return RowKernel(prepare, rows, printer.scratch.size_bytes, printer.scratch.dtype, tuple(names), block)


WholeKernel = Callable[[Node, str, KernelContext], Kernel]
"""(node, name, context) -> the kernel for whole maps"""


@dataclass(frozen=True)
class SumKernel:
    """A sum over rows.

    add: adds one row to the total; apply: makes the update's results from the total. Parameters of both are names of
    the values of RowSum's nodes.
    """

    add: CFunction
    apply: CFunction

    @property
    def functions(self) -> tuple[CFunction, CFunction]:
        """Both functions."""
        return self.add, self.apply


def lower_sum(parts: RowSum, name: str, context: KernelContext, whole: WholeKernel) -> SumKernel:
    """Return the kernels of a sum over rows."""

    def function(node: Node, name: str) -> CFunction:
        kernel, overwriting = whole(node, name, context), {out for out, _ in alias_of(node)}
        made = (value.name for out, value in enumerate(node.outputs) if out not in overwriting)
        names = (*(value.name for value in node.inputs), *made)
        return CFunction(name, kernel.source, kernel.declaration, names, kernel.scratch_dtype)

    return SumKernel(function(parts.add, name), function(parts.apply, f"{name}_apply"))


def _split(body: Stmt, printer: Printer, maps: Container[str]) -> tuple[Stmt | None, Stmt]:
    """Return (leading statements that read no map and leave nothing in registers, or None; the others)."""
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    shared = [s for s in statements if isinstance(s, tirx.AllocBuffer | tirx.DeclBuffer)]
    others = [s for s in statements if not isinstance(s, tirx.AllocBuffer | tirx.DeclBuffer)]
    allocated = [s.buffer for s in shared if isinstance(s, tirx.AllocBuffer)]
    registers = {buffer for buffer in allocated if str(buffer.name) not in printer.scratch.names}

    def is_preparation(statement: Stmt) -> bool:
        needs_map = any(p.name in maps for p in printer.parameters_of(statement))
        return not needs_map and not buffers_of(statement) & registers

    def sequence(part: Sequence[Stmt]) -> Stmt:
        used = set[Buffer]().union(*(buffers_of(statement) for statement in part))
        return tirx.SeqStmt([*(s for s in shared if isinstance(s, tirx.DeclBuffer) or s.buffer in used), *part])

    once = list(itertools.takewhile(is_preparation, others))
    return (sequence(once), sequence(others[len(once) :])) if once else (None, body)


def _function(printer: Printer, name: str, comment: str, part: Stmt, counts: tuple[Var, ...] = ()) -> CFunction:
    source, declaration = printer.print(name, part, counts)
    return CFunction(name, comment + source, declaration, tuple(p.name for p in printer.parameters_of(part)))
