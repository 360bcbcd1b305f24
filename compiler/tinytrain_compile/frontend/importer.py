"""Checked ONNX model -> IR graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.accounts import accounted, check_parameters, folded_into, parameter_notes
from tinytrain_compile.frontend.derived import define_folded, import_computed, is_computed
from tinytrain_compile.frontend.exporters.names import known_names
from tinytrain_compile.frontend.exporters.remarks import named
from tinytrain_compile.frontend.file.folding import FOLDABLE, NEVER_FOLDED
from tinytrain_compile.frontend.file.model import (
    INDICES,
    OUTPUT_TYPE,
    Links,
    OnnxInput,
    OnnxModel,
    OnnxNode,
    Refused,
    reachable,
)
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import (
    Order,
    channels_last,
    constant_entry,
    is_time_first,
    plain,
    time_second,
)
from tinytrain_compile.frontend.loss.labels import label_view
from tinytrain_compile.frontend.operators.handlers import HANDLERS
from tinytrain_compile.frontend.operators.loss import class_order
from tinytrain_compile.frontend.operators.normalisation import folding_note
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.unsupported import Complaints, unknown_operator
from tinytrain_compile.frontend.weights.parameters import (
    choose_trainables,
    merged,
    untied,
    with_numbers_of_the_loss,
    without_copies,
)
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.imported import DataInput, FileTensor, FileTraining, ImportedModel, WholeNumbers
from tinytrain_compile.ir.types import FileFormat, Graph, Value
from tinytrain_compile.ops import infer

if TYPE_CHECKING:
    from tinytrain_compile.frontend.loss.ending import FileLoss

MOST_INPUTS = 8
"""Data inputs that a model may have."""

_CHANNELS_LAST_READERS = frozenset(("MatMul", "LayerNormalization", "Softmax", "LogSoftmax"))
"""Operators that work on the last ONNX axis: a rank 4 input that goes straight to them is no NCHW image."""
_SIGNAL_RANK = 3
"""Axes of signals (batch, channels, length), whose channels of one point in time firmware may keep together."""
_CHANNELS_FIRST_READERS = frozenset(
    (
        *("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "PRelu"),
        *("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"),
    )
)
"""Operators whose channels are axis 1."""
_PASSING = frozenset(("Add", "Sub", "Mul", "Div", "Cast", "Identity", "Clip", "Abs", "Neg", "Pad", "Dropout"))
"""Operators that may come before them: they scale or pad the input. (A quantised file has no QDQ pairs here.)"""


def import_model(model: OnnxModel, options: FrontendOptions, training: FileTraining | None = None) -> ImportedModel:
    """Import a whole model; training: what its file says of that, which then decides what is a parameter.

    Errors: E0501/E0503 with all unsupported nodes, E0209 ..., E0231, E0305 for labels.
    """
    read = model
    if model.is_quantised:
        from tinytrain_compile.frontend.quantised.remove import unquantised

        model = unquantised(model)
    loss = _own_loss(model, options)
    left_out = [] if loss is None else loss.notes()
    outputs = model.outputs if loss is None else loss.outputs
    model = without_copies(replace(model, nodes=reachable(model.nodes, outputs), outputs=outputs))
    tied_by_exporter = () if options.untie else merged(model)
    model = untied(model) if options.untie else model
    if options.classes is not None:
        from tinytrain_compile.frontend.weights.new_head import with_fresh_head

        model = with_fresh_head(model, options.classes, options.seed)
        if loss is not None:
            loss.check_fresh_head(model, options.classes)
    model = replace(model, nodes=reachable(model.nodes, outputs))
    model = model if loss is None else loss.in_two_parts(model)
    links = Links(model.nodes, outputs, model.constants)
    data = list[tuple[OnnxInput, WholeNumbers | None]]()
    for source in _data_inputs(model, links, loss, options):
        whole = None
        if source.elem_type != onnx.TensorProto.FLOAT:
            from tinytrain_compile.frontend.file.whole_numbers import in_real_numbers

            model, source, whole = in_real_numbers(model, links, source)
        data.append((source, whole))
    links = Links(model.nodes, outputs, model.constants)
    judged = outputs if loss is None else loss.site.read  # numbers of the loss itself are no parameters
    trainables = choose_trainables(model, Links(reachable(model.nodes, judged), judged, model.constants), options)
    trainables = trainables if loss is None else with_numbers_of_the_loss(trainables, model, links)
    if training is not None:
        from tinytrain_compile.frontend.training_file.trained_set import as_the_file_says

        trainables = as_the_file_says(trainables, training, options)
    tied: frozenset[str] = frozenset()
    while True:
        ctx = ImportContext(model, links, options, trainables, tied)
        inputs = tuple(DataInput(one.name, one.shape, _declare_input(ctx, one), whole) for one, whole in data)
        if loss is not None:
            loss.declare_label(ctx)
        _import_nodes(ctx)
        ctx.notes += [*left_out, *parameter_notes(ctx, tied_by_exporter)]
        imported = _finish(ctx, loss, inputs)
        found = check_parameters(ctx, imported)
        if not found:
            break
        tied |= found
    if training is not None:
        from tinytrain_compile.frontend.training_file.trained_set import trained_as_the_file

        imported = trained_as_the_file(ctx, imported, training)
    ends = outputs if loss is None else (*outputs, loss.site.output)
    choices = accounted(ctx, read, ends, imported.graph.parameters)
    names = known_names(choices, Links(read.nodes, ends, read.constants))
    return replace(imported, choices=choices, graph=replace(imported.graph, known_as=names))


def _own_loss(model: OnnxModel, options: FrontendOptions) -> FileLoss | None:
    """Return the model's own loss; None for a forward model. E0222 if --label is not the input that it reads."""
    site = None
    if model.may_end_in_a_loss:
        from tinytrain_compile.frontend.loss.own_loss import find_site

        site = find_site(model, options)
    if options.label and (site is None or site.label.name != options.label):
        used = "it has no loss with such labels" if site is None else f"its loss reads {site.label.name or 'none'}"
        what, try_ = f"--label {options.label}", "name the label input of its loss, or leave it out"
        raise CompileError("E0222", what, used, try_)
    if site is None:
        return None
    from tinytrain_compile.frontend.loss.ending import FileLoss

    return FileLoss(model, site)


