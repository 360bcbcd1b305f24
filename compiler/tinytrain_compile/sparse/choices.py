"""The ways in which each layer can be trained, for --update auto, which picks one of them per layer.

A way is an entry of a scheme file, so a choice can be written down, edited and passed back. A share consists of leading
channels: if nothing is known of channels, any are as good, and leading ones are one run of memory and one number in the
file. A table with gains of channels tells which are better.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape

from tinytrain_compile.ir.activations import LowRank
from tinytrain_compile.ir.stages import UpdatePlan
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.sparse.gains import GainTable, axes_of, prior_gain
from tinytrain_compile.sparse.scheme import SchemeEntry
from tinytrain_compile.sparse.select import Layer, UpdateMap, entry_updates, layers_of, weight_axis, whole_only

PARTS = (8, 4, 2)
"""Numbers of equal parts of the channels; a share is one part."""


@dataclass(frozen=True)
class Way:
    """One way to train a layer.

    kind: its name, the same in all layers: "frozen", "bias", "in/8" to "out/2", "all". gain: in 1 / UNITS. elements:
    parameters that it trains.
    """

    kind: str
    entry: SchemeEntry
    gain: int
    elements: int


@dataclass(frozen=True)
class LayerWays:
    """A layer and the ways to train it; the first is not to train it."""

    layer: Layer
    ways: tuple[Way, ...]


def layer_ways(graph: Graph, gains: GainTable, frozen: int = 0) -> tuple[LayerWays, ...]:
    """Return the ways of every layer, in topological order. frozen: how many of the first ones cannot be trained.

    The last layer is never trained for only a part of its outputs: these are the network's classes, and an untrained
    class among trained ones loses accuracy.
    """
    whole, layers = whole_only(graph), layers_of(graph)
    found = tuple(_ways(layer, gains, whole, layer is layers[-1]) for layer in layers)
    return tuple(
        LayerWays(layer, ways if index >= frozen else ways[:1])
        for index, (layer, ways) in enumerate(zip(layers, found, strict=True))
    )


def _said_ranks(how: LowRank) -> tuple[int, ...]:
    """Return ranks as written in a scheme file; to read it back, fixed subspaces need the same samples."""
    return how.ranks if how.kind == "asi" else how.ranks[:-1]  # fixed subspaces have a whole mode of samples


def _ways(layer: Layer, gains: GainTable, whole: frozenset[str], last: bool) -> tuple[Way, ...]:
    bias = bool(layer.biases)
    ways = [Way("frozen", SchemeEntry(layer.name, False, 0, "out"), 0, 0)]
    if bias:
        ways.append(_way("bias", SchemeEntry(layer.name, True, 0, "out"), layer, gains))
    if layer.weights and layer.weights[0].name not in whole:
        for axis, total in axes_of(layer).items():
            if axis == "out" and last:
                continue
            for part, count in {total // part: part for part in PARTS if total >= 2 * part or part == 2}.items():
                if 0 < part < total:
                    entry = SchemeEntry(layer.name, bias, gains.best(layer, axis, part), axis)
                    ways.append(_way(f"{axis}/{count}", entry, layer, gains))
    if layer.weights:
        ways.append(_way("all", SchemeEntry(layer.name, bias, "all", "out"), layer, gains))
    return tuple(ways)


def _way(kind: str, entry: SchemeEntry, layer: Layer, gains: GainTable) -> Way:
    return Way(kind, entry, gain_of(layer, entry, gains), trained_elements(layer, entry))


def trained_elements(layer: Layer, entry: SchemeEntry) -> int:
    """Count the parameters of a layer that an entry trains."""
    biases = sum(value.elements for value in layer.biases) if entry.bias else 0
    if entry.weight == "all":
        return biases + sum(value.elements for value in layer.weights)
    count = entry.weight if isinstance(entry.weight, int) else len(entry.weight)
    return biases + (layer.weights[0].elements * count // axes_of(layer)[entry.axis] if count else 0)


def gain_of(layer: Layer, entry: SchemeEntry, gains: GainTable) -> int:
    """Return the gain of training a layer as an entry says, in 1 / UNITS."""
    if gains.is_prior:
        return prior_gain(trained_elements(layer, entry))
    bias = gains.bias(layer) if entry.bias else 0
    if isinstance(entry.weight, str):
        return bias + gains.all_weights(layer)
    return bias + (gains.weight(layer, entry.axis, entry.weight) if entry.weight else 0)


def gain_of_plan(graph: Graph, plan: UpdatePlan, gains: GainTable) -> int:
    """Return the gain of any update: the sum over its layers, in 1 / UNITS."""
    return sum(gain_of(layer, _entry_of(layer, plan), gains) for layer in layers_of(graph))


def _entry_of(layer: Layer, plan: UpdatePlan) -> SchemeEntry:
    """Return the scheme entry for a plan's training of a layer."""
    bias = any(value.name in plan.updates for value in layer.biases)
    weights = [value for value in layer.weights if value.name in plan.updates]
    how = plan.activations.get(layer.weights[0].name) if weights else None
    ranks = () if how is None else _said_ranks(how)
    kept = (how.kind, ranks) if how is not None and ranks else ("", ())
    piece = next((plan.updates[value.name] for value in weights if plan.updates[value.name] is not None), None)
    if piece is None:
        return SchemeEntry(layer.name, bias, "all" if weights else 0, "out", *kept)
    axis = weight_axis(layer.node, piece.axis)
    return SchemeEntry(layer.name, bias, piece.channels, axis, *kept)


def entries_of_plan(graph: Graph, plan: UpdatePlan) -> tuple[SchemeEntry, ...]:
    """Return the scheme equivalent to an update: an entry for every layer that is at least partly trained."""
    entries = (_entry_of(layer, plan) for layer in layers_of(graph))
    return tuple(entry for entry in entries if entry.bias or entry.weight != 0)


def scheme_plan(layers: Sequence[LayerWays], chosen: Sequence[Way], label: str) -> UpdatePlan:
    """Return the update that trains every layer in its way."""
    updates: UpdateMap = {}
    for item, way in zip(layers, chosen, strict=True):
        updates.update(entry_updates(item.layer, way.entry))
    return UpdatePlan(updates, label)


def scheme_text(chosen: Sequence[SchemeEntry], comment: str) -> str:
    """Return a scheme file (docs/update-schemes.md) of the trained layers; reading it gives the same plan.

    comment: lines for its head.
    """
    blocks = ["".join(f"# {line}\n" for line in comment.splitlines())]
    for entry in chosen:
        if entry.bias or entry.weight != 0:
            lines = ["[[update]]", f"layer = {_quoted(escape(entry.layer))}"]
            lines += ["bias = true"] if entry.bias else []
            if entry.weight != 0:
                weight = list(entry.weight) if isinstance(entry.weight, tuple) else entry.weight
                lines.append(f"weight = {json.dumps(weight)}")
            if entry.weight not in (0, "all"):
                lines.append(f'axis = "{entry.axis}"')
            if entry.activation:
                lines += [f'activation = "{entry.activation}"', f"ranks = {list(entry.ranks)}"]
            blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _quoted(text: str) -> str:
    """Return a string of TOML."""
    plain = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{plain}"'
