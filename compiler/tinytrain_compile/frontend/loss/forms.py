"""A loss that the file writes out: how it joins the samples of a batch, and whether it is one that we have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinytrain_compile.frontend.file.model import LOSS_OPS, OnnxNode, reachable
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.operands import axis_indices, constant_input, integers, scalar
from tinytrain_compile.frontend.loss.own_loss import LossSite, through
from tinytrain_compile.ir.imported import LossJoin, LossKind

_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum"}
_PASSING = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
_EVEN = frozenset(("ReduceSumSquare", "ReduceL1", "ReduceL2"))
_FIXED, _EACH, _MEAN, _SUM, _OTHER = "fixed", "each", "mean", "sum", "other"


@dataclass(frozen=True)
class KnownLoss:
    """kind, reduction: as in ImportedLoss; scores: the tensor that this loss reads."""

    kind: LossKind
    reduction: LossJoin
    scores: str


# ---- the samples of a batch -----------------------------------------------------------------------------------------


def joined(ctx: ImportContext, site: LossSite) -> LossJoin:
    """Return how the loss of a batch follows from those of its samples: their mean, their sum, or in another way.

    Axis 0 of what depends on a sample is that of the samples, until something reduces it. A loss that nothing reduces
    over it is of one sample; of several it is their mean.
    """
    kinds: dict[str, str] = {value.name: _EACH for value in ctx.model.inputs}
    forward = {node.name for node in reachable(ctx.model.nodes, site.read)}
    for node in ctx.model.nodes:
        found = [kinds.get(name, _FIXED) for name in node.inputs if name]
        within = _EACH if _EACH in found else _FIXED  # what a model does inside of a sample is its own affair
        kind = within if node.name in forward else _joined(ctx, node, found)
        kinds.update(dict.fromkeys((name for name in node.outputs if name), kind))
    kind = kinds[site.output]
    return "sum" if kind == _SUM else "other" if kind in (_OTHER, _FIXED) else "mean"


def _joined(ctx: ImportContext, node: OnnxNode, operands: list[str]) -> str:
    known = {kind for kind in operands if kind != _FIXED}
    if not known:
        return _FIXED
    if node.op in LOSS_OPS:
        return _of_operator(node)
    if known == {_EACH}:
        moved = node.op == "Transpose" and (node.integers("perm") or (1,))[0] != 0
        return _OTHER if moved else _reduced(ctx, node)
    if len(known) > 1:
        return _OTHER
    (kind,) = known
    if node.op in (*_PASSING, "Neg", "ReduceMean", "ReduceSum"):
        return kind
    if node.op in ("Add", "Sub", "Sum") and (kind == _MEAN or _FIXED not in operands):
        return kind  # what is added to a sum counts once for a batch, and not with every sample
    scales = (node.op == "Mul" and operands.count(kind) == 1) or (node.op == "Div" and operands[0] == kind)
    return kind if scales and operands.count(kind) == 1 else _OTHER


def _of_operator(node: OnnxNode) -> str:
    reduction = node.text("reduction", "mean")
    if reduction == "mean" and (node.input(2) or "ignore_index" in node.attrs):
        return _OTHER  # the weights of all labels divide it
    return {"mean": _MEAN, "sum": _SUM}.get(reduction, _EACH)


def _reduced(ctx: ImportContext, node: OnnxNode) -> str:
    if node.op not in (*_REDUCTIONS, *_EVEN) or 0 not in _axes(ctx, node):
        return _EACH
    return _REDUCTIONS.get(node.op, _SUM if node.op != "ReduceL2" else _OTHER)


def _axes(ctx: ImportContext, node: OnnxNode) -> tuple[int, ...]:
    """Return the axes that a reduction is over."""
    rank = ctx.entry(node.input(0)).rank
    given = node.integers("axes")
    if given is None:
        data = constant_input(ctx, node, 1, "axes")
        given = () if data is None else integers(data)
    if not given:
        return () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return axis_indices(given, rank)


# ---- forms of losses that we have -----------------------------------------------------------------------------------


def known_loss(ctx: ImportContext, site: LossSite) -> KnownLoss | None:
    """Return the loss of ours that the file writes out, if it is one to the letter; None for any other."""
    return _Form(ctx, site).found()


class _Form:
    def __init__(self, ctx: ImportContext, site: LossSite) -> None:
        self._ctx, self._links = ctx, ctx.links
        self._label, self._output = site.label.name, site.output

    def found(self) -> KnownLoss | None:
        """Return mean or sum over everything of minus a chosen log-probability.

        Mean of squared differences; of a BCE.
        """
        name, minus = self._signless(self._output)
        node = self._links.maker(name)
        if node is None or node.op not in _REDUCTIONS or not self._reduces_all(node):
            return None
        reduction: LossJoin = "mean" if node.op == "ReduceMean" else "sum"
        term, below = self._signless(node.input(0))
        negative = minus != below
        scores = self._picked(term) if negative else None
        if scores is not None:
            return KnownLoss("nll", reduction, scores)
        if reduction == "mean" and not negative:
            scores = self._squared(term)
            if scores is not None:
                return KnownLoss("mse", "mean", scores)
        scores = self._binary(term) if negative and reduction == "mean" else None
        return None if scores is None else KnownLoss("bce", "mean", scores)

    def _signless(self, name: str) -> tuple[str, bool]:
        """Return the tensor behind views and signs, and whether these make it negative."""
        minus = False
        while True:
            name = through(self._links, name, _PASSING)
            node = self._links.maker(name)
            if node is None or node.op != "Neg":
                return name, minus
            name, minus = node.input(0), not minus

    def _reduces_all(self, node: OnnxNode) -> bool:
        axes, shape = _axes(self._ctx, node), self._ctx.entry(node.input(0)).shape
        return all(axis in axes or dim == 1 for axis, dim in enumerate(shape)) and (not shape or 0 in axes)

    def _is_label(self, name: str) -> bool:
        return through(self._links, name, _PASSING) == self._label

    def _picked(self, name: str) -> str | None:
        """Return scores of which the labels pick one each: by a gather, or as a product with one-hot vectors."""
        node = self._links.maker(name)
        if node is None:
            return None
        if node.op in ("GatherElements", "Gather") and self._is_label(node.input(1)):
            return node.input(0)
        if node.op != "ReduceSum" or _axes(self._ctx, node) != (1,):
            return None
        product = self._links.maker(node.input(0))
        if product is None or product.op != "Mul":
            return None
        for hot, scores in (product.inputs, product.inputs[::-1]):
            maker = self._links.maker(through(self._links, hot, ("Identity", "Cast")))
            if maker is not None and maker.op == "OneHot" and self._is_plain_one_hot(maker):
                return scores
        return None

    def _is_plain_one_hot(self, node: OnnxNode) -> bool:
        values = self._ctx.entry(node.input(2)) if self._ctx.has(node.input(2)) else None
        plain = values is not None and values.is_constant and [float(v) for v in values.data.ravel()] == [0.0, 1.0]
        return plain and self._is_label(node.input(0))

    def _squared(self, name: str) -> str | None:
        """Return y of (y - t)^2, in either order."""
        node = self._links.maker(name)
        if node is None:
            return None
        squares = node.op == "Mul" and node.input(0) == node.input(1)
        squares |= node.op == "Pow" and self._number(node.input(1)) == 2.0
        difference = self._links.maker(node.input(0)) if squares else None
        return self._beside_label(difference) if difference is not None and difference.op == "Sub" else None

    def _beside_label(self, node: OnnxNode) -> str | None:
        """Return the other operand of a node, where one is the label and both have one shape."""
        names = [through(self._links, name, ("Identity",)) for name in node.inputs]
        if self._label not in names or len(set(names)) != 2:
            return None
        index = 1 - names.index(self._label)
        return node.inputs[index] if self._fits(node.inputs[index]) else None

    def _binary(self, name: str) -> str | None:
        """Return p of t log(p) + (1 - t) log(1 - p), which a Sigmoid gives."""
        node = self._links.maker(name)
        if node is None or node.op != "Add":
            return None
        for first, second in (node.inputs, node.inputs[::-1]):
            p = self._log_beside(first, lambda other: through(self._links, other, ("Identity",)) == self._label)
            q = self._log_beside(second, lambda other: self._rest_of(other) == self._label)
            if p is None or q is None or self._rest_of(q) != p:
                continue
            sigmoid = self._links.maker(p)
            if sigmoid is not None and sigmoid.op == "Sigmoid" and self._fits(p):
                return p
        return None

    def _fits(self, scores: str) -> bool:
        return self._ctx.entry(scores).shape == self._ctx.entry(self._label).shape

    def _log_beside(self, name: str, fits: Callable[[str], bool]) -> str | None:
        """Return x of a product of log(x) with a tensor that fits."""
        node = self._links.maker(name)
        if node is None or node.op != "Mul":
            return None
        for one, other in (node.inputs, node.inputs[::-1]):
            log = self._links.maker(one)
            if log is not None and log.op == "Log" and fits(other):
                return log.input(0)
        return None

    def _rest_of(self, name: str) -> str:
        """Return x of 1 - x; "" for anything else."""
        node = self._links.maker(name)
        if node is None or node.op != "Sub" or self._number(node.input(0)) != 1.0:
            return ""
        return through(self._links, node.input(1), ("Identity",))

    def _number(self, name: str) -> float | None:
        return scalar(self._ctx.entry(name)) if self._ctx.has(name) else None
