"""Building of a training step from a forward graph and an update plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.activations import KeptActivation
from tinytrain_compile.ir.graph import GraphBuilder, check_graph
from tinytrain_compile.ir.imported import ImportedLoss, ImportedModel, WrittenLoss
from tinytrain_compile.ir.stages import TrainedPart, TrainGraph, UpdatePlan, channel_axis
from tinytrain_compile.ir.text import print_graph
from tinytrain_compile.ir.types import Array, Graph, Node, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import infer, new_builder
from tinytrain_compile.training.differentiate import differentiate
from tinytrain_compile.training.loss import append_loss
from tinytrain_compile.training.optimizer import Optimizer, TrainingOptions
from tinytrain_compile.training.rewrites import fold_frozen, keep_masks

Changes = list[tuple[Value, Value]]
"""State, and its new content."""


def build_training(model: ImportedModel, plan: UpdatePlan, options: TrainingOptions) -> TrainGraph:
    """Append loss, backward pass and updates to the model's forward graph.

    Gradients are sums over the samples of a step of the gradients for each one alone.
    Raises CompileError E0303 (nothing to train), E0304 (loss and output), E0502 (no gradient), and SamplesMixError for
    a micro-batch that the model cannot take.
    """
    imported, model = model, _for_samples(model, options.micro_batch)
    graph = _with_own_loss(model)
    builder = new_builder(_names(graph))
    forward, trained = _forward(builder, model, graph, plan)
    loss = append_loss(builder, model, options)
    forward += builder.nodes
    builder.nodes = []
    dropouts = None
    if options.dropout is not None:
        from tinytrain_compile.training.dropout import with_dropout

        forward, dropouts = with_dropout(builder, forward, options.micro_batch, options.dropout)
    judge = next(node.op for node in forward if loss.loss in node.outputs)
    factor = options.micro_batch if loss.terms.divisor == "samples" else 1
    found = _gradients(builder, forward, loss.loss, trained, factor)
    forward, backward, copied, kept = _copied(builder, forward, plan, options, (trained, found))
    forward, backward = keep_masks(builder, forward, backward)
    builder.nodes = []
    optimizer = Optimizer(builder, replace(options, initial=_initial(options, trained)), loss.terms)
    optimizer.update(found, forward)
    optimizer.follow(_kept(builder, copied))
    if dropouts is not None:
        from tinytrain_compile.training.dropout import count_samples

        optimizer.keep(dropouts.active, count_samples(builder, dropouts, options.micro_batch))
    nodes = [*forward, *backward, *builder.nodes]
    notes = (*graph.notes, *loss.notes, *_unreached(trained, found), *optimizer.notes)
    result = TrainGraph(
        _prune(graph, nodes, {**graph.constants, **builder.constants}, optimizer, loss.label, loss.loss, notes),
        loss.loss,
        loss.label,
        loss.logits,
        optimizer.learning_rate,
        optimizer.inverse_count,
        options.batch,
        options.micro_batch,
        options.in_place,
        terms=loss.terms,
        weight_sum=optimizer.weight_sum,
        dropout=None if dropouts is None else dropouts.active,
        clip=optimizer.clip,
        identity=identity_of(imported, plan, judge, options.meaning),
        trained={target.name: trained[target] for target, _ in found},
        low_rank=tuple(kept),
        stored_output=imported.stored_output,
    )
    check_graph(result.graph, infer)
    return result


# ---- absent from most builds: imported if needed --------------------------------------------------------------------


def _for_samples(model: ImportedModel, count: int) -> ImportedModel:
    """Return the model for `count` samples at once."""
    if count == 1:
        return model
    from tinytrain_compile.training.samples import for_samples

    return for_samples(model, count)


def _with_own_loss(model: ImportedModel) -> Graph:
    """Return the forward graph, followed by the nodes of the loss if the file has them."""
    if model.loss is None or model.loss.written is None:
        return model.graph
    from tinytrain_compile.training.written import with_written_loss

    return with_written_loss(model, model.loss.written)


def _copied(
    builder: GraphBuilder,
    forward: list[Node],
    plan: UpdatePlan,
    options: TrainingOptions,
    updated: tuple[Mapping[Value, TrainedPart], Sequence[tuple[Value, Value]]],
) -> tuple[list[Node], list[Node], Changes, Sequence[KeptActivation]]:
    """Return forward and backward nodes with low-rank copies of inputs, new subspaces, and data for the report.

    updated: trained values with their parts of parameters, and with their gradients.
    """
    trained, found = updated
    ways = {gradient.name: plan.activations.get(trained[target].parameter) for target, gradient in found}
    wanted = {name: how for name, how in ways.items() if how is not None}
    if not wanted:
        backward, builder.nodes = builder.nodes, []
        return forward, backward, [], ()
    from tinytrain_compile.training.low_rank import with_low_rank

    integers = None if not options.integer else "in subspaces" if options.fpu else "expanded"
    copies = with_low_rank(builder, forward, wanted, options.seed, integers)
    return copies.forward, copies.backward, copies.updates, copies.kept


def _kept(builder: GraphBuilder, subspaces: Changes) -> Changes:
    """Emit the nodes that store this step's subspaces in the state."""
    if not subspaces:
        return []
    from tinytrain_compile.training.low_rank import keep_subspaces

    return keep_subspaces(builder, subspaces)


