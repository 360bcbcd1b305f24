"""A model that ends in its own loss: where it ends, and what becomes of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import INDICES, LOSS_OPS, OnnxInput, OnnxModel, reachable
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, Order
from tinytrain_compile.frontend.loss.forms import joined, known_loss
from tinytrain_compile.frontend.loss.labels import declare_label
from tinytrain_compile.frontend.loss.own_loss import NO_LABEL, LossSite, through
from tinytrain_compile.frontend.operators.loss import class_order, class_weights, ignore_index
from tinytrain_compile.frontend.unsupported import Complaints
from tinytrain_compile.ir.imported import ImportedLoss, LossKind, WrittenLoss
from tinytrain_compile.ir.types import Array, Graph, Node, Value


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
        """Raise E0101 if another head is compared with labels, too: it would keep its number of classes."""
        forward = {name for node in reachable(model.nodes, (self.site.scores,)) for name in node.outputs}
        other = next((name for name in self.site.ends if name not in forward), None)
        if other is not None:
            what = f"the loss also reads {other}, which is not of the last layer"
            raise CompileError("E0101", f"--classes {classes}", what, "export the model with so many classes")

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

    def order(self, entry: Entry) -> Order:
        """Return the order in which the graph gives the scores."""
        return class_order(entry)

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
        except Unsupported as reason:
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
    return ImportedLoss(
        kind=kind or "written",
        reduction=joined(ctx, site),
        class_weights=None,
        ignore_index=None,
        axis=order.index(1) if kind in ("nll", "softmax-ce") else 0,
        label=site.label.name,
        label_shape=_label_shape(ctx, site, kind),
        origin=site.node.name,
        output=site.output,
        written=written,
        whole=label.dtype == "float32" and site.label.elem_type != onnx.TensorProto.FLOAT,
    )


def _label_shape(ctx: ImportContext, site: LossSite, kind: LossKind | None) -> tuple[int, ...]:
    if kind not in ("nll", "softmax-ce"):
        return site.label.shape
    shape = ctx.entry(site.scores).shape
    return (shape[0], *shape[2:])


def _known_kind(ctx: ImportContext, site: LossSite) -> LossKind | None:
    """Return the loss of ours that the file writes out, if it reads what the forward graph gives, and only that."""
    known = None if site.ends or site.label is NO_LABEL else known_loss(ctx, site)
    if known is None:
        return None
    if known.scores == site.scores:
        return known.kind
    maker = ctx.links.maker(through(ctx.links, known.scores, ("Identity",)))
    if maker is None or maker.input(0) != site.scores:
        return None
    if known.kind == "nll" and maker.op == "LogSoftmax":
        rank = ctx.entry(site.scores).rank
        return "softmax-ce" if maker.integer("axis", -1) % rank == 1 else None
    return "bce" if known.kind == "bce" and maker.op == "Sigmoid" else None


def _nodes(ctx: ImportContext, site: LossSite, graph: Graph, label: Value) -> WrittenLoss:
    entry = ctx.entry(site.output)
    value = _scalar(ctx, site, entry)
    nodes, constants = ctx.nodes_and_constants((value,))
    known = {node.name for node in graph.nodes}
    tail = tuple(node for node in nodes if node.name not in known)
    return WrittenLoss(tail, _read_by(tail, constants), _ends_read(graph, tail), label, value)


def _ends_read(graph: Graph, tail: tuple[Node, ...]) -> tuple[Value, ...]:
    """Return the graph's output, and further values of a forked model that the loss reads."""
    scores, *others = graph.outputs
    if not others:
        return (scores,)
    made = {value.name: value for node in graph.nodes for value in node.outputs}
    read = dict.fromkeys(value.name for node in tail for value in node.inputs if value.name in made)
    return (scores, *(made[name] for name in read if name != scores.name))


def _read_by(nodes: tuple[Node, ...], constants: Mapping[str, Array]) -> dict[str, Array]:
    read = {value.name for node in nodes for value in node.inputs}
    return {name: data for name, data in constants.items() if name in read}


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
