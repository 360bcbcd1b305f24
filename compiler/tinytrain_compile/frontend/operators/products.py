"""Matrix products: Gemm, MatMul and Einsum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import Entry, plain
from tinytrain_compile.frontend.graph.operands import broadcast, transposed
from tinytrain_compile.frontend.operators.normalisation import FoldedLayer, fold_into_layer
from tinytrain_compile.frontend.operators.reductions import reduce_entry
from tinytrain_compile.frontend.operators.shape import reshaped
from tinytrain_compile.frontend.operators.slicing import without
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.linear import GemmAttrs, MatMulAttrs
from tinytrain_compile.ops.shape import ExpandAttrs

# ---- Gemm and MatMul -------------------------------------------------------------------------------------------------

_SWAP = (1, 0)
"""The axes of a transposed matrix."""


def _gemm(ctx: ImportContext, node: OnnxNode) -> None:
    a, b, c = ctx.entry(node.input(0)), ctx.entry(node.input(1)), ctx.optional(node.input(2))
    if a.rank != 2 or b.rank != 2:
        raise ValueError(f"Gemm of shapes {a.shape} and {b.shape}")
    a = transposed(a, _SWAP) if node.integer("transA", 0) else a
    b = transposed(b, _SWAP) if node.integer("transB", 0) else b
    shape = (a.shape[0], b.shape[1])
    if a.shape[1] != b.shape[0] or (c is not None and broadcast(c.shape, shape) != shape):
        raise ValueError(f"Gemm of shapes {a.shape}, {b.shape}" + (f" and {c.shape}" if c else ""))
    beta = node.number("beta", 1.0)
    if b.is_constant and not a.is_constant:
        _dense(ctx, node, a, b, c if beta else None, shape)
    else:
        alpha = node.number("alpha", 1.0)
        product = _matrix_product(ctx, node, a, b)
        y = (
            product
            if alpha == 1.0
            else ctx.emit(node, "Mul", (product, ctx.number(node, "alpha", alpha)), suffix="alpha")
        )
        _add_c(ctx, node, y, c if beta else None, shape, node.output(0))


def _dense(ctx: ImportContext, node: OnnxNode, a: Entry, b: Entry, c: Entry | None, shape: tuple[int, int]) -> None:
    """Import x times a constant weight; C becomes the bias if it is one number per column, else an Add."""
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if alpha != 1.0:  # into the weight it would change what a step does to that
        a = replace(a, value=ctx.emit(node, "Mul", (a.computed, ctx.number(node, "alpha", alpha)), suffix="alpha"))
    weight = b.data.T.astype(np.float32)
    bias = _bias_vector(c, shape) if beta == 1.0 else None
    if c is None or bias is not None:
        layer = fold_into_layer(ctx, node, weight, bias, c)
        c = None
    else:
        layer = FoldedLayer(weight, None, None, node.output(0))
    y = _emit_dense(ctx, node, a, b, layer)
    _add_c(ctx, node, y, c, shape, layer.output)


def _emit_dense(ctx: ImportContext, node: OnnxNode, a: Entry, b: Entry, layer: FoldedLayer) -> Value:
    """Return one IR Gemm; a flattened channels-last image meets a weight whose columns are permuted to match."""
    columns = slice(None) if a.columns is None else list(a.columns)

    def lay(array: Array) -> Array:
        return array.T[:, columns]

    x = ctx.value(node, a) if a.columns is None else a.value
    assert x is not None
    weight = ctx.weight(b, node, 1, lay, layer.weight[:, columns], layer.fold)
    operands = [x, weight, *layer.bias_operand(ctx, node, weight)]
    return ctx.emit(node, "Gemm", operands, GemmAttrs(bias=layer.bias is not None))


def _bias_vector(c: Entry | None, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Return C as a vector of one number per column, if it is that."""
    rows, columns = shape
    if c is None or not c.is_constant or c.elements != columns:
        return None
    per_column = c.shape in ((columns,), (1, columns)) or (columns == 1 and (c.rank < 2 or rows == 1))
    return c.data.reshape(columns).astype(np.float32) if per_column else None


def _add_c(ctx: ImportContext, node: OnnxNode, y: Value, c: Entry | None, shape: tuple[int, int], output: str) -> None:
    if c is not None:
        beta = node.number("beta", 1.0)
        operand = ctx.operand(node, c, plain(2), 2)
        if beta != 1.0:
            operand = ctx.emit(node, "Mul", (operand, ctx.number(node, "beta", beta)), suffix="beta")
        y = ctx.emit(node, "Add", (y, operand), suffix="c")
    ctx.define_value(output, y, shape)


def product(ctx: ImportContext, node: OnnxNode, a: Entry, b: Entry, foldable: bool = False) -> Entry:
    """Return numpy's matmul of two entries; foldable: a normalisation behind it may go into b, a constant matrix."""
    if not a.rank or not b.rank:
        raise ValueError("MatMul of a scalar")
    left = _as_matrix(ctx, node, a, (1, *a.shape)) if a.rank == 1 else a
    right = _as_matrix(ctx, node, b, (*b.shape, 1)) if b.rank == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"MatMul of shapes {a.shape} and {b.shape}")
    if right.is_constant and not left.is_constant and all(dim == 1 for dim in right.shape[:-2]):
        y = _weight_product(ctx, node, left, right, foldable and a.rank == b.rank == 2)
    else:
        value = _matrix_product(ctx, node, left, right)
        y = Entry(value.shape, value, plain(len(value.shape)))
    if left is a and right is b:
        return y
    shape = (*y.shape[:-2], *y.shape[-2 : -2 if a.rank == 1 else -1], *(() if b.rank == 1 else y.shape[-1:]))
    return Entry(shape, ctx.reshape(node, ctx.value(node, y), shape), plain(len(shape)))