_WEIGHTED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "PRelu"))
"""Operators whose inputs after the first are weights in all but a few networks."""


def _data_inputs(
    model: OnnxModel, links: Links, loss: FileLoss | None, options: FrontendOptions
) -> tuple[OnnxInput, ...]:
    """Return the inputs that samples go to, in the order of the file. Inputs that nothing reads do not count."""
    used = [value for value in model.inputs if links.is_used(value.name)]
    used = used if loss is None else loss.without_labels(used)
    if len(used) > MOST_INPUTS:
        names = ", ".join(value.name for value in used)
        raise CompileError("E0209", "inputs", f"{len(used)} data inputs: {names}", f"use {MOST_INPUTS} at the most")
    if len(model.outputs) > 1 and loss is None and not options.any_batch:
        _check_choice(model)
        names = ", ".join(model.outputs)
        what, try_ = f"{len(model.outputs)} outputs: {names}", "choose one with --model-output NAME"
        raise CompileError("E0218", "outputs", what, try_)
    if not used:
        if options.any_batch:
            return ()
        raise CompileError("E0219", "inputs", "the output depends on no input", "export the model with its data input")
    wrong = next((value for value in used if value.shape[:1] != (1,) and not is_time_first(value.shape)), None)
    if wrong is not None and not options.any_batch:
        reader = next((node for node in model.nodes if wrong.name in node.inputs[1:] and node.op in _WEIGHTED), None)
        if reader is not None and len(used) > 1:
            what, try_ = f"is a weight of {reader.name} that has no values", "export the model with its weights"
            raise CompileError("E0215", f"input {wrong.name}", what, f"{try_} (torch: export_params=True)")
        what, try_ = (
            f"the batch is not 1 (shape {list(wrong.shape)})",
            "export with batch 1 and use --batch to accumulate",
        )
        if len(wrong.shape) < 2:
            what = f"has no axis for the batch (shape {list(wrong.shape)})"
            try_ = f"export with an example input of shape {[1, *wrong.shape]}"
        raise CompileError("E0211", f"input {wrong.name}", what, try_)
    return tuple(used)


