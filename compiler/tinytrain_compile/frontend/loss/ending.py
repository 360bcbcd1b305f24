"""A model that ends in its own loss: what becomes of the loss, how it joins samples, and whether we have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import INDICES, LOSS_OPS, OnnxInput, OnnxModel, OnnxNode, Refused, reachable
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Entry, Order
from tinytrain_compile.frontend.graph.operands import reduced_axes, scalar
from tinytrain_compile.frontend.loss.labels import declare_label
from tinytrain_compile.frontend.loss.own_loss import NO_LABEL, LossSite, through
from tinytrain_compile.frontend.operators.loss import class_weights, ignore_index
from tinytrain_compile.frontend.unsupported import Complaints
from tinytrain_compile.ir.imported import ImportedLoss, LossJoin, LossKind, WrittenLoss
from tinytrain_compile.ir.types import Graph, Node, Value


class FileLoss:
    """A model's own loss while it is imported: where the model ends, and what becomes of the nodes behind."""

    def __init__(self, model: OnnxModel, site: LossSite) -> None:
        self.site = site
        self._outputs = model.outputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Tensors that are imported: the scores, further ends, and the loss itself if nodes of the file compute it."""
        return (*self.site.read, *((self.site.output,) if self.site.written else ()))

    @property
    def label(self) -> str:
        """Name of the input with the labels; "" without one."""
        return self.site.label.name

    def notes(self) -> list[str]:
        """Say which output an inference gives, if there are several."""
        site = self.site
        beside = ", ".join(name for name in self._outputs if name not in (site.output, site.scores))
        notes = [f"outputs beside the loss: m_infer gives {site.scores}, not {beside}"] if beside else []
        if site.ends:
            others = ", ".join(site.ends)
            notes.append(f"m_infer gives {site.scores}; the loss also reads {others}, and trains what leads there")
        if site.numbers:
            notes.append(f"numbers of the loss itself, not trained: {', '.join(site.numbers)}")
        return notes

    def check_fresh_head(self, model: OnnxModel, classes: int) -> None:
        """Raise E0113 if another head is compared with labels, too: it would keep its number of classes."""
        forward = {name for node in reachable(model.nodes, (self.site.scores,)) for name in node.outputs}
        other = next((name for name in self.site.ends if name not in forward), None)
        if other is not None:
            what = f"the loss also reads {other}, which is not of the last layer"
            raise CompileError("E0113", f"--classes {classes}", what, "export the model with so many classes")

    def in_two_parts(self, model: OnnxModel) -> OnnxModel:
        """Return the model with the nodes of the forward graph first, then those that only the loss needs.

        The last layers are those of the scores: other heads come before what only the scores need.
        """
        site = self.site
        if not site.written:
            return model
        nodes = {node.name: node for names in (site.ends, (site.scores,)) for node in reachable(model.nodes, names)}
        nodes |= {node.name: node for node in reachable(model.nodes, (site.output,)) if node.name not in nodes}
        return replace(model, nodes=tuple(nodes.values()), outputs=(*site.read, site.output))

    def without_labels(self, inputs: Sequence[OnnxInput]) -> list[OnnxInput]:
        """Return the inputs without that of the labels. E0305 if the network reads the labels, too."""
        if self.site.written:
            return [value for value in inputs if value.name != self.label]
        if self.site.label in inputs:
            raise CompileError("E0305", f"input {self.label}", "the labels also feed the network", "separate the two")
        return list(inputs)

    def declare_label(self, ctx: ImportContext) -> None:
        """Make the labels of a loss that is written out a value of the graph."""
        self._value = declare_label(ctx, self.site.label) if self.site.written else None

    def ends(self, ctx: ImportContext, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return the values of the graph at which the model ends beside its scores, each once."""
        found = (ctx.entry(name).value for name in self.site.ends)
        return tuple(dict.fromkeys(value for value in found if value is not None and value not in values))

    def described(self, ctx: ImportContext, scores: Entry, order: Order, graph: Graph) -> tuple[ImportedLoss, Graph]:
        """Return the loss, and the graph with the outputs that it reads."""
        node = self.site.node
        try:
            if self._value is None:
                return describe_loss(ctx, self.site, scores, order), graph
            loss = describe_written(ctx, self.site, order, graph, self._value)
            return loss, graph if loss.written is None else replace(graph, outputs=loss.written.reads)
        except Refused as reason:
            complaints = Complaints(ctx.model)
            complaints.add(ctx, node, reason)
            complaints.raise_if_any()
            raise
        except ValueError as error:
            what, try_ = str(error), "check the operands of the loss"
            raise CompileError("E0212", f"node {node.name} ({node.op})", what, try_) from error


