"""Rows made orthonormal. Each depends on those before it, which TE cannot express: the loops are written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr, Var
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Index, KernelSpec, call, f32, kernel, plain, tensor
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.ops.subspace import LARGEST, PASSES, VANISHED

_SCALARS = ("first", "squares", "dot", "least", "covered")


def _loop(name: str, extent: Index, body: Callable[[Var], Stmt]) -> Stmt:
    var = Var(name, "int32")
    return tirx.For(var, 0, extent, tirx.ForKind.SERIAL, body(var))


class _Rows:
    """Statements about rows of a matrix in which scalars are registers, by name; `place`: a column, or a flag."""

    def __init__(self, u: Buffer, length: int) -> None:
        self._u, self._length = u, length
        self._scalars = {name: tirx.decl_buffer((1,), "float32", name, scope="local") for name in _SCALARS}
        self._place = tirx.decl_buffer((1,), "int32", "place", scope="local")

    def allocated(self, body: Stmt) -> Stmt:
        """Return the statement with these registers."""
        return tirx.stmt_seq(*(tirx.AllocBuffer(b) for b in (*self._scalars.values(), self._place)), body)

    def _get(self, name: str) -> Expr:
        return self._scalars[name][(0,)]

    def _set(self, name: str, value: Expr) -> Stmt:
        return tirx.BufferStore(self._scalars[name], value, [0])

    def _set_place(self, value: Expr | int) -> Stmt:
        return tirx.BufferStore(self._place, value, [0])

    def store(self, row: Var, value: Callable[[Var], Expr]) -> Stmt:
        """Set every element of a row to value(its column)."""
        return _loop("column", self._length, lambda c: tirx.BufferStore(self._u, value(c), [row, c]))

    def dot(self, name: str, a: Var, b: Var) -> Stmt:
        """Set the scalar to the product of two rows."""

        def more(c: Var) -> Stmt:
            return self._set(name, self._get(name) + self._u[a, c] * self._u[b, c])

        return tirx.stmt_seq(self._set(name, f32(0)), _loop("column", self._length, more))

    def orthogonal(self, k: Var) -> Stmt:
        """Subtract from row k its part in the span of the rows before it, and set `squares` to its sum of squares."""

        def less(j: Var) -> Stmt:
            rest = self.store(k, lambda c: self._u[k, c] - self._get("dot") * self._u[j, c])
            return tirx.stmt_seq(self.dot("dot", j, k), rest)

        passes = _loop("again", PASSES, lambda _: _loop("other", k, less))
        return tirx.stmt_seq(passes, self.dot("squares", k, k))

    def uncovered(self, k: Var) -> Stmt:
        """Set row k to the coordinate axis that the rows before cover least."""

        def judge(c: Var) -> Stmt:
            def more(j: Var) -> Stmt:
                return self._set("covered", self._get("covered") + self._u[j, c] * self._u[j, c])

            better = tirx.stmt_seq(self._set("least", self._get("covered")), self._set_place(c))
            checked = tirx.IfThenElse(tirx.LT(self._get("covered"), self._get("least")), better, None)
            zero = tirx.BufferStore(self._u, f32(0), [k, c])
            return tirx.stmt_seq(self._set("covered", f32(0)), _loop("other", k, more), checked, zero)

        start = (self._set("least", f32(LARGEST)), self._set_place(0))
        axis = tirx.BufferStore(self._u, f32(1), [k, self._place[(0,)]])
        return tirx.stmt_seq(*start, _loop("column", self._length, judge), axis)

    def where_vanished(self, instead: Stmt) -> Stmt:
        """Do `instead` unless something is left of a row. It uses a flag: TVM turns "not greater" into "less", which
        fails for NaN."""
        more = tirx.GT(self._get("squares"), f32(VANISHED) * self._get("first"))
        left = tirx.And(more, tirx.LE(self._get("squares"), f32(LARGEST)))
        flag = (self._set_place(1), tirx.IfThenElse(left, self._set_place(0), None))
        return tirx.stmt_seq(*flag, tirx.IfThenElse(tirx.EQ(self._place[(0,)], 1), instead, None))

    def normal(self, k: Var) -> Stmt:
        """Divide row k by the root of its squares."""
        root = self._set("dot", f32(1) / call("tt_sqrtf", self._get("squares")))
        return tirx.stmt_seq(root, self.store(k, lambda c: self._u[k, c] * self._get("dot")))


@kernel("Orthonormalize")
def orthonormalize(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute row by row: its squares; subtract the span of the rows before; replace a vanished row by an axis;
    normalise."""
    p = tensor(node, "p")
    rank, length = (int(extent) for extent in node.outputs[0].shape)

    def rows(sources: Sequence[Buffer], targets: Sequence[Buffer]) -> Stmt:
        m = _Rows(targets[0], length)

        def row(k: Var) -> Stmt:
            copy = m.store(k, lambda c: sources[0][k, c])
            instead = m.where_vanished(tirx.stmt_seq(m.uncovered(k), m.orthogonal(k)))
            return tirx.stmt_seq(copy, m.dot("first", k, k), m.orthogonal(k), instead, m.normal(k))

        return m.allocated(_loop("row", rank, row))

    source, target = (tirx.decl_buffer(p.shape, "float32", name) for name in ("p", "u"))
    out = te.extern([p.shape], [p], rows, "out", in_buffers=[source], out_buffers=[target], dtype="float32")
    return KernelSpec([p], [out], plain)
