"""Ranges of a float graph, measured on samples: annotates its values with `quant`.

Everything is computed in float64 and in a fixed order, so that the same samples always give the same integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.records import feeds
from tinytrain_compile.ir.types import Array, Graph, Node, Quant, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import Trait, has_trait
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.ops.linear import output_axis
from tinytrain_compile.ops.names import operands
from tinytrain_compile.ops.shape import EmbedAttrs, ExpandAttrs
from tinytrain_compile.quantize.prepare import fuse_biases
from tinytrain_compile.quantize.storage import LARGEST, SMALLEST, out_of_range

Method = Literal["minmax", "percentile"]

WEIGHT_FLOOR = 1e-8
"""Smallest scale of a weight's channel: dead channels have it."""
_IN_INTEGERS: tuple[Trait, ...] = ("requantised", "clamps", "marks", "repeats", "moves_data", "target_loss")
"""Traits of operators that have an integer form of some kind (`_Rewrite` has the rules)."""
_BINS = 2048
"""Bins of the histogram for percentiles. Scales of `cnn` in tests/quantize/nets.py (64 samples, 99.9 %) differ by at
most 0.07 % from those with 131,072 bins; with 1,024 bins 0.13 %, with 4,096 0.05 %."""
_SCORES = 200.0
"""Largest distance of scores that are not masked: the exponential of minus half of it is 0 in float32."""
_BIAS_ROOM = 2.0**30
"""Largest magnitude that a bias may have in units of its accumulator: this leaves room for the sum, and for
training."""


def calibrate(
    graph: Graph,
    samples: Array,
    method: Method = "minmax",
    percentile: float = 99.99,
    floats: Collection[str] = (),
) -> Graph:
    """Annotate a float graph, its added biases fused into their layers; existing annotations stay.

    samples: any number, each in the layout of the graph's input (a leading axis counts them). method: "minmax" covers
    all numbers seen; "percentile" only the middle `percentile` percent.
    floats: origins whose nodes compute in float32: their weights, and values that only they read, get no format.
    Errors: E0307 for NaN, infinity and numbers that int8 cannot hold.
    """
    if len(samples) == 0:
        raise ValueError("no samples")
    graph = fuse_biases(graph)
    known = _annotations(graph)
    inner = _inner_values(graph, floats)
    measured = [name for name in _measured_values(graph, known) if name not in inner]
    ranges = _ranges(graph, samples, measured, percentile if method == "percentile" else None)
    masked = _masked_scores(graph, ranges)
    measured = [name for name in measured if name not in masked]
    _check_ranges(graph, {name: ranges[name] for name in measured})
    for name in measured:
        known[name] = activation_quant(*ranges[name])
    _inherit(graph, known, inner)
    for node in graph.nodes:
        if has_trait(node.op, "matrix") and node.origin not in floats:
            _parameters(graph, node, known)
    notes = (
        [f"{', '.join(sorted(floats))}: computed in float32 (recurrent, or its weight is computed)"] if floats else []
    )
    return _annotated(replace(graph, notes=(*graph.notes, *notes)), known)


