"""Weight gradients that go straight into an update or a sum: one operator for each pair, made of the two.

Its operands are those of the update with the gradient's in place of `g`, and it means one after the other. Where
gradients are clipped, there is another one for each pair that adds up the squares of the gradient's rows as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import clip, conv, linear, subspace, update
from tinytrain_compile.ops.base import (
    OPS,
    NonDifferentiable,
    OpDef,
    ReferenceRule,
    form_doc,
    form_name,
    operand_names,
    operator,
)
from tinytrain_compile.ops.int8.update import Q_SUM, Q_UPDATE, QSumAttrs, QUpdateAttrs

T = TypeVar("T")

GRADIENTS = (linear.GEMM_GRAD_WEIGHT, conv.CONV_GRAD_WEIGHT)
"""What makes a weight gradient element by element, each a sum of its own."""

UPDATES = (update.ACCUMULATE, *(op for op in OPS.values() if op.owned is not None and op.owned.is_float_step))
"""What takes a gradient `g` element by element; its first operand has the same shape."""

LOW_RANK_UPDATES = tuple(op for op in UPDATES if update.FORMULAS[op.name].low_rank)
"""What takes it from a low-rank activation as well; others, and clipped gradients, are stored there."""

INTEGER_UPDATES = (Q_SUM, Q_UPDATE)
"""What takes it, from a low-rank activation, to int8 weights."""
_OF_FLOATS: dict[str, tuple[Attrs, ...]] = {
    Q_SUM.name: (QSumAttrs("float"),),
    Q_UPDATE.name: (QUpdateAttrs("float"), QUpdateAttrs("float", fine=True)),
}
"""Forms of integer updates whose gradient is float32: fused ones have the operands of these."""

ROWS = ("rows",)
KEPT_SUMS = 40
"""Sums in a tile of a gradient, at most."""


@dataclass(frozen=True)
class FusedUpdateAttrs(Attrs):
    """Attributes of the gradient and of the update."""

    gradient: Attrs = NO_ATTRS
    update: Attrs = NO_ATTRS


@dataclass(frozen=True)
class Pair:
    """The two operators that a fused one is made of.

    squares: behind the gradient's operands it takes `rows`, to which it adds the squares of the gradient's rows.
    """

    gradient: OpDef
    update: OpDef
    squares: bool = False

    @property
    def name(self) -> str:
        """Of the fused operator."""
        return self._name_of(self.update.name)

    def _name_of(self, update: str) -> str:
        return self.gradient.name + ("Squared" if self.squares else "") + update

    @property
    def rows(self) -> tuple[str, ...]:
        """The operand and result that it has besides those of the two."""
        return ROWS if self.squares else ()

    @property
    def update_inputs(self) -> tuple[str, ...]:
        """Names of the update's operands, as far as they may be there; the gradient is always."""
        forms, names = _OF_FLOATS.get(self.update.name), self.update.inputs
        if forms is None:
            return names
        there = {name for form in forms for name in operand_names(self.update.name, form)}
        always = {"g", *(operand_names(self.update.name, forms[0]) if len(forms) == 1 else ())}
        found = [name for name in names if name.removesuffix("?") in there]
        return tuple(name.removesuffix("?") if name.removesuffix("?") in always else name for name in found)

    @property
    def place(self) -> int:
        """Where the update takes its gradient."""
        return self.update_inputs.index("g")

    def shown(self, attrs: FusedUpdateAttrs) -> tuple[str, str]:
        """Return (name, doc) that generated code shows for these attributes."""
        name, doc = form_name(self.update.name, attrs.update), form_doc(self.update.name, attrs.update)
        squares = ", its squares are added to rows" if self.squares else ""
        stem = doc.rstrip(".").partition("; operands")[0]
        return self._name_of(name), f"{stem}; g is not stored{squares}. {self.gradient.doc}"

    def cut(self, operands: Sequence[T]) -> tuple[tuple[T, ...], tuple[T, ...], tuple[T, ...]]:
        """Return the operands of the update in front of its gradient, those of the gradient, those of the update behind
        it."""
        first, last = self.place, self.place + len(self.gradient.inputs)
        return (*operands[:first],), (*operands[first:last],), (*operands[last + len(self.rows) :],)

    def rows_of(self, operands: Sequence[T]) -> tuple[T, ...]:
        """Return the operand `rows`, if there is one."""
        place = self.place + len(self.gradient.inputs)
        return (*operands[place : place + len(self.rows)],)


PAIRS: dict[str, Pair] = {}


