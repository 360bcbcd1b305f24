"""A kernel whose longest loop may be computed in several calls, some of its turns in each (docs/adr/0037-slices.md).

Nothing else changes: the writes and their order are those of one call of the whole kernel.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.ir import Var
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.lower.tir_walk import buffers_of, children

_SERIAL = 0
"""Kind of a loop over numbers, not over lanes."""


@dataclass(frozen=True)
class CutOpen:
    """body: computes the turns [begin, end) of `count`. Code before the loop runs with the first turn, code after it
    with the last."""

    body: Stmt
    count: int
    begin: Var
    end: Var


def cut_open(body: Stmt, in_scratch: Container[str]) -> CutOpen | None:
    """Return the body of a kernel with its longest loop cut open.

    None if there is no loop, or if registers keep values across its turns. in_scratch: names of the internal buffers
    that are not registers.
    """
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    loops = [one for one in statements if isinstance(one, tirx.For) and _turns(one) > 1]
    if not loops:
        return None
    loop = max(loops, key=_work)
    at = next(index for index, one in enumerate(statements) if one is loop)
    allocated = (one.buffer for one in statements if isinstance(one, tirx.AllocBuffer))
    registers = {buffer for buffer in allocated if str(buffer.name) not in in_scratch}
    before, inside, behind = (_used(part) & registers for part in (statements[:at], [loop], statements[at + 1 :]))
    if inside or before & behind:
        return None
    count, begin, end = _turns(loop), Var("begin", "int32"), Var("end", "int32")
    low, high = (_sum(bound, int(loop.min)) for bound in (begin, end))
    cut = tirx.For(loop.loop_var, low, tirx.Sub(high, low), loop.kind, loop.body)
    first, last = tirx.EQ(begin, _number(0)), tirx.EQ(end, _number(count))
    parts = [*_under(first, statements[:at]), cut, *_under(last, statements[at + 1 :])]
    return CutOpen(tirx.SeqStmt(parts) if len(parts) > 1 else cut, count, begin, end)


def _turns(loop: tirx.For) -> int:
    """Return the number of turns; 0 for a loop over lanes, or if the number is unknown."""
    known = isinstance(loop.extent, tirx.IntImm) and isinstance(loop.min, tirx.IntImm)
    return int(loop.extent) if known and int(loop.kind) == _SERIAL and not loop.annotations else 0


def _work(statement: Stmt) -> int:
    """Estimate the number of stores and calls executed: both branches of a condition count."""
    inner = sum(_work(child) for child in children(statement) if isinstance(child, Stmt))
    if isinstance(statement, tirx.For):
        return inner * (int(statement.extent) if isinstance(statement.extent, tirx.IntImm) else 1)
    return inner + isinstance(statement, tirx.BufferStore | tirx.Evaluate)


def _used(statements: Sequence[Stmt]) -> set[Buffer]:
    return set[Buffer]().union(*map(buffers_of, statements))


def _number(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)


def _sum(bound: Var, low: int) -> ir.Expr:
    return tirx.Add(bound, _number(low)) if low else bound


def _under(condition: ir.Expr, statements: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield the statements under a condition; declarations are for all turns, and stay before it."""
    run: list[Stmt] = []
    for statement in (*statements, None):
        if statement is not None and not isinstance(statement, tirx.AllocBuffer | tirx.DeclBuffer | tirx.Bind):
            run.append(statement)
            continue
        if run:
            yield tirx.IfThenElse(condition, tirx.SeqStmt(run) if len(run) > 1 else run[0], None)
            run = []
        if statement is not None:
            yield statement
