"""Updates that take each element of a weight gradient from the register in which its sum was made."""

from __future__ import annotations

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Finish, KernelSpec, Load, address, kernel, kernel_spec, tensor
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.update import ON_VECTORS, UPDATES, as_it_is
from tinytrain_compile.lower.schedules import KEPT, KEPT_ROWS
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.fused_update import PAIRS, taken_apart
from tinytrain_compile.ops.names import Named, operand, operands


@kernel(*PAIRS)
def fused_update(node: Node, context: KernelContext) -> KernelSpec:
    """The loops of the gradient's kernel, which end a tile with the update of its elements."""
    pair = PAIRS[node.op]
    gradient, *_, update = taken_apart(node)
    spec = kernel_spec(gradient, context)
    sums = _sums(spec)
    names = [*operands(update)]
    names.remove("g")
    given = Named(update.op, names, [_like(update, name, sums) for name in names])
    several = len(update.outputs) > 1
    apart = update.op not in ON_VECTORS or pair.squares or (several and not context.uses_float_vectors)
    if apart:
        sums = te.compute(sums.shape, _element(sums), KEPT_ROWS if update.op in ON_VECTORS else KEPT)
    rows = [tensor(node, name) for name in pair.rows]
    end = _keeping_squares(sums, rows[0]) if rows else as_it_is
    results = UPDATES[update.op](update.op, update.attrs, given, _element(sums), end)
    before, _, after = pair.cut([*operands(node)])
    inputs = [*(given[name] for name in before), *spec.inputs, *rows, *(given[name] for name in after)]
    return KernelSpec(inputs, [*results, *(None for _ in rows)], spec.schedule)


def _keeping_squares(sums: te.Tensor, rows: te.Tensor) -> Finish:
    """The square of an element of the gradient is added to its row on the way to its weight, which is computed once."""

    def end(weight: Expr, *index: Expr) -> Expr:
        more = rows[index[0]] + sums[index] * sums[index]
        return tirx.call_extern("float32", "tt_kept", address(rows, index[0]), more, weight)

    return end


def _sums(spec: KernelSpec) -> te.Tensor:
    """The stage that the gradient's only result copies."""
    (result,) = spec.outputs
    assert result is not None
    (sums,) = result.op.input_tensors
    return sums


def _like(update: Node, name: str, sums: te.Tensor) -> te.Tensor:
    """An operand of the update: what that overwrites by the gradient's indices, anything else as a vector."""
    shape = [int(extent) for extent in sums.shape] if name in op_def(update.op).outputs else None
    return tensor(update, name, shape or (operand(update, name).elements,))


def _element(sums: te.Tensor) -> Load:
    def load(*index: Expr) -> Expr:
        return sums[index]

    return load
