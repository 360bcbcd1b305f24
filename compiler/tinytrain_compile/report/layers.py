"""Figures of every layer: work, time, RAM and flash. Operators without parameters count with the layer they follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinytrain_compile.ir.cost import NodeTimes
from tinytrain_compile.ir.stages import TrainGraph, flash_constants
from tinytrain_compile.ir.summary import LayerUpdate, Summary
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.report.analysis import Analysis
from tinytrain_compile.report.trained import layer_kind

NO_LAYER = ""
"""Owner of everything that belongs to no layer or to several: the input, the loss, the learning rate."""


@dataclass(frozen=True)
class LayerFigures:
    """One layer in a training step.

    update: None for NO_LAYER. kind: conv, fc, ... or "". shape: of its output. operators: ONNX nodes without
    parameters that count with it. step_ps: modelled, None if no clock is known. activation_bytes: buffers that hold
    its outputs; kept_bytes: those that the backward pass reads. permanent_bytes: trained parameters, optimizer state
    and sums of gradients. const_bytes: its constants in flash. code_bytes: its kernels, None if nothing measured them;
    a kernel that several nodes call is divided between them.
    """

    update: LayerUpdate | None
    kind: str
    shape: tuple[int, ...]
    operators: tuple[str, ...]
    forward_macs: int
    backward_macs: int
    step_ps: int | None
    activation_bytes: int
    kept_bytes: int
    permanent_bytes: int
    const_bytes: int
    code_bytes: int | None
    is_on_path: bool
    """Whether the backward pass computes anything for this layer."""

    @property
    def flash_bytes(self) -> int:
        """Constants, and code as far as it is known."""
        return self.const_bytes + (self.code_bytes or 0)


def layer_figures(summary: Summary, analysis: Analysis) -> list[LayerFigures]:
    """Return every layer in order, and last everything that belongs to none of them (update: None)."""
    owners = _Owners(summary.train, [layer.name for layer in summary.layers])
    work = _Work(summary, owners)
    memory, constants, code = _arena(analysis, owners), _constants(summary, owners), _code(summary, owners)
    updates = {layer.name: layer for layer in summary.layers}
    return [
        LayerFigures(
            updates.get(name),
            work.kinds.get(name, ""),
            work.shapes.get(name, ()),
            owners.operators(name),
            work.macs[name, True],
            work.macs[name, False],
            work.times[name] if work.times else None,
            *memory[name],
            constants[name],
            code[name] if code else None,
            name in work.on_path,
        )
        for name in (*updates, NO_LAYER)
    ]


def layers_json(summary: Summary, analysis: Analysis) -> list[dict[str, Any]]:
    """Return the key `layers` of report.json; `layer` is null in the last entry, which belongs to none."""
    return [
        {
            "layer": None if one.update is None else one.update.name,
            "kind": one.kind or None,
            "shape": list(one.shape),
            "operators": list(one.operators),
            "parameters": 0 if one.update is None else one.update.elements,
            "total_parameters": 0 if one.update is None else one.update.total_elements,
            "forward_macs": one.forward_macs,
            "backward_macs": one.backward_macs,
            "step_us": None if one.step_ps is None else one.step_ps / 1e6,
            "activation_bytes": one.activation_bytes,
            "kept_bytes": one.kept_bytes,
            "permanent_bytes": one.permanent_bytes,
            "const_bytes": one.const_bytes,
            "code_bytes": one.code_bytes,
        }
        for one in layer_figures(summary, analysis)
    ]


class _Owners:
    """Finds the layer of every node and value of a training graph."""

    def __init__(self, train: TrainGraph, layers: Sequence[str]) -> None:
        graph = train.graph
        self._layers = [*layers, NO_LAYER]
        self._of_origin = {name: name for name in layers}
        self.nodes: dict[str, str] = {}
        self.values: dict[str, str] = {}
        readers: dict[str, set[str]] = {}
        for node in graph.nodes:
            owner = self.nodes[node.name] = self._owner(node)
            self.values |= {value.name: owner for value in node.outputs}
            for value in node.inputs:
                readers.setdefault(value.name, set()).add(owner)
        for name in readers.keys() - self.values.keys():
            own = readers[name]
            self.values[name] = own.pop() if len(own) == 1 else NO_LAYER
        permanent = (*graph.state, *graph.accumulators)
        self.values |= {value.name: value.origin for value in permanent if value.origin in layers}
        self.values[train.learning_rate.name] = NO_LAYER  # even if only one layer is trained

    def _owner(self, node: Node) -> str:
        if not node.origin:
            return NO_LAYER
        if node.origin not in self._of_origin:
            sources = (self.values.get(value.name, NO_LAYER) for value in node.inputs)
            self._of_origin[node.origin] = next(filter(None, sources), NO_LAYER)
        return self._of_origin[node.origin]

    def operators(self, layer: str) -> tuple[str, ...]:
        """Return the ONNX nodes without parameters that count with a layer, in order."""
        return tuple(origin for origin, owner in self._of_origin.items() if owner == layer and origin != layer)

    def table(self) -> dict[str, int]:
        """Return 0 for every layer."""
        return dict.fromkeys(self._layers, 0)


class _Work:
    """Multiply-accumulates by (layer, whether they are of the forward pass), modelled times, kinds and shapes."""

    def __init__(self, summary: Summary, owners: _Owners) -> None:
        graph, times = summary.train.graph, summary.fact(NodeTimes)
        forward, producers = graph.ancestors((*graph.outputs, summary.train.loss)), graph.producers()
        self.macs = {(name, side): 0 for name in owners.table() for side in (True, False)}
        self.times = {} if times is None else owners.table()
        self.kinds: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.on_path: set[str] = set()
        for node in graph.nodes:
            owner = owners.nodes[node.name]
            self.macs[owner, node.name in forward] += op_def(node.op).macs(node)
            if times is not None:
                self.times[owner] += times.ps.get(node.name, 0)
            if node.name not in forward:
                self.on_path.add(owner)
            elif node.outputs and node.origin == owner:
                self.shapes[owner] = node.outputs[0].shape
                self.kinds[owner] = layer_kind(node, producers) or self.kinds.get(owner, "")


def _arena(analysis: Analysis, owners: _Owners) -> dict[str, tuple[int, int, int]]:
    """Return the bytes of buffers with a layer's activations, of those kept for backward, and permanent bytes."""
    total, kept, permanent = owners.table(), owners.table(), owners.table()
    for holding in analysis.holdings:
        size = holding.buffer.size_bytes
        if holding.buffer.kind in ("state", "accumulator"):
            permanent[owners.values.get(holding.buffer.name, NO_LAYER)] += size
        of_layer: dict[str, bool] = {}
        for tenant in holding.tenants:
            if tenant.category == "activations":
                owner = owners.values.get(tenant.names[0], NO_LAYER)
                late = any(analysis.roles[step] in ("backward", "update") for step in tenant.read_at)
                of_layer[owner] = late or of_layer.get(owner, False)
        for owner, late in of_layer.items():
            total[owner] += size
            kept[owner] += size if late else 0
    return {name: (total[name], kept[name], permanent[name]) for name in total}


def _constants(summary: Summary, owners: _Owners) -> dict[str, int]:
    found = owners.table()
    for name, data in flash_constants(summary.train, summary.plan).items():
        found[owners.values.get(name, NO_LAYER)] += data.nbytes
    return found


def _code(summary: Summary, owners: _Owners) -> dict[str, int]:
    """Return the bytes of the kernels of every layer; nothing if no function was measured."""
    sizes = summary.verify.function_bytes
    if not sizes:
        return {}
    callers: dict[str, list[str]] = {}
    for node in summary.plan.order:
        callers.setdefault(summary.calls.get(node.name, ""), []).extend(owners.nodes.get(n, "") for n in _inner(node))
    found = owners.table()
    for kernel, layers in callers.items():
        for layer in layers:
            found[layer] += sizes.get(kernel, 0) // len(layers)
    return found


def _inner(node: Node) -> Iterator[str]:
    """Yield the names of the nodes of the training graph for which a node of the plan stands."""
    if isinstance(node.attrs, StreamAttrs):
        yield from (inner.name for inner in node.attrs.nodes)
    else:
        yield node.name
