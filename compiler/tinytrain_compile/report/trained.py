"""Trained and frozen tensors, loss and batches: in words and for report.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.summary import Fate, LayerUpdate, Record, Summary
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.int8.loss import LOSS_NAMES
from tinytrain_compile.ops.linear import LAYER_KINDS
from tinytrain_compile.ops.names import operand
from tinytrain_compile.report.layout import Row, grouped, listing, plural, printable, row, share

_CONTRACTS = {
    1: "from the options",
    2: "of the model itself",
    3: "of the training information in the model",
    4: "of the training graph in the file",
}
"""Source of the training, by the contract of a model (docs/contract.md)."""
_OF_NODES = ("running statistics", "a setting", "the compiler keeps it as numbers")
"""Beginnings of reasons that go on with a node's name: one line of the report is for all nodes."""


# ---- layers ---------------------------------------------------------------------------------------------------------


def is_updated(layer: LayerUpdate) -> bool:
    """Tell whether training changes anything in this layer."""
    return layer.bias or layer.weight


def update_totals(summary: Summary) -> dict[str, Any]:
    """Sum up how much of the model is trained; summary.layers names every layer, frozen ones too."""
    return {
        "label": summary.update_label,
        "layers": sum(is_updated(layer) for layer in summary.layers),
        "total_layers": len(summary.layers),
        "parameters": sum(layer.elements for layer in summary.layers),
        "total_parameters": sum(layer.total_elements for layer in summary.layers) + left_out(summary),
        "untrained": left_out(summary),
    }


def layer_json(layer: LayerUpdate) -> dict[str, Any]:
    """Return an entry of `update`. channels, as in a scheme file: "all", 0 (only the bias) or a number, on `axis`."""
    channels: str | int = 0
    if layer.weight:
        channels = "all" if layer.channels is None else layer.channels
    return {
        "layer": layer.name,
        **({"module": layer.module} if layer.module else {}),
        "bias": layer.bias,
        "channels": channels,
        "axis": layer.axis,
        "parameters": layer.elements,
        "total_parameters": layer.total_elements,
    }


def layer_text(layer: LayerUpdate) -> str:
    """Name a trained layer and its trained part: `conv3 (bias, 12 in channels)`; nothing in brackets for all of it."""
    if layer.elements == layer.total_elements:
        return printable(layer.shown)
    parts = ["bias"] if layer.bias else []
    if layer.weight:
        parts.append("weight" if layer.channels is None else f"{layer.channels} {layer.axis or 'out'} channels")
    return f"{printable(layer.shown)} ({', '.join(parts)})"


def layer_counts(summary: Summary) -> str:
    """Count the forward nodes that carry weights, by kind: `9 conv, 1 fc`."""
    train = summary.train.on_windows
    graph = train.graph
    forward, producers = graph.ancestors((*graph.outputs, train.loss)), graph.producers()
    kinds = [layer_kind(node, producers) for node in graph.nodes if node.name in forward]
    counts = Counter(kind for kind in kinds if kind)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no weights"


def layer_kind(node: Node, producers: Mapping[str, Node]) -> str:
    """Name the kind of a forward node with weights, "" for others; int8 dense layers and pools are convolutions."""
    if node.op != "QConv":
        return LAYER_KINDS.get(node.op, "")
    if not operand(node, "w").origin:  # a table of ones, not of the model: a pool
        return ""
    x = operand(node, "x")
    view, (_, rows, _, columns) = producers.get(x.name), x.shape
    is_matrix = view is not None and view.op == "Reshape" and operand(view, "x").shape == (rows, columns)
    return "fc" if is_matrix else "conv"