def describe_written(ctx: ImportContext, site: LossSite, order: Order, graph: Graph, label: Value) -> ImportedLoss:
    """Return the loss as one of ours if it is that, else as nodes behind the graph. E0209 if it is no scalar."""
    kind = _known_kind(ctx, site)
    written = None if kind is not None else _nodes(ctx, site, graph, label)
    scores = ctx.entry(site.scores).shape
    return ImportedLoss(
        kind=kind or "written",
        reduction=joined(ctx, site),
        class_weights=None,
        ignore_index=None,
        axis=order.index(1) if kind in ("nll", "softmax-ce") else 0,
        label=site.label.name,
        label_shape=(scores[0], *scores[2:]) if kind in ("nll", "softmax-ce") else site.label.shape,
        origin=site.node.name,
        output=site.output,
        written=written,
        whole=label.dtype == "float32" and site.label.elem_type != onnx.TensorProto.FLOAT,
    )


def _known_kind(ctx: ImportContext, site: LossSite) -> LossKind | None:
    """Return the loss of ours that the file writes out, if it reads what the forward graph gives, and only that."""
    known = None if site.ends or site.label is NO_LABEL else _Form(ctx, site).found()
    if known is None:
        return None
    kind, scores = known
    if scores == site.scores:
        return kind
    maker = ctx.links.maker(through(ctx.links, scores, ("Identity",)))
    if maker is None or maker.input(0) != site.scores:
        return None
    if kind == "nll" and maker.op == "LogSoftmax":
        rank = ctx.entry(site.scores).rank
        return "softmax-ce" if maker.integer("axis", -1) % rank == 1 else None
    return "bce" if kind == "bce" and maker.op == "Sigmoid" else None


def _nodes(ctx: ImportContext, site: LossSite, graph: Graph, label: Value) -> WrittenLoss:
    entry = ctx.entry(site.output)
    value = _scalar(ctx, site, entry)
    nodes, constants = ctx.nodes_and_constants((value,))
    known = {node.name for node in graph.nodes}
    tail = tuple(node for node in nodes if node.name not in known)
    read = {value.name for node in tail for value in node.inputs}
    held = {name: data for name, data in constants.items() if name in read}
    return WrittenLoss(tail, held, _ends_read(graph, tail), label, value)


def _ends_read(graph: Graph, tail: tuple[Node, ...]) -> tuple[Value, ...]:
    """Return the graph's output, and further values of a forked model that the loss reads."""
    scores, *others = graph.outputs
    if not others:
        return (scores,)
    made = {value.name: value for node in graph.nodes for value in node.outputs}
    read = dict.fromkeys(value.name for node in tail for value in node.inputs if value.name in made)
    return (scores, *(made[name] for name in read if name != scores.name))


def _scalar(ctx: ImportContext, site: LossSite, entry: Entry) -> Value:
    if entry.elements != 1 or entry.value is None:
        names = ", ".join(value.name for value in ctx.model.inputs)
        what = f"inputs {names}, and the output {site.output} of shape {list(entry.shape)} is no loss"
        raise CompileError("E0209", "inputs", what, "end in a scalar")
    return ctx.reshape(site.node, ctx.value(site.node, entry), ())


def describe_loss(ctx: ImportContext, site: LossSite, scores: Entry, order: Order) -> ImportedLoss:
    """Return what training must know of a loss; E0305 if the labels do not fit the scores."""
    where = f"input {site.label.name}"
    if scores.rank < 2:
        raise CompileError(
            "E0212", f"node {site.node.name}", f"scores of shape {list(scores.shape)}", "use (batch, classes)"
        )
    wanted = (scores.shape[0], *scores.shape[2:])
    if site.label.shape != wanted:
        what = f"labels of shape {list(site.label.shape)} for scores of shape {list(scores.shape)}"
        raise CompileError("E0305", where, what, f"give labels of shape {list(wanted)}")
    if site.label.elem_type not in INDICES:
        raise CompileError("E0305", where, "labels must be class indices (int32 or int64)", "change their type")
    try:
        weights = class_weights(ctx, site.node, scores.shape[1])
    except ValueError as error:
        raise CompileError("E0212", f"node {site.node.name}", str(error), "give one weight per class") from error
    return ImportedLoss(
        kind="softmax-ce" if site.node.op == LOSS_OPS[0] else "nll",
        reduction="sum" if site.node.text("reduction", "mean") == "sum" else "mean",
        class_weights=weights,
        ignore_index=ignore_index(site.node),
        axis=order.index(1),
        label=site.label.name,
        label_shape=wanted,
        origin=site.node.name,
        output=site.output,
    )


