"""Optimizer steps: one loop over the parameter, which is overwritten in place; a gradient may not be stored at all.

A fused update takes each element of a weight gradient from the register in which its sum was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Finish,
    KernelSpec,
    Load,
    Schedule,
    address,
    f32,
    flat_tensor,
    kernel,
    kernel_spec,
    plain,
    tensor,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.elementwise import TE
from tinytrain_compile.lower.kernels.float32.linear import of_one_sample
from tinytrain_compile.lower.schedules import KEPT, KEPT_ROWS, four_at_a_time
from tinytrain_compile.ops.arithmetic import Steps, order_of, run_steps
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.fused_update import FUSED_UPDATE, FusedUpdateAttrs, taken_apart
from tinytrain_compile.ops.names import Named, attrs_of, named, operand, operands
from tinytrain_compile.ops.update import FORMULAS, AdamAttrs, SetAttrs

Results = Sequence[te.Tensor | None]
"""Results of an update, as its operator lists them. None: a helper writes it."""
UpdateRule = Callable[[str, Any, Named[te.Tensor], Load, Finish], Results]
"""(op, attributes, operands except the gradient, the gradient's element at an index, end of the computation of a
parameter or sum) -> results."""


def as_it_is(weight: Expr, *_index: Expr) -> Expr:
    """Return a weight that is only stored."""
    return weight


def by_formula(op: str, attrs: Any, inputs: Named[te.Tensor], g: Load, end: Finish) -> list[te.Tensor]:
    """Compute an update by its formula: stages over the elements that it overwrites. Rule: UpdateRule."""
    overwritten, formula = op_def(op).outputs, FORMULAS[op].formula

    def steps(*index: Expr | int) -> Steps:
        """Return the formula of an element; it reads all of a vector of the state, which has no element there."""
        found: dict[str, Any] = {"g": g(*index)}
        for name, given in inputs.items():
            if name in overwritten:
                found[name] = given[index]
            elif name != "g":
                found[name] = given[0] if int(given.shape[0]) == 1 else given
        return formula(TE, Named(op, [*found], [*found.values()]), attrs)

    made: dict[str, te.Tensor] = {}

    def stage(result: str) -> te.Tensor:
        """Return a result; it reads back the results computed before it."""

        def element(*index: Expr) -> Expr:
            values: dict[str, Any] = {}

            def store(name: str, value: Any) -> Any:
                values[name] = value
                return made[name][index] if name in made else value

            run_steps(steps(*index), store)
            value = f32(values[result]) if isinstance(values[result], float) else values[result]
            return end(value, *index) if result == overwritten[0] else value

        return te.compute(inputs[result].shape, element, "out" if result == overwritten[0] else f"{result}_new")

    for result in order_of(steps(*[0] * len(inputs[overwritten[0]].shape))):
        made[result] = stage(result)
    return [made[result] for result in overwritten]


UPDATES: dict[str, UpdateRule] = dict.fromkeys(FORMULAS, by_formula)
"""Functions that compute the results of an update, by operator."""


@kernel(*FORMULAS)
def update(node: Node, context: KernelContext) -> KernelSpec:
    """Compute all results of an update in one loop over the elements of a stored gradient."""
    inputs = named(node.op, [flat_tensor(node, name) for name in operands(node)], node.attrs)
    results = by_formula(node.op, node.attrs, inputs, _element(inputs["g"]), as_it_is)
    return KernelSpec([*inputs.values()], results, _schedule(node, context, FORMULAS[node.op].lanes))


@kernel("Clear")
def clear(node: Node, context: KernelContext) -> KernelSpec:
    """Store zeros."""
    acc = flat_tensor(node, "acc")
    out = te.compute(acc.shape, lambda _i: f32(0), "out")
    return KernelSpec([acc], [out], _schedule(node, context, True))


def _schedule(node: Node, context: KernelContext, lanes: bool) -> Schedule:
    """Put several stages over the same elements into one loop, on vectors if there are any."""

    def schedule(sch: s_tir.Schedule) -> None:
        names = [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]
        if lanes and context.uses_float_vectors and node.outputs[0].elements >= LANES:
            four_at_a_time(sch, *names, most=1)
        elif len(names) > 1:
            sch.merge(*(sch.get_loops(sch.get_sblock(name))[0] for name in names))

    return schedule


@kernel("AdamTick")
def adam_tick(node: Node, _context: KernelContext) -> KernelSpec:
    """Advance the divisors of both moments by one step."""
    attrs = attrs_of(node, AdamAttrs)
    power = flat_tensor(node, "power")
    rates = (f32(1 - attrs.beta1), f32(1 - attrs.beta2))
    out = te.compute(
        (2,), lambda i: power[i] + te.if_then_else(i < 1, rates[0], rates[1]) * (f32(1) - power[i]), "power_new"
    )
    return KernelSpec([power], [out], plain)


@kernel("SetState")
def set_state(node: Node, _context: KernelContext) -> KernelSpec:
    """Store a constant."""
    attrs = attrs_of(node, SetAttrs)
    x = flat_tensor(node, "x")
    return KernelSpec([x], [te.compute(x.shape, lambda _i: f32(attrs.value), "out")], plain)


# ---- gradients that are not stored -----------------------------------------------------------------------------------


@kernel(FUSED_UPDATE.name)
def fused_update(node: Node, context: KernelContext) -> KernelSpec:
    """End the tiles of the gradient's kernel with the update of their elements."""
    fused = attrs_of(node, FusedUpdateAttrs)
    gradient, *_, update = taken_apart(node)
    spec = kernel_spec(gradient, context)
    sums = _sums(spec)
    names = [name for name in operands(update) if name != "g"]
    given = Named(update.op, names, [_like(update, name, sums) for name in names])
    lanes, several = _has_lanes(update.op), len(update.outputs) > 1
    unrolled = context.uses_float_vectors or (context.uses_float_pairs and of_one_sample(gradient))
    if not lanes or fused.squares or (several and not unrolled):
        sums = te.compute(sums.shape, _element(sums), KEPT_ROWS if lanes else KEPT)
    rows = [tensor(node, name) for name in fused.rows_of(fused.names)]
    end = _keeping_squares(sums, rows[0]) if rows else as_it_is
    results = UPDATES[update.op](update.op, update.attrs, given, _element(sums), end)
    before, _, after = fused.cut(fused.names)
    inputs = [*(given[name] for name in before), *spec.inputs, *rows, *(given[name] for name in after)]
    return KernelSpec(inputs, [*results, *(None for _ in rows)], spec.schedule)


def _has_lanes(op: str) -> bool:
    return op in FORMULAS and FORMULAS[op].lanes


def _keeping_squares(sums: te.Tensor, rows: te.Tensor) -> Finish:
    """Add the square of an element of the gradient to its row on the way to its weight, which is computed once."""

    def end(weight: Expr, *index: Expr) -> Expr:
        more = rows[index[0]] + sums[index] * sums[index]
        return tirx.call_extern("float32", "tt_kept", address(rows, index[0]), more, weight)

    return end


def _sums(spec: KernelSpec) -> te.Tensor:
    """Return the stage that the gradient's only result copies."""
    (result,) = spec.outputs
    assert result is not None
    (sums,) = result.op.input_tensors
    return sums


def _like(update: Node, name: str, sums: te.Tensor) -> te.Tensor:
    """Return an operand of the update: one that it overwrites by the gradient's indices, any other as a vector."""
    shape = [int(extent) for extent in sums.shape] if name in op_def(update.op).overwritten else None
    return tensor(update, name, shape or (operand(update, name).elements,))


def _element(sums: te.Tensor) -> Load:
    def load(*index: Expr) -> Expr:
        return sums[index]

    return load
