"""Einsum as sums, permutations and matrix products of two operands at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.graph.operands import transposed
from tinytrain_compile.frontend.operators.linear import product
from tinytrain_compile.frontend.operators.shape import reshaped, without
from tinytrain_compile.frontend.operators.slicing import reduce_entry

_UNNAMED = "0123456789ABCDEF"
"""Labels of the axes that an ellipsis stands for, the last axis at the end."""


@dataclass(frozen=True, eq=False)
class _Term:
    """An operand and the labels of its axes."""

    labels: str
    entry: Entry

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.labels, self.entry.shape, strict=True))


def _einsum(ctx: ImportContext, node: OnnxNode) -> None:
    terms, wanted = _read(ctx, node)
    result = terms[0]
    for index, term in enumerate(terms[1:], start=1):
        later = "".join(other.labels for other in terms[index + 1 :])
        result = _pair(ctx, node, result, term, frozenset(wanted + later))
    result = _ordered(_summed(ctx, node, result, frozenset(wanted)), wanted)
    ctx.define(node.output(0), result.entry)


def _read(ctx: ImportContext, node: OnnxNode) -> tuple[list[_Term], str]:
    """The operands with their labels, and the labels of the result."""
    left, arrow, right = node.text("equation", "").replace(" ", "").partition("->")
    entries = [ctx.entry(name) for name in node.inputs]
    texts = left.split(",")
    if len(texts) != len(entries):
        raise ValueError(f"equation {left} for {len(entries)} operands")
    spare = [entry.rank - len(text.replace("...", "")) for text, entry in zip(texts, entries, strict=True)]
    labels = [_named(text, count) for text, count in zip(texts, spare, strict=True)]
    unnamed = _UNNAMED[len(_UNNAMED) - max(n if "..." in text else 0 for text, n in zip(texts, spare, strict=True)) :]
    if arrow:
        wanted = right.replace("...", unnamed)
    else:
        whole = "".join(labels)
        wanted = unnamed + "".join(sorted(c for c in set(whole) if whole.count(c) == 1 and c not in unnamed))
    for text, entry in zip([*labels, wanted], [*entries, None], strict=True):
        if len(set(text)) != len(text):
            raise Unsupported("equation", f"a label occurs twice in {text}", "labels that differ, and Mul")
        if (entry is not None and len(text) != entry.rank) or not set(text) <= set("".join(labels)):
            raise ValueError(f"labels {text} do not fit")
    return [_Term(text, entry) for text, entry in zip(labels, entries, strict=True)], wanted


def _named(text: str, spare: int) -> str:
    if not 0 <= spare <= len(_UNNAMED):
        raise ValueError(f"labels {text} do not fit")
    return text.replace("...", _UNNAMED[len(_UNNAMED) - spare :])


def _summed(ctx: ImportContext, node: OnnxNode, term: _Term, kept: frozenset[str]) -> _Term:
    """The term without the labels that nobody else needs."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in kept)
    if not axes:
        return term
    labels = "".join(label for label in term.labels if label in kept)
    if term.entry.is_constant:
        raise Unsupported("equation", "a weight is summed over an axis of its own", "ReduceSum of the weight")
    return _Term(labels, without(ctx, node, reduce_entry(ctx, node, term.entry, axes, False, "sum"), frozenset(axes)))


def _ordered(term: _Term, labels: str) -> _Term:
    return _Term(labels, transposed(term.entry, tuple(term.labels.index(label) for label in labels)))


def _shaped(ctx: ImportContext, node: OnnxNode, entry: Entry, shape: tuple[int, ...]) -> Entry:
    if entry.is_constant:
        return entry.laid(lambda array: array.reshape(shape))
    return reshaped(ctx, node, entry, shape)


def _pair(ctx: ImportContext, node: OnnxNode, a: _Term, b: _Term, wanted: frozenset[str]) -> _Term:
    """One product: labels of both that are wanted are a batch, those that are not are summed over."""
    if a.entry.is_constant and not b.entry.is_constant:
        a, b = b, a
    a, b = _summed(ctx, node, a, wanted | set(b.labels)), _summed(ctx, node, b, wanted | set(a.labels))
    both = [label for label in a.labels if label in b.labels]
    batch = "".join(label for label in both if label in wanted)
    inner = "".join(label for label in both if label not in wanted)
    rows, columns = ("".join(c for c in t.labels if c not in both) for t in (a, b))
    sizes = {**a.sizes, **b.sizes}
    if any(a.sizes[label] != b.sizes[label] for label in both):
        raise ValueError(f"labels {''.join(both)} stand for different sizes")
    m, k, n = (math.prod(sizes[label] for label in labels) for labels in (rows, inner, columns))
    front = (math.prod(sizes[label] for label in batch),) if batch else ()
    left = _shaped(ctx, node, _ordered(a, batch + rows + inner).entry, (*front, m, k))
    right = _shaped(ctx, node, _ordered(b, batch + inner + columns).entry, (*front, k, n))
    y = product(ctx, node, left, right)
    labels = batch + rows + columns
    return _Term(labels, _shaped(ctx, node, y, tuple(sizes[label] for label in labels)))


HANDLERS: Mapping[str, Handler] = {"Einsum": _einsum}