def activation_quant(low: float, high: float) -> Quant:
    """Return asymmetric int8 for numbers from `low` to `high`: 0 is always exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255.0 if high > low else 1.0 / 255.0
    scale = max(float(np.float32(scale)), SMALLEST)  # smaller ones are dead
    zero = int(np.clip(np.rint(-128.0 - low / scale), -128, 127))
    return Quant((scale,), zero)


def weight_quant(data: Array, axis: int = 0, smallest: Array | float = WEIGHT_FLOOR) -> Quant:
    """Return symmetric int8, one scale per index of the axis, none below `smallest`."""
    rows = np.moveaxis(np.abs(data.astype(np.float64)), axis, 0).reshape(data.shape[axis], -1)
    scales = np.maximum(rows.max(axis=1, initial=0.0) / 127.0, smallest).astype(np.float32)
    return Quant(tuple(float(s) for s in scales))


# ---- which values ---------------------------------------------------------------------------------------------------


def _annotations(graph: Graph) -> dict[str, Quant]:
    values = [*graph.inputs, *(v for node in graph.nodes for v in (*node.inputs, *node.outputs))]
    return {value.name: value.quant for value in values if value.quant is not None}


def _measured_values(graph: Graph, known: Mapping[str, Quant]) -> list[str]:
    """Return names of the values that get a range of their own."""
    readers = graph.consumers()
    outputs = {value.name for value in graph.outputs}
    names = [value.name for value in graph.inputs if value.dtype == "float32"]
    computed = {value.name for value in graph.inputs}
    for node in graph.nodes:
        if not any(value.name in computed for value in node.inputs):
            continue  # values computed from parameters alone are not activations
        computed.update(value.name for value in node.outputs)
        follower = readers.get(node.outputs[0].name, [])
        clamped = [n.op for n in follower] == ["Clip"] and node.outputs[0].name not in outputs
        saturates = has_trait(node.op, "requantised") and clamped
        if not saturates and not (_moves(node) and node.inputs[0].name not in graph.constants):
            names += [value.name for value in node.outputs if value.dtype == "float32"]
    return [name for name in names if name not in known]


def _inner_values(graph: Graph, floats: Collection[str]) -> frozenset[str]:
    """Return the results of nodes in float32 that no other node reads: rounding them to integers would gain nothing."""
    readers = graph.consumers()
    outputs = {value.name for value in graph.outputs}
    inside = {node.name for node in graph.nodes if node.origin in floats or _has_no_integers(graph, node)}
    return frozenset(
        value.name
        for node in graph.nodes
        if node.name in inside
        for value in node.outputs
        if value.name not in outputs and all(reader.name in inside for reader in readers.get(value.name, []))
    )


def _has_no_integers(graph: Graph, node: Node) -> bool:
    """Tell whether a node has no integer form, whatever its operands' formats are."""
    if has_trait(node.op, "adds"):
        constant = any(value.name in graph.constants for value in node.inputs)
        return constant or len({value.shape for value in node.inputs}) > 1
    if has_trait(node.op, "distribution"):
        return all(value.name != node.outputs[0].name for value in graph.outputs)  # else the loss may be in integers
    return not any(has_trait(node.op, trait) for trait in _IN_INTEGERS)