# ---- part of every step ---------------------------------------------------------------------------------------------


def _forward(
    builder: GraphBuilder, model: ImportedModel, graph: Graph, plan: UpdatePlan
) -> tuple[list[Node], dict[Value, TrainedPart]]:
    """Return the forward nodes with sliced weights in parts and frozen computations folded, and the updated values."""
    slices = {name: piece for name, piece in plan.updates.items() if piece is not None}
    forward, parts = [*graph.nodes], dict[str, Value]()
    if slices:
        from tinytrain_compile.training.slices import split_weights

        forward, parts = split_weights(builder, model, graph, slices)
    known = {value.name: value for value in graph.parameters}
    trained = {
        parts.get(name, known[name]): TrainedPart(name, slices[name] if name in parts else None)
        for name in plan.updates
    }
    kept = {value.name for value in (*trained, *graph.outputs)}
    return fold_frozen(builder, forward, {**graph.constants, **builder.constants}, kept), trained


def _initial(options: TrainingOptions, trained: Mapping[Value, TrainedPart]) -> Mapping[tuple[str, str], Array]:
    """Return first values of the optimizer's state by names of updated values; for a slice, those of its channels."""
    found: dict[tuple[str, str], Array] = {}
    for target, part in trained.items():
        for (parameter, kind), data in options.initial.items():
            if parameter == part.parameter:
                piece = part.piece
                own = data if piece is None else data.take(piece.channels, channel_axis(piece.axis, data.ndim))
                found[target.name, kind] = own
    return found


def _gradients(
    builder: GraphBuilder,
    forward: Sequence[Node],
    loss: Value,
    trained: Iterable[Value],
    factor: int,
) -> list[tuple[Value, Value]]:
    """Return trained values with their gradients; the builder gets the backward pass. CompileError E0303 if there is
    none."""
    targets = [*trained]
    gradients = differentiate(builder, tuple(forward), loss, targets, factor)
    if not gradients:
        raise CompileError(
            "E0303", "--update", "no selected parameter leads to the loss", "select layers before the output"
        )
    return [(target, gradients[target.name]) for target in targets if target.name in gradients]


def _unreached(trained: Mapping[Value, TrainedPart], found: Sequence[tuple[Value, Value]]) -> tuple[str, ...]:
    """Return a note that names the selected parameters which no gradient reaches, so that they do not change."""
    reached = {target.name for target, _ in found}
    names = list(dict.fromkeys(part.parameter for value, part in trained.items() if value.name not in reached))
    return (f"not trained, since the loss does not depend on them: {', '.join(names)}",) if names else ()