def _as_matrix(ctx: ImportContext, node: OnnxNode, entry: Entry, shape: tuple[int, ...]) -> Entry:
    if entry.is_constant:
        return entry.laid(lambda array: array.reshape(shape))
    return Entry(shape, ctx.reshape(node, ctx.value(node, entry), shape), plain(2))


def _weight_product(ctx: ImportContext, node: OnnxNode, x: Entry, weight: Entry, foldable: bool) -> Entry:
    """Return rows times a constant weight. The order of the rows does not matter, as long as each row lies together."""
    depth, width = weight.shape[-2:]
    table = weight.data.reshape(depth, width).T
    b = weight.laid(lambda array: array.reshape(depth, width))
    shape = (*x.shape[:-1], width)
    order = x.order if x.order and x.order[-1] == x.rank - 1 else plain(x.rank)
    if x.columns is not None:
        rows = x
    else:
        value = ctx.value(node, x, order)
        flat = (math.prod(x.shape[:-1]), depth)
        rows = Entry(flat, ctx.reshape(node, value, flat), plain(2))
    layer = FoldedLayer(table, None, None, node.output(0))
    if foldable:
        layer = fold_into_layer(ctx, node, table, None, None)
    y = _emit_dense(ctx, node, rows, b, layer)
    ir = (*(1 if axis < 0 else x.shape[axis] for axis in order[:-1]), width)
    entry = Entry(shape, ctx.reshape(node, y, ir), order)
    ctx.define(layer.output, entry)
    return entry


def _matrix_product(ctx: ImportContext, node: OnnxNode, a: Entry, b: Entry) -> Value:
    """Return batched product in ONNX order; a swap of the last two axes goes into the operator's flags."""
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if b.rank == 2 and a.rank > 2:  # rows of all batches times one matrix
        flat = ctx.reshape(node, ctx.value(node, a), (math.prod(a.shape[:-1]), a.shape[-1]))
        right, swapped = _matrix(ctx, node, b, (), 1)
        return ctx.reshape(node, ctx.emit(node, "MatMul", (flat, right), MatMulAttrs(False, swapped)), shape)
    left, swap_left = _matrix(ctx, node, a, batch, 0)
    right, swap_right = _matrix(ctx, node, b, batch, 1)
    return ctx.emit(node, "MatMul", (left, right), MatMulAttrs(swap_left, swap_right))


def _matrix(ctx: ImportContext, node: OnnxNode, entry: Entry, batch: tuple[int, ...], index: int) -> tuple[Value, bool]:
    """Return an operand with these batch axes, and whether its last two axes lie swapped."""
    rank = entry.rank
    swapped_order = (*range(rank - 2), rank - 1, rank - 2)
    swapped = not entry.is_constant and entry.order == swapped_order
    order = swapped_order if swapped else plain(rank)
    value = ctx.weight(entry, node, index) if entry.is_constant else ctx.value(node, entry, order)
    target = (*batch, *value.shape[-2:])
    value = ctx.reshape(node, value, (*(1,) * (len(target) - rank), *value.shape))
    if value.shape != target:
        value = ctx.emit(node, "Expand", (value,), ExpandAttrs(target), "expand")
    return value, swapped


# ---- Einsum: sums, permutations and products of two operands at a time -----------------------------------------------

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
    """Return the operands with their labels, and the labels of the result."""
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
            raise Refused("equation", f"a label occurs twice in {text}", "labels that differ, and Mul")
        if (entry is not None and len(text) != entry.rank) or not set(text) <= set("".join(labels)):
            raise ValueError(f"labels {text} do not fit")
    return [_Term(text, entry) for text, entry in zip(labels, entries, strict=True)], wanted


def _named(text: str, spare: int) -> str:
    if not 0 <= spare <= len(_UNNAMED):
        raise ValueError(f"labels {text} do not fit")
    return text.replace("...", _UNNAMED[len(_UNNAMED) - spare :])


def _summed(ctx: ImportContext, node: OnnxNode, term: _Term, kept: frozenset[str]) -> _Term:
    """Return the term without the labels that nobody else needs."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in kept)
    if not axes:
        return term
    labels = "".join(label for label in term.labels if label in kept)
    if term.entry.is_constant:
        raise Refused("equation", "a weight is summed over an axis of its own", "ReduceSum of the weight")
    return _Term(labels, without(ctx, node, reduce_entry(ctx, node, term.entry, axes, False, "sum"), frozenset(axes)))


def _ordered(term: _Term, labels: str) -> _Term:
    return _Term(labels, transposed(term.entry, tuple(term.labels.index(label) for label in labels)))


def _shaped(ctx: ImportContext, node: OnnxNode, entry: Entry, shape: tuple[int, ...]) -> Entry:
    if entry.is_constant:
        return entry.laid(lambda array: array.reshape(shape))
    return reshaped(ctx, node, entry, shape)


def _pair(ctx: ImportContext, node: OnnxNode, a: _Term, b: _Term, wanted: frozenset[str]) -> _Term:
    """Return one product: labels of both that are wanted are a batch, those that are not are summed over."""
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


HANDLERS: Mapping[str, Handler] = {
    "Gemm": _gemm,
    "MatMul": of_one(lambda ctx, node, a: product(ctx, node, a, ctx.entry(node.input(1)), True)),
    "Einsum": _einsum,
}