def _masked_scores(graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> frozenset[str]:
    """Return values that only a softmax reads and that contain masked scores: one scale for both would round all scores
    to the same number. They stay float32, like the softmax."""
    readers = graph.consumers()
    outputs = {value.name for value in graph.outputs}
    found: set[str] = set()
    for node in reversed(graph.nodes):
        name = node.outputs[0].name
        followers = readers.get(name, [])
        only = bool(followers) and all(has_trait(r.op, "distribution") or r.outputs[0].name in found for r in followers)
        low, high = ranges.get(name, (0.0, 0.0))
        if only and name not in outputs and (high - low > _SCORES or _moves(node)):
            found.add(name)
    return frozenset(found)


def _moves(node: Node) -> bool:
    """Tell whether a result holds only numbers of the node's one operand, and zeros."""
    if isinstance(node.attrs, EmbedAttrs):
        return node.attrs.value == 0
    if isinstance(node.attrs, ExpandAttrs):
        return node.attrs.scale == 1
    return has_trait(node.op, "moves_data") and node.op != "Concat"


def _inherit(graph: Graph, known: dict[str, Quant], inner: frozenset[str]) -> None:
    for node in graph.nodes:
        if node.outputs[0].name in inner:
            continue
        if _moves(node) and node.inputs[0].name in known and node.inputs[0].name not in graph.constants:
            known.setdefault(node.outputs[0].name, known[node.inputs[0].name])


# ---- ranges ---------------------------------------------------------------------------------------------------------


@dataclass
class _Histogram:
    """Counts of one value's elements in equal bins from `low` to `high`."""

    low: float
    high: float
    counts: NDArray[np.int64]

    def add(self, data: Array) -> None:
        self.counts += np.histogram(data, _BINS, (self.low, self.high))[0]

    def middle(self, percent: float) -> tuple[float, float]:
        """Return the smallest range of whole bins that leaves at most half of the rest out on either side."""
        beyond = float(self.counts.sum()) * (100.0 - percent) / 200.0
        first = int(np.searchsorted(np.cumsum(self.counts), beyond, side="right"))
        last = _BINS - int(np.searchsorted(np.cumsum(self.counts[::-1]), beyond, side="right"))
        width = (self.high - self.low) / _BINS
        return self.low + first * width, self.low + last * width


def _ranges(
    graph: Graph, samples: Array, names: list[str], percentile: float | None
) -> Mapping[str, tuple[float, float]]:
    """Return (smallest, largest) of each value over all samples."""
    lows, highs = dict.fromkeys(names, np.inf), dict.fromkeys(names, -np.inf)
    for values in _runs(graph, samples):
        for name in names:
            lows[name] = min(lows[name], float(values[name].min()))
            highs[name] = max(highs[name], float(values[name].max()))
    whole = {name: (lows[name], highs[name]) for name in names}
    if percentile is None:
        return whole
    spread = {
        name: _Histogram(low, high, np.zeros(_BINS, np.int64))
        for name, (low, high) in whole.items()
        if high - low > _BINS * np.spacing(max(abs(low), abs(high)))  # else it is one number, apart from rounding
    }
    for values in _runs(graph, samples):
        for name, histogram in spread.items():
            histogram.add(values[name])
    return whole | {name: histogram.middle(percentile) for name, histogram in spread.items()}


def _check_ranges(graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> None:
    for name, bounds in ranges.items():
        if not np.isfinite(bounds).all() or max(map(abs, bounds)) > 255 * LARGEST:
            raise out_of_range(name, f"it is from {bounds[0]:.3g} to {bounds[1]:.3g} on the calibration samples")
    for source in (value.name for value in graph.inputs if value.name in ranges):
        if 0 < max(map(abs, ranges[source])) < 127 * SMALLEST:
            raise out_of_range(source, f"the calibration samples are below {max(map(abs, ranges[source])):.3g}")


def _runs(graph: Graph, samples: Array) -> Iterator[Mapping[str, Array]]:
    """Return every sample's values by name."""
    constants = {name: _double(data) for name, data in graph.constants.items()}
    for at in range(len(samples)):
        given = feeds(samples[at : at + 1], graph.inputs)
        yield run_nodes(graph.nodes, {**constants, **{name: _double(array) for name, array in given.items()}})


def _double(data: Array) -> Array:
    return data.astype(np.float64) if data.dtype.kind == "f" else data


# ---- parameters -----------------------------------------------------------------------------------------------------


def _parameters(graph: Graph, node: Node, known: dict[str, Quant]) -> None:
    """Quantise weight and bias of a layer; the bias counts in units of its accumulator."""
    (data, *_), o = node.inputs, operands(node)
    weight, own = o["w"].name, o.get("bias")
    if weight not in graph.constants:
        return
    x, bias = known.get(data.name), "" if own is None else own.name
    smallest: Array | float = WEIGHT_FLOOR
    if x is not None and bias in graph.constants:  # the bias of a dead channel must fit too
        smallest = np.maximum(
            np.abs(graph.constants[bias].astype(np.float64)) / (x.scale[0] * _BIAS_ROOM), WEIGHT_FLOOR
        )
    known.setdefault(weight, weight_quant(graph.constants[weight], output_axis(node), smallest))
    if x is not None and bias in graph.constants:
        scales = tuple(x.scale[0] * scale for scale in known[weight].scale)
        known.setdefault(bias, Quant(scales, 0, fx.INT32_MIN, fx.INT32_MAX))


def _annotated(graph: Graph, known: Mapping[str, Quant]) -> Graph:
    def marked(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(v, quant=known[v.name]) if v.name in known else v for v in values)

    nodes = tuple(replace(node, inputs=marked(node.inputs), outputs=marked(node.outputs)) for node in graph.nodes)
    inputs, outputs, parameters = (marked(v) for v in (graph.inputs, graph.outputs, graph.parameters))
    return replace(graph, nodes=nodes, inputs=inputs, outputs=outputs, parameters=parameters)
