"""Checked ONNX model -> IR graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.accounts import accounted, folded_into
from tinytrain_compile.frontend.derived import define_folded, import_computed, is_computed
from tinytrain_compile.frontend.exporters.dropped_terms import dropped_terms
from tinytrain_compile.frontend.exporters.keras import lost_by_tf2onnx
from tinytrain_compile.frontend.exporters.module_names import known_names
from tinytrain_compile.frontend.exporters.remarks import named, notes_on
from tinytrain_compile.frontend.file.folding import FOLDABLE, NEVER_FOLDED
from tinytrain_compile.frontend.file.model import Links, OnnxInput, OnnxModel, OnnxNode, reachable
from tinytrain_compile.frontend.file.whole_numbers import INDICES, in_real_numbers
from tinytrain_compile.frontend.graph.annotate import annotated
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import (
    Entry,
    Order,
    channels_last,
    constant_entry,
    is_time_first,
    plain,
    time_second,
)
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.graph.origins import tied_weights
from tinytrain_compile.frontend.graph.signals import SIGNAL_RANK, signal_order
from tinytrain_compile.frontend.graph.surviving import surviving
from tinytrain_compile.frontend.loss.fork import check_fresh_head, find_site, site_notes
from tinytrain_compile.frontend.loss.own_loss import LossSite
from tinytrain_compile.frontend.loss.written import (
    declare_label,
    describe_written,
    ending_where_read,
    ends_of,
    in_two_parts,
    label_view,
)
from tinytrain_compile.frontend.operators import blocks as import_blocks
from tinytrain_compile.frontend.operators import choice as import_choice
from tinytrain_compile.frontend.operators import conv as import_conv
from tinytrain_compile.frontend.operators import einsum as import_einsum
from tinytrain_compile.frontend.operators import elementwise as import_elementwise
from tinytrain_compile.frontend.operators import linear as import_linear
from tinytrain_compile.frontend.operators import loss as import_loss
from tinytrain_compile.frontend.operators import norm as import_norm
from tinytrain_compile.frontend.operators import pool as import_pool
from tinytrain_compile.frontend.operators import recurrent as import_recurrent
from tinytrain_compile.frontend.operators import resize as import_resize
from tinytrain_compile.frontend.operators import selection as import_selection
from tinytrain_compile.frontend.operators import shape as import_shape
from tinytrain_compile.frontend.operators import slicing as import_slicing
from tinytrain_compile.frontend.operators.batch_norm import folding_note
from tinytrain_compile.frontend.operators.loss import class_order, describe_loss
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.quantised.remove import unquantised
from tinytrain_compile.frontend.training_file.trained_set import as_the_file_says, trained_as_the_file
from tinytrain_compile.frontend.unsupported import Complaints, unknown_operator
from tinytrain_compile.frontend.weights.new_head import with_fresh_head
from tinytrain_compile.frontend.weights.shared_weights import Merged, merged, untied, without_copies
from tinytrain_compile.frontend.weights.trainable import choose_trainables, with_numbers_of_the_loss
from tinytrain_compile.ir import Graph, check_graph
from tinytrain_compile.ir.imported import DataInput, FileTraining, ImportedLoss, ImportedModel, WholeNumbers
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops import infer

_MODULES = (
    import_blocks,
    import_choice,
    import_conv,
    import_einsum,
    import_elementwise,
    import_linear,
    import_loss,
    import_norm,
    import_pool,
    import_recurrent,
    import_resize,
    import_selection,
    import_shape,
    import_slicing,
)
HANDLERS: dict[str, Handler] = {op: handler for module in _MODULES for op, handler in module.HANDLERS.items()}

MOST_INPUTS = 8
"""Data inputs that a model may have."""

_CHANNELS_LAST_READERS = frozenset(("MatMul", "LayerNormalization", "Softmax", "LogSoftmax"))
"""Operators that work on the last ONNX axis: a rank 4 input that goes straight to them is no NCHW image."""


def import_model(model: OnnxModel, options: FrontendOptions, training: FileTraining | None = None) -> ImportedModel:
    """Import a whole model; training: what its file says of that, which then decides what is a parameter.

    Errors: E0501/E0503 with all unsupported nodes, E0209 ..., E0231, E0305 for labels.
    """
    read, model = model, unquantised(model)
    site = find_site(model, options)
    _check_label_option(model, site, options)
    left_out = [] if site is None else site_notes(model, site)
    outputs = model.outputs if site is None else (*site.read, *((site.output,) if site.written else ()))
    model = without_copies(replace(model, nodes=reachable(model.nodes, outputs), outputs=outputs))
    tied_by_exporter = () if options.untie else merged(model)
    model = with_fresh_head(untied(model) if options.untie else model, options)
    check_fresh_head(model, site, options)
    model = replace(model, nodes=reachable(model.nodes, outputs))
    model = in_two_parts(model, site) if site is not None and site.written else model
    links = Links(model.nodes, outputs, model.constants)
    data = list[tuple[OnnxInput, WholeNumbers | None]]()
    for source in _data_inputs(model, links, site, options):
        model, real, whole = in_real_numbers(model, links, source)
        data.append((real, whole))
    links = Links(model.nodes, outputs, model.constants)
    judged = site.read if site is not None else outputs  # numbers of the loss itself are no parameters
    trainables = choose_trainables(model, Links(reachable(model.nodes, judged), judged, model.constants), options)
    trainables = with_numbers_of_the_loss(trainables, model, links)
    trainables = trainables if training is None else as_the_file_says(trainables, training, options)
    tied: frozenset[str] = frozenset()
    while True:
        ctx = ImportContext(model, links, options, trainables, tied)
        inputs = tuple(DataInput(one.name, one.shape, _declare_input(ctx, one), whole) for one, whole in data)
        label = declare_label(ctx, site) if site is not None and site.written else None
        _import_nodes(ctx)
        ctx.notes += [*left_out, *_parameter_notes(ctx, tied_by_exporter)]
        imported = _finish(ctx, site, inputs, label)
        found = _check_parameters(ctx, imported)
        if not found:
            imported = imported if training is None else trained_as_the_file(ctx, imported, training)
            ends = outputs if site is None else (*outputs, site.output)
            choices = accounted(ctx, read, ends, imported.graph.parameters)
            names = known_names(choices, Links(read.nodes, ends, read.constants))
            return replace(imported, choices=choices, graph=replace(imported.graph, known_as=names))
        tied |= found


def _parameter_notes(ctx: ImportContext, found: tuple[Merged, ...]) -> list[str]:
    """What is trained as one because the file holds it once, and what the exporter has computed from parameters."""
    choices = ctx.trainables.choices
    tied = [one for one in found if ctx.trainables.trained(one.name)]
    notes = [f"trained tied, the file holds them once: {one.name}, {', '.join(one.tensors)} (--untie)" for one in tied]
    return [*notes, *notes_on(ctx.trainables.remarks, choices), *dropped_terms(ctx.model), *lost_by_tf2onnx(ctx.model)]


def _check_parameters(ctx: ImportContext, model: ImportedModel) -> frozenset[str]:
    """Weights of the file of which the graph has two copies that would drift apart; E0504 if they cannot be one."""
    trained = frozenset(value.name for value in model.graph.parameters)
    written = None if model.loss is None else model.loss.written
    constants = dict.fromkeys((*model.graph.constants, *(() if written is None else written.constants)))
    found = tied_weights(ctx.claims(constants), trained)
    apart = sorted(found & ctx.tied) or _stored_once(ctx, model)
    if apart:
        what = "it would become several parameters, which training would drive apart"
        raise CompileError("E0504", f"weight {apart[0]}", what, "use it in one way, or export two weights")
    return found


def _stored_once(ctx: ImportContext, model: ImportedModel) -> list[str]:
    """Integers of a quantised file that several parameters are made of: by other scales, or moved in other ways.

    But for one number throughout (zero biases), which exporters write once for whatever reads it.
    """
    stored, numbers = ctx.model.quantisation.constants, model.graph.constants
    bases = {one.tensor.name for name, one in model.sources.items() if np.ptp(numbers[name], axis=None) > 0}
    times = Counter(stored[name].root for name in bases if name in stored and not stored[name].is_bias)
    return sorted(root for root, count in times.items() if count > 1)


def _check_label_option(model: OnnxModel, site: LossSite | None, options: FrontendOptions) -> None:
    if not options.label or (site is not None and site.label.name == options.label):
        return
    used = f"its loss reads {site.label.name or 'none'}" if site is not None else "it has no loss with such labels"
    raise CompileError("E0222", f"--label {options.label}", used, "name the label input of its loss, or leave it out")


def _data_inputs(
    model: OnnxModel, links: Links, site: LossSite | None, options: FrontendOptions
) -> tuple[OnnxInput, ...]:
    """Return the inputs that samples go to, in the order of the file. Inputs that nothing reads do not count."""
    used = [value for value in model.inputs if links.is_used(value.name)]
    if site is not None and site.written:
        used = [value for value in used if value.name != site.label.name]
    if site is not None and site.label in used:
        raise CompileError("E0305", f"input {site.label.name}", "the labels also feed the network", "separate the two")
    if len(used) > MOST_INPUTS:
        names = ", ".join(value.name for value in used)
        raise CompileError("E0209", "inputs", f"{len(used)} data inputs: {names}", f"use {MOST_INPUTS} at the most")
    if len(model.outputs) > 1 and site is None and not options.any_batch:
        names = ", ".join(model.outputs)
        raise CompileError(
            "E0218", "outputs", f"{len(model.outputs)} outputs: {names}", "choose one with --model-output NAME"
        )
    if not used:
        if options.any_batch:
            return ()
        raise CompileError("E0219", "inputs", "the output depends on no input", "export the model with its data input")
    wrong = next((value for value in used if value.shape[:1] != (1,) and not is_time_first(value.shape)), None)
    if wrong is not None and not options.any_batch:
        try_ = "export with batch 1 and use --batch to accumulate"
        raise CompileError("E0211", f"input {wrong.name}", f"the batch is not 1 (shape {list(wrong.shape)})", try_)
    return tuple(used)


def _declare_input(ctx: ImportContext, source: OnnxInput) -> Order:
    """Images come channels-last unless the user, or the model itself, has them otherwise; signals if asked for."""
    rank = len(source.shape)
    integer = source.elem_type in INDICES
    image = (
        rank == 4
        and not integer
        and ctx.options.input_layout != "chw"
        and not _is_channels_last(ctx.links, source.name)
    )
    signal = rank == SIGNAL_RANK and not integer and ctx.options.input_layout == "lc"
    order = channels_last(rank) if image else plain(rank)
    order = signal_order(ctx.links, source.name) if signal else order
    if is_time_first(source.shape) and not ctx.options.any_batch:
        order = time_second(rank)
    ctx.graph_input(source.name, source.shape, order, "NHWC" if image else "NWC" if signal else "", integer)
    return order


def _is_channels_last(links: Links, name: str) -> bool:
    """Whether the ONNX input is NHWC already (TensorFlow exports), or features on its last axis."""
    readers = links.readers(name)
    return bool(readers) and all(
        (node.op == "Transpose" and node.integers("perm") == (0, 3, 1, 2)) or node.op in _CHANNELS_LAST_READERS
        for node in readers
    )


def _import_nodes(ctx: ImportContext) -> None:
    """Import all nodes. The list of all that is unsupported comes before any other error in a node."""
    nodes, first = ctx.model.nodes, None
    complaints = Complaints(ctx.model)
    refused = ctx.model.quantisation.refused
    _fold_weights(ctx, [node for node in nodes if node.name not in refused])
    for node in nodes:
        if node.name in ctx.done:
            continue
        if node.name in refused:
            complaints.add(ctx, node, Unsupported(*refused[node.name]))
            continue
        if not all(ctx.has(name) for name in node.inputs if name):
            complaints.unreached(node, HANDLERS)
            continue
        try:
            _import_node(ctx, node)
        except Unsupported as reason:
            complaints.add(ctx, node, reason)
        except CompileError as problem:
            first = first or problem
    complaints.raise_if_any()
    if first is not None:
        raise first


def _fold_weights(ctx: ImportContext, nodes: Sequence[OnnxNode]) -> None:
    """First everything that follows from weights alone, so that handlers may look at constants of later nodes."""
    for node in nodes:
        known = all(ctx.has(name) and ctx.entry(name).is_constant for name in node.inputs if name)
        if _is_foldable(node) and known and not is_computed(ctx, node):
            define_folded(ctx, node)
            ctx.done.add(node.name)


def _is_foldable(node: OnnxNode) -> bool:
    return (node.op in FOLDABLE or node.op in HANDLERS) and node.op not in NEVER_FOLDED and not node.domain


def _import_node(ctx: ImportContext, node: OnnxNode) -> None:
    where = f"node {node.name} ({node.op})"
    try:
        if label_view(ctx, node):
            return
        if node.op in ("Shape", "Size") and not node.domain:
            _shape_of(ctx, node)
        elif _is_foldable(node) and all(ctx.entry(name).is_constant for name in node.inputs if name):
            if is_computed(ctx, node):
                import_computed(ctx, node, HANDLERS)
            else:
                define_folded(ctx, node)
        elif node.op in HANDLERS and not node.domain:
            HANDLERS[node.op](ctx, node)
        else:
            raise unknown_operator(node, HANDLERS)
    except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
        shapes = ", ".join(str(list(ctx.entry(name).shape)) for name in node.inputs if name)
        what = f"{error} (input shapes {shapes})"
        raise CompileError("E0212", where, what, "check the shapes and attributes of this node") from error


def _shape_of(ctx: ImportContext, node: OnnxNode) -> None:
    shape = ctx.entry(node.input(0)).shape
    if node.op == "Size":
        ctx.define(node.output(0), constant_entry(np.array(np.prod(shape, dtype=np.int64))))
        return
    end = node.integer("end", len(shape))
    dims = shape[node.integer("start", 0) : end]
    ctx.define(node.output(0), constant_entry(np.array(dims, dtype=np.int64)))


def _finish(
    ctx: ImportContext,
    site: LossSite | None,
    data: tuple[DataInput, ...],
    label: Value | None = None,
) -> ImportedModel:
    outputs = ctx.model.outputs[:1] if site is not None else ctx.model.outputs
    entries = [ctx.entry(name) for name in outputs]
    orders = [class_order(entry) if site is not None else _output_order(ctx, entry) for entry in entries]
    values = tuple(
        ctx.value(_maker(ctx, name), entry, o) for name, entry, o in zip(outputs, entries, orders, strict=True)
    )
    values = values if site is None else (*values, *ends_of(ctx, site, values))
    inputs = tuple(value for one in data if (value := ctx.entry(one.name).value) is not None)
    nodes, constants = ctx.nodes_and_constants(values)
    parameters = tuple(value for name, value in ctx.parameters.items() if name in constants)
    if ctx.folded_norms:
        ctx.notes.append(f"{folding_note(ctx.folded_norms)}: {named(folded_into(ctx, parameters))}")
    graph = Graph(ctx.model.name, nodes, inputs, values, constants, parameters, notes=(*ctx.model.notes, *ctx.notes))
    graph = annotated(ctx, graph)
    check_graph(graph, infer)
    loss = None
    if site is not None:
        loss = _describe_loss(ctx, site, (values[0], entries[0], orders[0]), graph, label)
        graph = ending_where_read(graph, loss)
    return ImportedModel(
        graph=graph,
        contract=1 if site is None else 2,
        loss=loss,
        input_name=data[0].name if data else "",
        input_shape=data[0].shape if data else (),
        input_perm=data[0].perm if data else plain(0),
        whole=data[0].whole if data else None,
        more=data[1:],
        output_name=ctx.model.outputs[0],
        output_shape=entries[0].shape,
        output_perm=orders[0],
        quantised=ctx.model.quantisation.found,
        tensors=surviving(
            ctx, graph, dict(zip(outputs, zip(values[: len(outputs)], orders, strict=True), strict=True))
        ),
        replaced=ctx.model.replaced,
        floats=frozenset(ctx.floats),
        sources=ctx.parameter_sources(parameters),
        fresh=tuple(ctx.file_numbers(name) for name in ctx.model.fresh if ctx.has(name)),
        copies=ctx.model.copies,
        requantised=frozenset(s.stored.name for s in ctx.model.quantisation.constants.values() if s.leaves_int8),
    )


def _output_order(ctx: ImportContext, entry: Entry) -> Order:
    """Return the order with samples first: scores for each time step have the time before them in the file."""
    first = entry.rank == 3 and is_time_first(entry.shape) and not ctx.options.any_batch
    return time_second(entry.rank) if first else plain(entry.rank)


def _describe_loss(
    ctx: ImportContext, site: LossSite, scores: tuple[Value, Entry, Order], graph: Graph, label: Value | None
) -> ImportedLoss:
    value, entry, order = scores
    try:
        if label is not None:
            return describe_written(ctx, site, (value, order), graph, label)
        return describe_loss(ctx, site, entry, order)
    except Unsupported as reason:
        complaints = Complaints(ctx.model)
        complaints.add(ctx, site.node, reason)
        complaints.raise_if_any()
        raise
    except ValueError as error:
        where = f"node {site.node.name} ({site.node.op})"
        raise CompileError("E0212", where, str(error), "check the operands of the loss") from error


def _maker(ctx: ImportContext, tensor: str) -> OnnxNode:
    """The node that an output's final change of axis order is attributed to."""
    maker = ctx.links.maker(tensor)
    return maker or OnnxNode(tensor, "Identity", "", (), (tensor,), {}, onnx.NodeProto())