def fused_pair(gradient: str, update: str, squares: bool = False) -> Pair | None:
    """Return the operator that does both, and adds up squares if asked for, if there is one."""
    middle = "Squared" if squares else ""
    return PAIRS.get(gradient + middle + update)


def taken_apart(node: Node) -> tuple[Node, ...]:
    """Take a fused node apart into those that it means, with a gradient between them; any other node as it is."""
    pair = PAIRS.get(node.op)
    if pair is None:
        return (node,)
    assert isinstance(node.attrs, FusedUpdateAttrs)
    before, of_gradient, after = pair.cut(node.inputs)
    ((shape, dtype, layout),) = pair.gradient.infer(of_gradient, node.attrs.gradient)
    g = Value(f"{node.name}.{pair.gradient.name}", shape, dtype, layout)
    gradient = replace(
        node, name=g.name, op=pair.gradient.name, inputs=of_gradient, outputs=(g,), attrs=node.attrs.gradient
    )
    own = replace(node, op=pair.update.name, inputs=(*before, g, *after), attrs=node.attrs.update)
    if not pair.squares:
        return gradient, own
    (*kept, rows) = node.outputs
    squares = replace(node, name=rows.name, op=clip.ROW_SQUARES.name, inputs=(g,), outputs=(rows,), attrs=NO_ATTRS)
    return gradient, squares, replace(own, outputs=(*kept,))


def _infer(pair: Pair, inputs: tuple[Value, ...], attrs: FusedUpdateAttrs) -> tuple[TensorType, ...]:
    before, of_gradient, after = pair.cut(inputs)
    ((shape, dtype, layout),) = pair.gradient.infer(of_gradient, attrs.gradient)
    found = pair.update.infer((*before, Value("g", shape, dtype, layout), *after), attrs.update)
    return (*found, *(TensorType(shape[:1], "float32") for _ in pair.rows))


def _run(
    pair: Pair, rules: tuple[ReferenceRule, ReferenceRule], arrays: tuple[Array, ...], attrs: FusedUpdateAttrs
) -> tuple[Array, ...]:
    before, of_gradient, after = pair.cut(arrays)
    (g,) = rules[0](of_gradient, attrs.gradient)
    squares = [clip.added_squares(rows, g) for rows in pair.rows_of(arrays)]
    return (*rules[1]((*before, g, *after), attrs.update), *squares)


def _kept_bytes(pair: Pair, node: Node) -> int:
    """Return the bytes of the sums of a tile, which an update of several tensors, or of integers, goes over in a
    loop."""
    elements = node.outputs[0].elements
    return 4 * min(KEPT_SUMS, elements) if len(node.outputs) > 1 or pair.update in INTEGER_UPDATES else 0


def _fuse(pair: Pair) -> None:
    first, last = pair.gradient, pair.update
    plain = first.reference, last.reference
    exact = first.exact or first.reference, last.exact or last.reference
    present, inputs = last.present, pair.update_inputs
    fixed = tuple(name for name in last.outputs if name[-1] != "?")
    outputs = (*fixed, *(name for name in last.outputs if name in inputs and name not in fixed))
    held = [name.removesuffix("?") for name in outputs]
    PAIRS[pair.name] = pair
    operator(
        pair.name,
        pair.shown(FusedUpdateAttrs())[1] if last.shown is None else last.doc,
        lambda inputs, attrs: _infer(pair, inputs, attrs),
        lambda arrays, attrs: _run(pair, plain, arrays, attrs),
        NonDifferentiable("updates are not part of the differentiated function"),
        FusedUpdateAttrs,
        scratch=lambda node: first.scratch(taken_apart(node)[0]) + _kept_bytes(pair, node),
        macs=lambda node: first.macs(taken_apart(node)[0]),
        exact=lambda arrays, attrs: _run(pair, exact, arrays, attrs),
        inputs=(*inputs[: pair.place], *first.inputs, *pair.rows, *inputs[pair.place + 1 :]),
        outputs=(*outputs, *pair.rows),
        owned=last.owned and last.owned.fused(held, pair.rows),
        present=None if present is None else lambda attrs: present(attrs.update),
        shown=None if last.shown is None else pair.shown,
    )


for _gradient in GRADIENTS:
    for _update in UPDATES:
        _fuse(Pair(_gradient, _update))
        if _update is not update.ACCUMULATE:
            _fuse(Pair(_gradient, _update, squares=True))
for _update in (*LOW_RANK_UPDATES, *INTEGER_UPDATES):
    _fuse(Pair(subspace.SUBSPACE_GRAD_WEIGHT, _update))
for _update in INTEGER_UPDATES:
    _fuse(Pair(conv.CONV_GRAD_WEIGHT, _update))
