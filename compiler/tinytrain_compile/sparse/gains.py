"""Gains of training parts of layers: a table of the user's (--gains), or an assumption without one.

Without data only the size of a layer is known. Then the gain of a scheme is the sum over the layers of the square root
of trained parameters: the first ones of a layer count most, so training is spread over many layers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, cast

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import TableKind, read_text
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.sparse.select import Layer, channel_axes, layers_of

UNITS = 1_000_000
"""Integer units per gain of 1: sums of integers are exact in any order."""
MOST = 1e9
"""Largest gain of one row."""
_KIND = TableKind("E0308", "E0308", "see docs/update-schemes.md for the format", "the table of `contribution`")
COLUMNS = ("layer", "part", "axis", "channel", "gain")

Part = Literal["bias", "weight", "norm"]


@dataclass(frozen=True)
class Key:
    """Key of a gain: a part of a layer, for weights on a channel axis."""

    layer: str
    part: Part
    axis: str


@dataclass(frozen=True)
class GainTable:
    """Gains of parts of layers, in 1 / UNITS. rows empty and `source` empty: the prior.

    whole: of all channels together, divided evenly among shares. channels: by channel; those not named have no gain.
    """

    source: str = ""
    whole: Mapping[Key, int] = field(default_factory=dict[Key, int])
    channels: Mapping[Key, Mapping[int, int]] = field(default_factory=dict[Key, Mapping[int, int]])

    @property
    def is_prior(self) -> bool:
        """True if nothing was measured."""
        return not self.source

    @property
    def said(self) -> str:
        """Source of the gains, for people."""
        return "prior: sum over layers of sqrt(trained parameters)" if self.is_prior else self.source

    def best(self, layer: Layer, axis: str, count: int) -> int | tuple[int, ...]:
        """Return the `count` channels to take: the leading ones, or those with the largest gains; among equals the
        first."""
        known = self.channels.get(Key(layer.name, "weight", axis))
        if known is None:
            return count
        total = axes_of(layer)[axis]
        ranked = sorted(range(total), key=lambda channel: (-known.get(channel, 0), channel))[:count]
        return count if sorted(ranked) == list(range(count)) else tuple(sorted(ranked))

    def bias(self, layer: Layer) -> int:
        """Return the gain of the biases, from a table."""
        return self.whole.get(Key(layer.name, "bias", ""), 0)

    def weight(self, layer: Layer, axis: str, taken: int | tuple[int, ...]) -> int:
        """Return the gain of channels of the first weight, from a table."""
        key = Key(layer.name, "weight", axis)
        if key in self.channels:
            chosen = range(taken) if isinstance(taken, int) else taken
            return sum(self.channels[key].get(channel, 0) for channel in chosen)
        count = taken if isinstance(taken, int) else len(taken)
        return self.whole.get(key, 0) * count // axes_of(layer)[axis]

    def all_weights(self, layer: Layer) -> int:
        """Return the gain of all weights, from a table: the better of its axes, and scale and shift of a
        normalisation."""
        axes = ("out", "in", "")
        sums = (sum(self.channels.get(Key(layer.name, "weight", axis), {}).values()) for axis in axes)
        most = max((*sums, *(self.whole.get(Key(layer.name, "weight", axis), 0) for axis in axes)))
        return most + self.whole.get(Key(layer.name, "norm", ""), 0)


PRIOR = GainTable()


def prior_gain(elements: int) -> int:
    """Return the prior gain of that many trained parameters of one layer."""
    return round(math.sqrt(elements) * UNITS)


def axes_of(layer: Layer) -> dict[str, int]:
    """Return channel counts of a layer's first weight by the axis that a scheme names; none if it has no channels."""
    if not layer.weights:
        return {}
    known = channel_axes(layer.node, layer.weights[0])
    return {axis: known[axis] for axis in ("in", "out") if axis in known}  # in the order of a layer's ways


def read_gains(path: Path, graph: Graph) -> GainTable:
    """Read a table of --gains for a model; CompileError E0308 names the line, E0301 an unknown layer."""
    text = read_text(path, partial(_bad, path.name), partial(_KIND.missing, path.name))
    try:
        rows = list(csv.reader(text.splitlines(), strict=True))
    except csv.Error as problem:
        raise _bad(path.name, f"is not CSV ({problem})") from problem
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        apart = " (cells are separated by commas)" if rows and any(each in rows[0][0] for each in ";\t") else ""
        raise _bad(f"{path.name}, line 1", f"is not the header {','.join(COLUMNS)}{apart}")
    layers = {name: layer for layer in reversed(layers_of(graph)) for name in layer.names}
    whole: dict[Key, int] = {}
    channels: dict[Key, dict[int, int]] = {}
    for number, row in enumerate(rows[1:], 2):
        if row:
            _take(f"{path.name}, line {number}", [cell.strip() for cell in row], layers, whole, channels)
    if not whole and not channels:
        raise _bad(path.name, "has no rows")
    return GainTable(path.name, whole, channels)


def _take(
    where: str,
    row: list[str],
    layers: Mapping[str, Layer],
    whole: dict[Key, int],
    channels: dict[Key, dict[int, int]],
) -> None:
    if len(row) != len(COLUMNS):
        raise _bad(where, f"has {len(row)} cells, not {len(COLUMNS)}")
    name, part, axis, channel, gain = row
    layer = layers.get(name)
    if layer is None:
        what, way = f"no layer with parameters is called {name!r}", "report.json lists the layers under `update`"
        raise CompileError("E0301", where, what, way)
    key, value = _key(where, layer, part, axis, channel), _gain(where, gain)
    if key in whole or (channel == "*" and key in channels):
        raise _bad(where, "says again what an earlier line has said")
    if channel == "*":
        whole[key] = value
        return
    total = axes_of(layer)[axis]
    if not channel.isascii() or not channel.isdigit() or len(channel) > 9 or int(channel) >= total:
        raise _bad(where, f"{channel!r} is not *, or a channel from 0 to {total - 1}")
    if int(channel) in channels.get(key, {}):
        raise _bad(where, "says again what an earlier line has said")
    channels.setdefault(key, {})[int(channel)] = value


def _key(where: str, layer: Layer, part: str, axis: str, channel: str) -> Key:
    matrix = has_trait(layer.node.op, "matrix")
    there = {"bias": bool(layer.biases), "weight": bool(layer.weights), "norm": bool(layer.weights) and not matrix}
    if part not in there:
        raise _bad(where, f"{part!r} is not bias, weight or norm")
    if not there[part]:
        raise _bad(where, f"{layer.name} has no {part}")
    if channel == "*" and (part != "weight" or not axes_of(layer)):
        return Key(layer.name, cast(Part, part), "")
    if part != "weight" or axis not in axes_of(layer):
        raise _bad(where, f"{layer.name} has no channels of its {part} on the axis {axis!r}")
    return Key(layer.name, "weight", axis)


def _gain(where: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST:
        raise _bad(where, f"{text!r} is not a gain from 0 to {MOST:g}")
    return round(value * UNITS)


def _bad(where: str, what: str) -> CompileError:
    return _KIND.error(where, what)
