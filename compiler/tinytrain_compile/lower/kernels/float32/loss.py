"""Losses and their gradients. A label that is not a class does not count and is never used as an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    call,
    f32,
    flat_tensor,
    guarded,
    kernel,
    reduce_axes,
    select,
    tensor,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.schedules import scalars
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.names import attrs_of, operand, operands


def label_counts(label: Expr, classes: int, ignored: int | None) -> Expr:
    """Tell whether a label is a class, and not the ignored one (which needs no extra test if it is not a class)."""
    test = tirx.And(label >= 0, label < classes)
    return test if ignored is None or not 0 <= ignored < classes else tirx.And(test, tirx.NE(label, ignored))


class Labels:
    """Log probabilities seen as (outer, classes, inner), and the labels and class weights that go with them."""

    def __init__(self, node: Node, attrs: NllAttrs, shape: Sequence[int]) -> None:
        self.outer = math.prod(shape[: attrs.axis])
        self.classes = shape[attrs.axis]
        self._mean = attrs.reduction == "mean"
        ignored = attrs.ignore_index
        self._ignored = ignored if ignored is not None and 0 <= ignored < self.classes else None
        self.inner = math.prod(shape[attrs.axis + 1 :])
        self.labels = tensor(node, "labels", (self.outer, self.inner))
        self._weights = tensor(node, "weights") if "weights" in operands(node) else None
        self.inputs = [self.labels] if self._weights is None else [self.labels, self._weights]

    def weight(self, index: Expr) -> Expr:
        """Return the weight of a class."""
        return f32(1) if self._weights is None else self._weights[index]

    def weighted(self, o: Expr, i: Expr, value: Callable[[Expr], Expr]) -> Expr:
        """Return value(label) times the label's weight; 0 if the label does not count."""
        label = self.labels[o, i]
        counts = label_counts(label, self.classes, self._ignored)
        return guarded(counts, value(label) if self._weights is None else value(label) * self.weight(label))

    def hits(self, o: Expr, c: Expr, i: Expr) -> Expr:
        """Tell whether class c is the label at (o, i), and counts."""
        label = self.labels[o, i]
        hit = tirx.EQ(label, c)
        return hit if self._ignored is None else tirx.And(hit, tirx.NE(label, self._ignored))

    def total_weight(self) -> te.Tensor | None:
        """Return the divisor of "mean"; None for other reductions."""
        if not self._mean:
            return None
        a, b = reduce_axes(self.outer, self.inner, prefix="w")
        return te.compute((1,), lambda _: total(self.weighted(a, b, lambda _label: f32(1)), [a, b]), "weight")


@kernel("NegativeLogLikelihood")
def nll(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute minus the weighted sum of the labels' log probabilities, over the sum of the weights."""
    attrs = attrs_of(node, NllAttrs)
    view = Labels(node, attrs, operand(node, "logp").shape)
    logp = tensor(node, "logp", (view.outer, view.classes, view.inner))
    inputs = [logp, *view.inputs]

    def chosen(o: Expr, i: Expr) -> Expr:
        return view.weighted(o, i, lambda label: logp[o, label, i])

    if attrs.reduction == "none":
        out = te.compute((view.outer, view.inner), lambda o, i: f32(0) - chosen(o, i), "out")
        return KernelSpec(inputs, [out], scalars())
    a, b = reduce_axes(view.outer, view.inner)
    acc = te.compute((1,), lambda _: total(chosen(a, b), [a, b]), "acc")
    weight = view.total_weight()
    if weight is None:
        out = te.compute((1,), lambda i: f32(0) - acc[i], "out")
        return KernelSpec(inputs, [out], scalars("acc"))
    out = te.compute((1,), lambda i: select(tirx.NE(weight[i], f32(0)), f32(0) - acc[i] / weight[i], f32(0)), "out")
    return KernelSpec(inputs, [out], scalars("acc", "weight"))


@kernel("NegativeLogLikelihoodGrad")
def nll_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute minus the weight at each label, 0 elsewhere."""
    attrs = attrs_of(node, NllGradAttrs)
    view = Labels(node, attrs.nll, attrs.shape)
    each = attrs.nll.reduction == "none"
    dloss = tensor(node, "dloss", (view.outer, view.inner) if each else (1,))
    weight = view.total_weight()

    def divided(_: Expr) -> Expr:
        return dloss[0] if weight is None else select(tirx.NE(weight[0], f32(0)), dloss[0] / weight[0], f32(0))

    share = None if each else te.compute((1,), divided, "share")

    def element(o: Expr, c: Expr, i: Expr) -> Expr:
        value = dloss[o, i] if share is None else share[0]
        return select(view.hits(o, c, i), f32(0) - view.weight(c) * value, f32(0))

    out = te.compute((view.outer, view.classes, view.inner), element, "out")
    stages = [] if share is None else ["share"] if weight is None else ["weight", "share"]
    return KernelSpec([dloss, *view.inputs], [out], scalars(*stages))


@kernel("MeanSquaredError", "SigmoidCrossEntropy")
def mean_loss(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute the mean of one term per element."""
    count = operand(node, "y").elements
    y, target = flat_tensor(node, "y"), flat_tensor(node, "target")
    (k,) = reduce_axes(count)
    term = _squared(y[k], target[k]) if node.op == "MeanSquaredError" else _cross_entropy(y[k], target[k])
    acc = te.compute((1,), lambda _: total(term, [k]), "acc")
    out = te.compute((1,), lambda i: acc[i] * f32(1.0 / count), "out")
    return KernelSpec([y, target], [out], scalars("acc"))


def _squared(y: Expr, target: Expr) -> Expr:
    return (y - target) * (y - target)


def _cross_entropy(z: Expr, target: Expr) -> Expr:
    """Return max(z, 0) - z t + log(1 + exp(-|z|)): never overflows."""
    above = select(z > f32(0), z, f32(0))
    minus = select(z > f32(0), f32(0) - z, z)
    return (above - z * target) + call("tt_log1pf", call("tt_expf", minus))


@kernel("MeanSquaredErrorGrad", "SigmoidCrossEntropyGrad")
def mean_loss_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute (y or sigmoid(y)) - target, times a share of the loss's gradient: the bits equal those of the same number
    of means summed."""
    count = operand(node, "y").elements
    dloss, y, target = tensor(node, "dloss", (1,)), flat_tensor(node, "y"), flat_tensor(node, "target")
    squared = node.op == "MeanSquaredErrorGrad"
    factor = 2.0 if squared else 1.0
    share = te.compute((1,), lambda i: dloss[i] * f32(factor) / f32(count), "share")

    def element(i: Expr) -> Expr:
        value = y[i] if squared else call("tt_sigmoidf", y[i])
        return (value - target[i]) * share[0]

    return KernelSpec([dloss, y, target], [te.compute((count,), element, "out")], scalars("share"))
