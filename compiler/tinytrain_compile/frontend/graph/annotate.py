"""Puts what a quantised model says about ranges on the values of its graph, once the graph is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Quantisation, QuantisedConstant
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.ir.types import Array, Graph, Node, Quant, Value
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.fixed_point import INT32_MAX, INT32_MIN
from tinytrain_compile.ops.linear import MatMulAttrs
from tinytrain_compile.ops.names import operand, operands, position

_VIEWS = ("Reshape", "Transpose")
_INHERITING = (*_VIEWS, "Slice", "MaxPool")
"""Ops whose result takes only values that their input has."""
_DEAD_SCALE = 1e-7
"""A channel with a smaller scale is dead: its weights were all zero when it was quantised."""
_TOLERANCE = 1e-4
"""Largest distance from a whole number of a constant in units of its scale, besides the rounding of float32. Numbers
that have nothing to do with the scale are so near two times in 10,000: a tensor of them does not pass."""


@dataclass
class _Findings:
    quants: dict[str, Quant] = field(default_factory=dict[str, Quant])
    lines: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


def annotated(ctx: ImportContext, graph: Graph) -> Graph:
    """Return the graph with `Value.quant` set. E0501 for weights whose scales are not one per output channel."""
    quantisation = ctx.model.quantisation
    if not quantisation.found:
        return graph
    found = _Findings(notes=list(quantisation.notes))
    _tensors(ctx, found)
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            spec = quantisation.constants.get(ctx.sources.get(value.name, ""))
            if spec is not None and value.name in graph.constants and value.name not in found.quants:
                _constant(found, node, index, graph.constants[value.name], spec)
    _note_shared_biases(graph, quantisation, ctx, found)
    if found.lines:
        what = f"{len(found.lines)} weights cannot be imported: their scales are not one per output channel"
        raise CompileError("E0501", ctx.model.name, what, "see the list below", tuple(found.lines))
    inherit(graph, found.quants)
    _count_dead(graph, ctx.model.constants, found)
    return replace(with_quants(graph, found.quants), notes=(*graph.notes, *found.notes))


def _note_shared_biases(graph: Graph, quantisation: Quantisation, ctx: ImportContext, found: _Findings) -> None:
    """Say which integers of the file are the biases of several layers, each in units of its own sums."""
    roots: dict[str, list[str]] = {}
    for name in graph.constants:
        spec = quantisation.constants.get(ctx.sources.get(name, ""))
        if spec is not None and spec.is_bias and np.any(graph.constants[name]):
            roots.setdefault(spec.root, []).append(name)
    for root, names in roots.items():
        if len(names) > 1:
            found.notes.append(f"bias {root}: stored once, in units of {len(names)} layers: {len(names)} biases here")


def _tensors(ctx: ImportContext, found: _Findings) -> None:
    for tensor, quant in ctx.model.quantisation.tensors.items():
        value = ctx.entry(tensor).value if ctx.has(tensor) else None
        if value is None or (first := found.quants.setdefault(value.name, quant)) == quant:
            continue
        if not _holds(quant, first):  # nothing computes between the two, so there is no value to clamp
            what = f"tensor {tensor} is quantised a second time, to a smaller range, by operators that change nothing"
            raise CompileError("E0501", ctx.model.name, what, "leave one of the two out, or write the clamp as a Clip")
        found.notes.append(f"tensor {tensor} is quantised in two ways: the first one counts")


def _holds(quant: Quant, other: Quant) -> bool:
    """Tell whether a format holds all that another one holds, but for rounding."""
    (low, high), (least, most) = (
        ((q.low - q.zero) * q.scale[0], (q.high - q.zero) * q.scale[0]) for q in (quant, other)
    )
    slack = quant.scale[0] / 2
    return least >= low - slack and most <= high + slack


def _channel_axis(node: Node, index: int, rank: int) -> int:
    """Return the axis of a constant operand that the channels of its scales lie on."""
    if node.op in ("Conv", "Gemm") and index == position(node, "w"):
        return 0
    if index == 1 and isinstance(node.attrs, MatMulAttrs) and node.attrs.transpose_b:
        return rank - 2
    return rank - 1


def _constant(found: _Findings, node: Node, index: int, data: Array, spec: QuantisedConstant) -> None:
    value = node.inputs[index]
    axis = _channel_axis(node, index, data.ndim)
    is_parameter = has_trait(node.op, "matrix") and index > 0
    if spec.leaves_int8:
        _requantise(found, value, data, axis if is_parameter else None)
        return
    scale = np.repeat(spec.scale, data.shape[axis]) if is_parameter and spec.scale.size == 1 else spec.scale
    low, high = (INT32_MIN, INT32_MAX) if spec.is_bias else (-128, 127)
    fits = scale.size == 1 or (data.ndim > 0 and scale.size == data.shape[axis])
    if fits:
        along = scale if scale.size == 1 else scale.reshape(tuple(-1 if i == axis else 1 for i in range(data.ndim)))
        stored = data.astype(np.float64) / along
        error = np.abs(stored - np.rint(stored)) - np.abs(stored) * 2.0**-23
        fits = bool((error < _TOLERANCE).all()) and (spec.is_bias or bool((np.abs(stored) < 256).all()))
    if fits:
        found.quants[value.name] = Quant(tuple(scale.tolist()), spec.zero, low, high)
    elif spec.is_bias:
        found.notes.append(f"bias {value.name} is no longer a multiple of its scale")
    else:
        what = f"weight {value.name} has {spec.scale.size} scales, but not one per output channel"
        found.lines.append(f"{node.origin or node.name}: {what}; nearest supported: one per output channel or tensor")


def _requantise(found: _Findings, value: Value, data: Array, axis: int | None) -> None:
    """Give a weight whose integers do not fit int8 scales of its own, per channel if it has an axis of these."""
    others = tuple(i for i in range(data.ndim) if i != axis)
    largest = np.abs(data.astype(np.float64)).max(axis=others, keepdims=True)
    scale = np.float32(np.where(largest > 0, largest, 1.0) / 127).astype(np.float64)
    error = float(np.abs(np.rint(data / scale) * scale - data).max())
    found.quants[value.name] = Quant(tuple(scale.reshape(-1).tolist()))
    found.notes.append(
        f"weight {value.name}: asymmetric in the file, symmetric int8 here: off by at most {error:.2g}, "
        f"{100 * error / float(largest.max() or 1.0):.1f} % of its largest number"
    )


def inherit(graph: Graph, quants: dict[str, Quant]) -> None:
    """Give values that are only moved the format of their source, and views that of the value after them."""
    readers = graph.consumers()
    outputs = {value.name for value in graph.outputs}
    for node in reversed(graph.nodes):
        source, result = (node.inputs[0].name, node.outputs[0].name) if node.inputs else ("", "")
        sole = len(readers.get(source, [])) == 1 and source not in outputs and source not in graph.constants
        if node.op in _VIEWS and sole and result in quants:
            quants.setdefault(source, quants[result])
    for node in graph.nodes:
        if node.op in _INHERITING and node.inputs[0].name in quants and node.inputs[0].name not in graph.constants:
            quants.setdefault(node.outputs[0].name, quants[node.inputs[0].name])


def with_quants(graph: Graph, quants: Mapping[str, Quant]) -> Graph:
    """Return the graph with these annotations, everywhere where a value occurs."""

    def one(value: Value) -> Value:
        return replace(value, quant=quants[value.name]) if value.name in quants else value

    def several(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(one(value) for value in values)

    nodes = tuple(replace(n, inputs=several(n.inputs), outputs=several(n.outputs)) for n in graph.nodes)
    return replace(
        graph,
        nodes=nodes,
        inputs=several(graph.inputs),
        outputs=several(graph.outputs),
        parameters=several(graph.parameters),
    )


def _count_dead(graph: Graph, constants: Mapping[str, Array], found: _Findings) -> None:
    """Note how many channels were quantised to nothing, or have a bias at the end of its range."""
    dead = layers = 0
    for node in graph.nodes:
        weight = found.quants.get(operand(node, "w").name) if has_trait(node.op, "matrix") else None
        if weight is None:
            continue
        channels = np.asarray(weight.scale) < _DEAD_SCALE
        for value in operands(node).several("bias?"):
            if value.name not in found.quants:
                continue
            stored = graph.constants[value.name].astype(np.float64) / np.asarray(found.quants[value.name].scale)
            channels = channels | (np.abs(stored) >= INT32_MAX * (1 - 2.0**-23))
        dead += int(channels.sum())
        layers += int(channels.any())
    if dead:
        found.notes.append(f"{dead} dead channels in {layers} layers kept (scale < {_DEAD_SCALE:g} or saturated bias)")