def _check_choice(model: OnnxModel) -> None:
    """Raise E0503 if every output depends on foreign operators: to choose one would only lead to that error."""
    if all(any(node.domain for node in reachable(model.nodes, (name,))) for name in model.outputs):
        complaints = Complaints(model)
        for node in model.nodes:
            complaints.unreached(node, HANDLERS)
        complaints.raise_if_any()


def _declare_input(ctx: ImportContext, source: OnnxInput) -> Order:
    """Declare an input: images channels-last unless user or model have them otherwise, signals if asked for."""
    rank = len(source.shape)
    integer = source.elem_type in INDICES
    image = rank == 4 and not integer and ctx.options.input_layout != "chw"
    image = image and not _is_channels_last(ctx.links, source.name)
    signal = rank == _SIGNAL_RANK and not integer and ctx.options.input_layout == "lc"
    order = channels_last(rank) if image else plain(rank)
    if signal and _is_channels_first(ctx.links, source.name):  # one that goes to no convolution has its length in front
        order = (0, 2, 1)
    if is_time_first(source.shape) and not ctx.options.any_batch:
        order = time_second(rank)
    ctx.graph_input(source.name, source.shape, order, "NHWC" if image else "NWC" if signal else "", integer)
    return order


def _is_channels_last(links: Links, name: str) -> bool:
    """Tell whether the ONNX input is NHWC already (TensorFlow exports), or features on its last axis."""
    readers = links.readers(name)
    return bool(readers) and all(
        (node.op == "Transpose" and node.integers("perm") == (0, 3, 1, 2)) or node.op in _CHANNELS_LAST_READERS
        for node in readers
    )


def _is_channels_first(links: Links, name: str) -> bool:
    """Tell whether a convolution or the like reads the input, directly or behind what leaves its axes as they are."""
    found = links.followed(name, lambda node: node.op in _PASSING)
    return any(node.op in _CHANNELS_FIRST_READERS for _, node in found)


def _import_nodes(ctx: ImportContext) -> None:
    """Import all nodes. The list of all that is unsupported comes before any other error in a node."""
    nodes, first = ctx.model.nodes, None
    complaints: Complaints | None = None
    refused = ctx.model.quantisation.refused
    _fold_weights(ctx, [node for node in nodes if node.name not in refused])
    for node in nodes:
        if node.name in ctx.done:
            continue
        try:
            if node.name in refused:
                raise refused[node.name]
            if all(ctx.has(name) for name in node.inputs if name):
                _import_node(ctx, node)
            else:
                complaints = complaints or Complaints(ctx.model)
                complaints.unreached(node, HANDLERS)
        except Refused as reason:
            complaints = complaints or Complaints(ctx.model)
            complaints.add(ctx, node, reason)
        except CompileError as problem:
            first = first or problem
    if complaints is not None:
        complaints.raise_if_any()
    if first is not None:
        raise first


def _fold_weights(ctx: ImportContext, nodes: Sequence[OnnxNode]) -> None:
    """Fold first all that follows from weights alone, so that handlers may look at constants of later nodes."""
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
        if ctx.labels and label_view(ctx, node):
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


