"""Channels that get another scale on the device (--rescale on): the layers that allow it, and the node that does it.

A layer allows it if all weights of its trained output channels are in the arena, and so is its bias, if any. Its shift
tables are then state; multipliers stay, because scales only double.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinytrain_compile.ir.types import Array, Node, Phase, Value
from tinytrain_compile.ops.base import Split, has_trait, op_def
from tinytrain_compile.ops.int8.pointwise import QuantAttrs
from tinytrain_compile.ops.int8.rescale import RESCALE, ChannelRescaleAttrs
from tinytrain_compile.ops.names import operands
from tinytrain_compile.quantize.forms import ShiftTables
from tinytrain_compile.quantize.state import Rewriter

IN_STEPS = QuantAttrs(1.0, 0)
"""Attributes of a Dequantize that leaves an error in its own steps."""
ROOM = 126
"""Largest magnitude of a weight at first: only growth reaches 127, at which a channel is rescaled."""


class Rescaling:
    """Choice of the layers that can rescale their channels; it quantises their weights with room to grow."""

    def __init__(self, rewriter: Rewriter, enabled: bool) -> None:
        self._r, self._enabled = rewriter, enabled
        self._trained = {parameter.name for parameter, _ in rewriter.train.graph.updates}
        self._layers = self._channels = 0

    def tables(self, weight: Value, bias: Value | None, split: Split | None) -> ShiftTables | None:
        """Return tables to fill for a layer with this (arena part of a) weight, or None if its scales are fixed."""
        whole = split is None or split.axis == "out"
        own = all(v.name in self._trained and self._layers_of(v) == 1 for v in (weight, bias) if v is not None)
        if not (self._enabled and whole and own):
            return None
        self._layers += 1
        return ShiftTables(weight.name, None if split is None else split.channels)

    def _layers_of(self, parameter: Value) -> int:
        return sum(has_trait(node.op, "layer") for node in self._r.readers[parameter.name])

    def with_room(self, scale: Array, weight: Value, split: Split | None) -> Array:
        """Return scales with which no trained weight is above ROOM; scales that are large enough stay."""
        trained = slice(None) if split is None else list(split.channels)
        data = np.abs(self._r.constants[weight.name].astype(np.float64)).reshape(weight.shape[0], -1)
        largest, scale = data.max(axis=1), scale.astype(np.float64)
        narrow = np.rint(largest / scale[trained]) > ROOM
        scale[trained] = np.where(narrow, largest / ROOM, scale[trained])
        self._channels += int(narrow.sum())
        return scale

    def notes(self) -> Sequence[str]:
        """Return notes for the report."""
        if not self._enabled:
            return ()
        if not self._layers:
            return (
                "--rescale on: no layer is trained in whole output channels and with its bias; all scales are fixed",
            )
        layers = f"{self._layers} layer{'s' * (self._layers > 1)} can change scales"
        return (f"--rescale on: {layers}; {self._channels} channels were quantised to +-{ROOM}, not 127",)


def emit_rescale(
    rewriter: Rewriter, tables: ShiftTables, weight: Value, bias: Value, fraction: Value | None, phase: Phase
) -> None:
    """Emit the node after a layer's updates; the layer's tables become state."""
    assert tables.forward is not None and tables.error is not None and tables.weight is not None
    _check_readers(rewriter, tables.error)
    owned = [weight, tables.forward, tables.error, tables.weight]
    owned += [bias, tables.bias] if tables.bias is not None else []
    owned += [fraction] if fraction is not None else []
    latest = {value.name: after for value, after in rewriter.updates}
    inputs = [latest.get(value.name, value) for value in owned]
    if tables.channels is not None:
        inputs.append(rewriter.table("channels", np.asarray(tables.channels, np.int32)))
    attrs = ChannelRescaleAttrs(tables.bias is not None, fraction is not None, tables.channels is not None)
    name = f"{weight.name}.rescale"
    after = rewriter.builder.emit_all(RESCALE.name, inputs, attrs, name, weight.origin, phase)
    shifts = [tables.forward, tables.error, tables.weight, *([tables.bias] if tables.bias is not None else [])]
    rewriter.state += shifts
    rewriter.updates = [(value, new) for value, new in rewriter.updates if value not in owned]
    rewriter.updates += zip(owned, after, strict=True)


def _check_readers(rewriter: Rewriter, shift: Value) -> None:
    """Check that no node uses the unit of a layer's error, which a rescale changes, as a constant.

    Permitted readers, besides integer steps and sums, are the layer's own backward nodes, and nodes that cut out or
    join its channels in order. That includes the way into the subspaces of a low-rank copy, which counts in steps of
    the error.
    """
    errors = {node.outputs[0].name for node in rewriter.builder.nodes if shift in node.inputs}
    for node in rewriter.builder.nodes:
        if any(value.name in errors for value in node.inputs):
            own = has_trait(node.op, "own_unit") or _takes_gradients(node) or node.attrs == IN_STEPS
            assert has_trait(node.op, "keeps_channels") or own, f"{node.name} reads an error of {shift.name}"
            errors |= {value.name for value in node.outputs if has_trait(node.op, "keeps_channels")}


def _takes_gradients(node: Node) -> bool:
    """Tell whether a node uses an int8 error `g` to step a parameter or make a sum."""
    owned = op_def(node.op).owned
    return owned is not None and owned.int8 == "integer" and "g" in operands(node)
