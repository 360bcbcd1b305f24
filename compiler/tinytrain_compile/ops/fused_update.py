"""Weight gradients that go straight into an update or a sum: one operator, whose attributes name the two.

Its operands are those of the update with the gradient's in place of `g`; it does one after the other. If gradients are
clipped, it adds up the squares of the gradient's rows as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TypeVar

from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import clip, conv, linear, subspace, update
from tinytrain_compile.ops.base import (
    OPS,
    NonDifferentiable,
    form_doc,
    form_name,
    op_def,
    operand_names,
    operator,
    steps_floats,
)
from tinytrain_compile.ops.describe import description
from tinytrain_compile.ops.int8.update import Q_SUM, Q_UPDATE, QSumAttrs, QUpdateAttrs
from tinytrain_compile.ops.names import attrs_of
from tinytrain_compile.ops.owned import OF_PARTS

T = TypeVar("T")

KEPT_SUMS = 40
"""Most sums in a tile of a gradient."""
ROWS = "rows"
"""Operand and result for the squares of the gradient's rows."""
INTEGER_UPDATES = (Q_SUM.name, Q_UPDATE.name)
"""Operators that apply the gradient of a low-rank activation to int8 weights."""
_GRADIENTS = (linear.GEMM_GRAD_WEIGHT.name, conv.CONV_GRAD_WEIGHT.name)
"""Operators that make a weight gradient element by element, each element a separate sum."""
_STEPS = tuple(name for name in OPS if steps_floats(name))
"""Updates that use a gradient `g` element by element; their first operand has its shape. ACCUMULATE does so too."""
_LOW_RANK = tuple(name for name in (update.ACCUMULATE.name, *_STEPS) if update.FORMULAS[name].low_rank)
"""Updates that are also fused with the gradient of a low-rank activation. Others, and clipped gradients, get it
stored."""

PAIRS: tuple[tuple[str, str, bool], ...] = (
    *((gradient, step, squares) for gradient in _GRADIENTS for step in _STEPS for squares in (False, True)),
    *((gradient, update.ACCUMULATE.name, False) for gradient in _GRADIENTS),
    *((subspace.SUBSPACE_GRAD_WEIGHT.name, taken, False) for taken in (*_LOW_RANK, *INTEGER_UPDATES)),
    *((conv.CONV_GRAD_WEIGHT.name, taken, False) for taken in INTEGER_UPDATES),
)
"""Operators that can be fused: (gradient, update, whether squares are added up)."""


@dataclass(frozen=True)
class FusedUpdateAttrs(Attrs):
    """The operators that a node fuses, a pair of PAIRS, and the attributes of each.

    squares: after the gradient's operands comes `rows`, to which the node adds the squares of the gradient's rows.
    """

    gradient: str
    update: str
    of_gradient: Attrs = NO_ATTRS
    of_update: Attrs = NO_ATTRS
    squares: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands, in order."""
        own, place = operand_names(self.update, self.of_update), self.place
        return (*own[:place], *op_def(self.gradient).inputs, *([ROWS] if self.squares else []), *own[place + 1 :])

    @property
    def place(self) -> int:
        """Index of the gradient among the update's operands."""
        return operand_names(self.update, self.of_update).index("g")

    @property
    def _rows_place(self) -> int:
        return self.place + len(op_def(self.gradient).inputs)

    def cut(self, operands: Sequence[T]) -> tuple[tuple[T, ...], tuple[T, ...], tuple[T, ...]]:
        """Return the operands of the update before its gradient, those of the gradient, those of the update after
        it."""
        first, last = self.place, self._rows_place
        return (*operands[:first],), (*operands[first:last],), (*operands[last + self.squares :],)

    def rows_of(self, operands: Sequence[T]) -> tuple[T, ...]:
        """Return the operand `rows`, if there is one."""
        return (*operands[self._rows_place :][: self.squares],)


def taken_apart(node: Node) -> tuple[Node, ...]:
    """Split a fused node into its two nodes, with a gradient between them; return any other node unchanged."""
    attrs = node.attrs
    if not isinstance(attrs, FusedUpdateAttrs):
        return (node,)
    before, of_gradient, after = attrs.cut(node.inputs)
    ((shape, dtype, layout),) = op_def(attrs.gradient).infer(of_gradient, attrs.of_gradient)
    g = Value(f"{node.name}.{attrs.gradient}", shape, dtype, layout)
    gradient = replace(node, name=g.name, op=attrs.gradient, inputs=of_gradient, outputs=(g,), attrs=attrs.of_gradient)
    own = replace(node, op=attrs.update, inputs=(*before, g, *after), attrs=attrs.of_update)
    if not attrs.squares:
        return gradient, own
    (*kept, rows) = node.outputs
    squares = replace(node, name=rows.name, op=clip.ROW_SQUARES.name, inputs=(g,), outputs=(rows,), attrs=NO_ATTRS)
    return gradient, squares, replace(own, outputs=(*kept,))