# ---- a loss that the file writes out ---------------------------------------------------------------------------------
# How it joins the samples of a batch, and whether it is one that we have.


_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum"}
_PASSING = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
_EVEN = frozenset(("ReduceSumSquare", "ReduceL1", "ReduceL2"))
_FIXED, _EACH, _MEAN, _SUM, _OTHER = "fixed", "each", "mean", "sum", "other"


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
        reduction = node.text("reduction", "mean")
        if reduction == "mean" and (node.input(2) or "ignore_index" in node.attrs):
            return _OTHER  # the weights of all labels divide it
        return {"mean": _MEAN, "sum": _SUM}.get(reduction, _EACH)
    if known == {_EACH}:
        moved = node.op == "Transpose" and (node.integers("perm") or (1,))[0] != 0
        if moved or node.op not in (*_REDUCTIONS, *_EVEN) or 0 not in reduced_axes(ctx, node):
            return _OTHER if moved else _EACH
        return _REDUCTIONS.get(node.op, _SUM if node.op != "ReduceL2" else _OTHER)
    if len(known) > 1:
        return _OTHER
    (kind,) = known
    if node.op in (*_PASSING, "Neg", "ReduceMean", "ReduceSum"):
        return kind
    if node.op in ("Add", "Sub", "Sum") and (kind == _MEAN or _FIXED not in operands):
        return kind  # what is added to a sum counts once for a batch, and not with every sample
    scales = (node.op == "Mul" and operands.count(kind) == 1) or (node.op == "Div" and operands[0] == kind)
    return kind if scales and operands.count(kind) == 1 else _OTHER


# ---- forms of losses that we have -----------------------------------------------------------------------------------


class _Form:
    """A loss that may be one of ours to the letter."""

    def __init__(self, ctx: ImportContext, site: LossSite) -> None:
        self._ctx, self._links = ctx, ctx.links
        self._label, self._output = site.label.name, site.output

    def found(self) -> tuple[LossKind, str] | None:
        """Return the kind of loss and the scores that it reads; None for any other loss.

        "nll": mean or sum over everything of minus a chosen log-probability. "mse": mean of squared differences. "bce".
        """
        name, minus = self._signless(self._output)
        node = self._links.maker(name)
        if node is None or node.op not in _REDUCTIONS:
            return None
        axes, shape = reduced_axes(self._ctx, node), self._ctx.entry(node.input(0)).shape
        if any(axis not in axes and dim != 1 for axis, dim in enumerate(shape)) or (shape and 0 not in axes):
            return None
        term, below = self._signless(node.input(0))
        if minus != below and (scores := self._picked(term)) is not None:
            return "nll", scores
        if node.op != "ReduceMean":
            return None
        scores = self._squared(term) if minus == below else self._binary(term)
        return None if scores is None else ("mse" if minus == below else "bce", scores)

    def _signless(self, name: str) -> tuple[str, bool]:
        """Return the tensor behind views and signs, and whether these make it negative."""
        minus = False
        while True:
            name = through(self._links, name, _PASSING)
            node = self._links.maker(name)
            if node is None or node.op != "Neg":
                return name, minus
            name, minus = node.input(0), not minus

    def _is_label(self, name: str) -> bool:
        return through(self._links, name, _PASSING) == self._label

    def _picked(self, name: str) -> str | None:
        """Return scores of which the labels pick one each: by a gather, or as a product with one-hot vectors."""
        node = self._links.maker(name)
        if node is None:
            return None
        if node.op in ("GatherElements", "Gather") and self._is_label(node.input(1)):
            return node.input(0)
        if node.op != "ReduceSum" or reduced_axes(self._ctx, node) != (1,):
            return None
        product = self._links.maker(node.input(0))
        if product is None or product.op != "Mul":
            return None
        for hot, scores in (product.inputs, product.inputs[::-1]):
            maker = self._links.maker(through(self._links, hot, ("Identity", "Cast")))
            if maker is not None and maker.op == "OneHot" and self._is_label(maker.input(0)):
                values = self._ctx.entry(maker.input(2)).array if self._ctx.has(maker.input(2)) else None
                if values is not None and values.ravel().tolist() == [0.0, 1.0]:
                    return scores
        return None

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