def _names(graph: Graph) -> set[str]:
    names = {value.name for node in graph.nodes for value in node.outputs}
    names.update(node.name for node in graph.nodes)
    names.update(graph.constants)
    names.update(value.name for node in graph.nodes for value in node.inputs)
    names.update(value.name for value in graph.inputs)
    return names


def _inputs(graph: Graph, label: Value) -> tuple[Value, ...]:
    """Return the data inputs and the label."""
    return (*(value for value in graph.inputs if value.name != label.name), label)


def _prune(
    graph: Graph,
    nodes: list[Node],
    constants: dict[str, object],
    optimizer: Optimizer,
    label: Value,
    loss: Value,
    notes: tuple[str, ...],
) -> Graph:
    """Return the final graph: only nodes that outputs, loss or updates need, and only constants that these read."""
    order = [node for node in nodes if node.phase == "step"] + [node for node in nodes if node.phase == "apply"]
    whole = Graph(graph.name, tuple(order), _inputs(graph, label), graph.outputs, {})
    needed = whole.ancestors((*graph.outputs, loss, *(new for _, new in optimizer.updates)))
    kept = tuple(node for node in order if node.name in needed)
    state = tuple(optimizer.state)
    used = {value.name for node in kept for value in node.inputs} | {value.name for value in state}
    return Graph(
        graph.name,
        kept,
        _inputs(graph, label),
        graph.outputs,
        {name: data for name, data in constants.items() if name in used},  # type: ignore[misc]
        tuple(value for value in graph.parameters if value.name in used),
        state,
        tuple(optimizer.accumulators),
        tuple(optimizer.updates),
        notes,
        loss.name,
        label.name,
    )


# ---- identity of a saved state --------------------------------------------------------------------------------------


def identity_of(model: ImportedModel, plan: UpdatePlan, loss: str, optimizer: tuple[object, ...]) -> str:
    """Return a hexadecimal digest: builds with the same one read each other's checkpoints.

    It covers the imported model (graph, initial weights, formats), before anything that a build may change without
    changing the meaning: samples per step, rates, plan, target, code. loss: the op that ends the forward pass;
    optimizer: settings that give its state a meaning, not its rates.
    """
    trained = sorted((name, piece and (piece.axis, piece.channels)) for name, piece in plan.updates.items())
    kind = optimizer if optimizer[1:] else optimizer[0]
    facts = (_digest(model.graph), loss, _own_loss(model.loss), trained, kind)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _own_loss(own: ImportedLoss | None) -> tuple[object, ...]:
    """Return the identity of the model's own loss."""
    if own is None:
        return ()
    weights = None if own.class_weights is None else own.class_weights.tolist()
    nodes = () if own.written is None else (_digest(_graph_of(own.written)),)
    return (own.kind, own.reduction, weights, own.ignore_index, own.axis, *nodes)


def _graph_of(written: WrittenLoss) -> Graph:
    return Graph("", written.nodes, (written.label,), (written.value,), written.constants)


def _to_format(node: Node) -> Node:
    """Return a Clip with the ends of its format: so it was when an error stopped at a calibrated range, and checkpoints
    of that time (0.1.0) are still read."""
    quant = node.outputs[0].quant
    if not isinstance(node.attrs, ClipAttrs) or quant is None:
        return node
    low, high = ((end - quant.zero) * quant.scale[0] for end in (quant.low, quant.high))
    return replace(node, attrs=ClipAttrs(*(min(max(end, low), high) for end in (node.attrs.low, node.attrs.high))))


@lru_cache(maxsize=4)
def _digest(graph: Graph) -> str:
    """Return a digest of nodes, formats and initial data, without remarks for the user. Cached: many updates of one
    graph are priced."""
    nodes = tuple(map(_to_format, graph.nodes))
    digest = hashlib.sha256(print_graph(replace(graph, nodes=nodes, notes=())).encode())
    for name in sorted(graph.constants):
        data = graph.constants[name]
        digest.update(repr((name, data.dtype.str, data.shape)).encode() + data.tobytes())
    return digest.hexdigest()