def _infer(inputs: tuple[Value, ...], attrs: FusedUpdateAttrs) -> tuple[TensorType, ...]:
    if (attrs.gradient, attrs.update, attrs.squares) not in PAIRS:
        raise ValueError(f"{_shown(attrs)[0]}: these two operators cannot be fused")
    before, of_gradient, after = attrs.cut(inputs)
    ((shape, dtype, layout),) = op_def(attrs.gradient).infer(of_gradient, attrs.of_gradient)
    found = op_def(attrs.update).infer((*before, Value("g", shape, dtype, layout), *after), attrs.of_update)
    return (*found, *(TensorType(shape[:1], "float32") for _ in range(attrs.squares)))


def _run(arrays: tuple[Array, ...], attrs: FusedUpdateAttrs, exact: bool = False) -> tuple[Array, ...]:
    parts = op_def(attrs.gradient), op_def(attrs.update)
    rules = [(exact and part.exact) or part.reference for part in parts]
    before, of_gradient, after = attrs.cut(arrays)
    (g,) = rules[0](of_gradient, attrs.of_gradient)
    squares = [clip.added_squares(rows, g) for rows in attrs.rows_of(arrays)]
    return (*rules[1]((*before, g, *after), attrs.of_update), *squares)


def _kept_bytes(node: Node) -> int:
    """Return the bytes of the sums of a tile; an update of several tensors, or of integers, loops over them."""
    elements, integer = node.outputs[0].elements, attrs_of(node, FusedUpdateAttrs).update in INTEGER_UPDATES
    return 4 * min(KEPT_SUMS, elements) if len(node.outputs) > 1 or integer else 0


def _shown(attrs: FusedUpdateAttrs) -> tuple[str, str]:
    """Return (name, doc) that generated code shows: those of both operators."""
    name, doc = form_name(attrs.update, attrs.of_update), form_doc(attrs.update, attrs.of_update)
    squared, squares = ("Squared", ", its squares are added to rows") if attrs.squares else ("", "")
    stem = doc.rstrip(".").partition("; operands")[0]
    return f"{attrs.gradient}{squared}{name}", f"{stem}; g is not stored{squares}. {op_def(attrs.gradient).doc}"


def _says(node: Node) -> str:
    """Describe both operators: the update, and the gradient g that it uses."""
    gradient, *squares, own = taken_apart(node)
    added = " Its squares are added to rows." if squares else ""
    what = description(gradient).rstrip(".").partition("= ")[2]
    return f"{description(own).rstrip('.')}; g, which is not stored, = {what}.{added}"


def _operands() -> Iterator[str]:
    """Yield every operand that a pair may have, in an order that suits all pairs."""
    of_floats = [op_def(name).inputs for name in (update.ACCUMULATE.name, *_STEPS)]
    of_integers = [operand_names(Q_UPDATE.name, QUpdateAttrs("float", fine)) for fine in (False, True)]
    order = TopologicalSorter[str]()
    for names in (*of_floats, *of_integers, operand_names(Q_SUM.name, QSumAttrs("float"))):
        for name, behind in pairwise(each.removesuffix("?") for each in names):
            order.add(behind, name)
    of_gradients = dict.fromkeys(name for gradient, *_ in PAIRS for name in op_def(gradient).inputs)
    for name in order.static_order():
        yield from (*of_gradients, ROWS) if name == "g" else (name,)


_OPERANDS = tuple(_operands())
_OVERWRITTEN = {name for _, taken, _ in PAIRS for name in op_def(taken).overwritten} - {ROWS}
FUSED_UPDATE = operator(
    "FusedUpdate",
    "A weight gradient that is not stored and the update, or sum, that takes it: the operators `gradient` and "
    "`update`; `squares`: the squares of its rows are added to `rows`.",
    _infer,
    _run,
    NonDifferentiable("updates are not part of the differentiated function"),
    FusedUpdateAttrs,
    scratch=lambda node: op_def((gradient := taken_apart(node)[0]).op).scratch(gradient) + _kept_bytes(node),
    macs=lambda node: op_def((gradient := taken_apart(node)[0]).op).macs(gradient),
    exact=lambda arrays, attrs: _run(arrays, attrs, True),
    inputs=tuple(f"{name}?" for name in _OPERANDS),
    outputs=tuple(f"{name}?" for name in (*(name for name in _OPERANDS if name in _OVERWRITTEN), ROWS)),
    owned=OF_PARTS,
    present=lambda attrs: attrs.names,
    shown=_shown,
    says=_says,
)