def update_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield what is trained of how much, and the trained layers if some are not."""
    totals = update_totals(summary)
    how = f"--update {printable(summary.update_label)}"
    yield row("trains", [update_counts(summary), how], width)
    names = [layer_text(layer) for layer in summary.layers if is_updated(layer)]
    if 0 < len(names) < totals["total_layers"]:
        yield listing("", names, width)


def update_counts(summary: Summary) -> str:
    """Return `3 of 10 layers, 5,312 of 22,600 parameters (23.5%)`; "numbers" if no build trains some of them."""
    totals = update_totals(summary)
    part, whole = totals["parameters"], totals["total_parameters"]
    what = "numbers" if left_out(summary) else "parameters"
    return (
        f"{grouped(totals['layers'])} of {plural(totals['total_layers'], 'layer')}, "
        f"{grouped(part)} of {grouped(whole)} {what} ({_share_of_all(part, whole)})"
    )


def _share_of_all(part: int, whole: int) -> str:
    """Return a percentage that is 100.0% only if it is all."""
    text = share(part, whole)
    return ">99.9%" if text == "100.0%" and part < whole else text


# ---- loss and batch -------------------------------------------------------------------------------------------------


def loss_name(summary: Summary) -> str:
    """Name the loss in the words of --loss (`nll` for a model that brings log-probabilities along)."""
    step = summary.train.training_step
    producers = step.graph.producers()
    node = producers[step.loss.name]
    if node.op == "NegativeLogLikelihood":
        source = producers.get(node.inputs[0].name)
        return "cross-entropy" if source is not None and source.op == "LogSoftmax" else "nll"
    return LOSS_NAMES.get(node.op, "written out in nodes")


def loss_text(summary: Summary) -> str:
    """Name the loss, and tell whether it is --loss, the default, the end of the model, or in a training graph."""
    record = summary.fact(Record)
    by_default = summary.contract == 1 and record is not None and "loss" not in record.options
    return f"{loss_name(summary)} ({'the default' if by_default else _CONTRACTS[summary.contract]})"


def batch_text(train: TrainGraph) -> str:
    """Tell how many samples an update and a step take; of an inference alone, what it keeps of a checkpoint."""
    loads = inference_json(train)
    if loads is not None:
        kept, whole = (grouped(loads[key]) for key in ("kept_bytes", "state_bytes"))
        return f"no training: keeps {kept} of the {whole} B that a checkpoint holds"
    how = " in place" if train.in_place else f", {train.micro_batch} at a time" if train.micro_batch > 1 else ""
    return f"batch {train.batch}{how}"


def inference_json(train: TrainGraph) -> dict[str, int] | None:
    """Return bytes of the state in a checkpoint, and of what an inference keeps of it; None for a training step."""
    if train.reads_state_of is None:
        return None
    states = (train.reads_state_of.graph.state, train.graph.state)
    whole, kept = (sum(value.size_bytes for value in state) for state in states)
    return {"state_bytes": whole, "kept_bytes": kept}


# ---- initializers of the file that no build trains ------------------------------------------------------------------


def fate_json(fate: Fate) -> dict[str, Any]:
    """Return an entry of `parameters` in report.json; trained: whether training may change it, of any build."""
    entry = asdict(fate)
    return {"name": entry.pop("name"), "trained": fate.kind != "other", "class": entry.pop("kind"), **entry}


def left_out(summary: Summary) -> int:
    """Return how many numbers are not trained for another reason than --update."""
    return sum(fate.elements for fate in summary.fates if fate.kind == "other")


def untrained_texts(summary: Summary) -> Iterator[tuple[str, list[str]]]:
    """Yield for each reason a sentence and the tensors with their sizes; the largest share first."""
    groups: dict[str, list[Fate]] = {}
    for fate in summary.fates:
        if fate.kind == "other":
            groups.setdefault(_reason(fate.why), []).append(fate)
    for reason, fates in sorted(groups.items(), key=lambda group: -sum(fate.elements for fate in group[1])):
        head = f"{plural(sum(fate.elements for fate in fates), 'number')} ({printable(reason)}):"
        yield head, [f"{printable(fate.name)} {grouped(fate.elements)}" for fate in fates]


def untrained_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield a row for each reason; report.json has all names."""
    for index, (head, names) in enumerate(untrained_texts(summary)):
        yield listing("untrained" if index == 0 else "", names, width, most=2, head=head)


def _reason(why: str) -> str:
    """Return the reason without the node that it is about, so that all nodes share a line."""
    return next((start for start in _OF_NODES if why.startswith(f"{start} of ")), why)