def _finish(ctx: ImportContext, loss: FileLoss | None, data: tuple[DataInput, ...]) -> ImportedModel:
    outputs = ctx.model.outputs if loss is None else ctx.model.outputs[:1]
    entries = [ctx.entry(name) for name in outputs]
    # Samples come first: scores for each time step have the time before them in the file.
    turned = [e.rank == _SIGNAL_RANK and is_time_first(e.shape) and not ctx.options.any_batch for e in entries]
    orders = [time_second(e.rank) if first else plain(e.rank) for e, first in zip(entries, turned, strict=True)]
    orders = orders if loss is None else [class_order(entry) for entry in entries]
    values = tuple(
        ctx.value(_maker(ctx, name), entry, o) for name, entry, o in zip(outputs, entries, orders, strict=True)
    )
    values = values if loss is None else (*values, *loss.ends(ctx, values))
    inputs = tuple(value for one in data if (value := ctx.entry(one.name).value) is not None)
    nodes, constants = ctx.nodes_and_constants(values)
    parameters = tuple(value for name, value in ctx.parameters.items() if name in constants)
    if ctx.folded_norms:
        ctx.notes.append(f"{folding_note(ctx.folded_norms)}: {named(folded_into(ctx, parameters))}")
    graph = Graph(ctx.model.name, nodes, inputs, values, constants, parameters, notes=(*ctx.model.notes, *ctx.notes))
    if ctx.model.quantisation.found:
        from tinytrain_compile.frontend.graph.annotate import annotated

        graph = annotated(ctx, graph)
    check_graph(graph, infer)
    described, graph = (None, graph) if loss is None else loss.described(ctx, entries[0], orders[0], graph)
    return ImportedModel(
        graph=graph,
        contract=1 if loss is None else 2,
        loss=described,
        input_name=data[0].name if data else "",
        input_shape=data[0].shape if data else (),
        input_perm=data[0].perm if data else plain(0),
        whole=data[0].whole if data else None,
        more=data[1:],
        output_name=ctx.model.outputs[0],
        output_shape=entries[0].shape,
        output_perm=orders[0],
        quantised=ctx.model.quantisation.found,
        tensors=_surviving(ctx, graph, dict(zip(outputs, zip(values, orders, strict=False), strict=True))),
        replaced=ctx.model.replaced,
        floats=frozenset(ctx.floats),
        sources=ctx.parameter_sources(parameters),
        fresh=tuple(ctx.file_numbers(name) for name in ctx.model.fresh if ctx.has(name)),
        copies=ctx.model.copies,
        requantised=frozenset(s.stored.name for s in ctx.model.quantisation.constants.values() if s.leaves_int8),
        stored_output=_stored_output(ctx.model, graph.outputs[0]),
    )


def _stored_output(model: OnnxModel, output: Value) -> FileFormat | None:
    kind = next((entry.value for entry in model.proto.metadata_props if entry.key == OUTPUT_TYPE), "")
    if output.quant is None or kind not in ("int8", "uint8"):
        return None
    return FileFormat(kind, output.quant.scale[0], output.quant.zero + (128 if kind == "uint8" else 0))


def _maker(ctx: ImportContext, tensor: str) -> OnnxNode:
    """Return the node that an output's final change of axis order is attributed to."""
    maker = ctx.links.maker(tensor)
    return maker or OnnxNode(tensor, "Identity", "", (), (tensor,), {}, onnx.NodeProto())


def _surviving(ctx: ImportContext, graph: Graph, outputs: Mapping[str, tuple[Value, Order]]) -> dict[str, FileTensor]:
    """Return by ONNX name which tensors of the file are values of the graph, so that both can be compared.

    What was folded or fused away is missing; `outputs` are taken as the graph hands them out.
    """
    alive = {value.name for value in graph.inputs} | {v.name for node in graph.nodes for v in node.outputs}
    aliases = ctx.model.quantisation.aliases
    found: dict[str, FileTensor] = {}
    for name in (*ctx.known(), *aliases):
        real = aliases.get(name, name)
        if not ctx.has(real):
            continue
        entry = ctx.entry(real)
        value, order = outputs.get(name, (entry.value, entry.order))
        if value is not None and value.name in alive:
            found[name] = FileTensor(value.name, entry.shape, order, entry.columns or ())
    return found
