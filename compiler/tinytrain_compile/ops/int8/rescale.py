"""Another scale for channels whose int8 weights reach the end of their range (--rescale on).

The unit of a channel's weights doubles: weights and bias are halved, and every shift that stands for that unit follows.
With s -> 2 s: requantisation of the accumulator s_x s / s_y (shift + 1); an error in units of 1 / (s_x s), the gradient
of that accumulator (shift + 1); constants 1 / s**2 and 1 / (s_x s)**2 of the updates (shift - 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.int8.error import BACKWARD
from tinytrain_compile.ops.int8.update import expect_fraction
from tinytrain_compile.ops.names import named, operands
from tinytrain_compile.ops.owned import Kind, Owned

STEP_FALL = 2
"""Decrease of an update constant's shift when a unit doubles: the constant is 1 / unit**2."""
SHIFT_MOST = 100
"""Largest magnitude of a shift: a channel that would need more keeps its scale."""


@dataclass(frozen=True)
class ChannelRescaleAttrs(Attrs):
    """bias, fine, sliced: whether these optional operands exist; limit: weight magnitude that causes a rescale."""

    bias: bool
    fine: bool
    sliced: bool = False
    limit: int = 127


def rescaled_tables(node: Node) -> tuple[Value, ...]:
    """Return the shift tables that a ChannelRescale changes, that of the forward pass first."""
    return operands(node).several("forward", "error", "shift", "bias_shift?")


def _infer(inputs: tuple[Value, ...], attrs: ChannelRescaleAttrs) -> tuple[TensorType, ...]:
    o = named("ChannelRescale", inputs, attrs)
    rows, per_channel = o["w"].shape[:1], o["forward"].shape
    if not attrs.sliced and rows != per_channel:
        raise ValueError(f"ChannelRescale: weight {o['w'].shape}, {per_channel} channels")
    tables = [(o["forward"], per_channel, "int8"), (o["error"], per_channel, "int8"), (o["shift"], rows, "int8")]
    if attrs.bias:
        tables += [(o["bias"], per_channel, "int32"), (o["bias_shift"], per_channel, "int8")]
    if attrs.sliced:
        tables.append((o["channels"], rows, "int32"))
    for value, shape, dtype in tables:
        if (value.shape, value.dtype) != (shape, dtype):
            raise ValueError(f"ChannelRescale takes {dtype} {shape}, got {value.dtype} {value.shape}")
    if attrs.fine:
        expect_fraction("ChannelRescale", o["w"], o["fraction"])
    return tuple(value.type for name, value in o.items() if name != "channels")


def _reference(arrays: tuple[Array, ...], attrs: ChannelRescaleAttrs) -> tuple[Array, ...]:
    """Rescale row by row, as tt_rescale_channel does."""
    results = tuple(array.copy() for array in arrays)
    o = named("ChannelRescale", results, attrs)
    for row, w in enumerate(o["w"]):
        c = int(o["channels"][row]) if attrs.sliced else row
        falling = [(o["shift"], row)] + ([(o["bias_shift"], c)] if attrs.bias else [])
        rising = [(o["forward"], c), (o["error"], c)]
        room = all(table[i] < SHIFT_MOST for table, i in rising)
        room = room and all(table[i] - STEP_FALL >= -SHIFT_MOST for table, i in falling)
        if not room or np.abs(w.astype(np.int64)).max() < attrs.limit:
            continue
        for table, i in rising:
            table[i] += 1
        for table, i in falling:
            table[i] -= STEP_FALL
        if attrs.bias:
            o["bias"][c] = fx.shift_right(o["bias"][c], 1)
        if attrs.fine:
            value = fx.shift_right(w.astype(np.int64) * 256 + o["fraction"][row], 1)
            w[...] = (value + 128) >> 8
            o["fraction"][row] = value - w.astype(np.int64) * 256
        else:
            w[...] = fx.shift_right(w, 1)
    return tuple(array for name, array in o.items() if name != "channels")


def _operands(attrs: ChannelRescaleAttrs) -> tuple[str, ...]:
    """Return the optional operands that this form has.

    channels: the output channel of every row of w, if w holds only some.
    """
    bias = ("bias", "bias_shift") if attrs.bias else ()
    return (*bias, *(("fraction",) if attrs.fine else ()), *(("channels",) if attrs.sliced else ()))


def _shown(attrs: ChannelRescaleAttrs) -> tuple[str, str]:
    """Return (name, doc) of a form."""
    names = ["w", "forward shift", "error shift", "update shift"]
    names += ["bias", "its update shift"] * attrs.bias + ["fraction"] * attrs.fine
    halved = f"weights{' and bias' if attrs.bias else ''}"
    return (
        "ChannelRescale" + "Bias" * attrs.bias + "Fine" * attrs.fine,
        f"Doubles the unit of every channel with a weight at its limit: halves {halved}, moves shifts; operands "
        f"({', '.join(names)}, [channels]).",
    )


_HOLDS: dict[str, Kind] = {"w": "PARAMETER", "bias": "PARAMETER", "fraction": "ANY"}
"""Kinds of the operands that are not tables of shifts."""
_OVERWRITTEN = ("w", "forward", "error", "shift", "bias?", "bias_shift?", "fraction?")
"""w; shifts of the forward pass, of the error and of the weight's update constant; operands that a form adds."""
RESCALE = operator(
    "ChannelRescale",
    "Doubles the unit of every channel with a weight at its limit: halves weights and bias, moves shifts.",
    _infer,
    _reference,
    BACKWARD,
    ChannelRescaleAttrs,
    inputs=(*_OVERWRITTEN, "channels?"),
    outputs=_OVERWRITTEN,
    owned=Owned({name: _HOLDS.get(name, "SHIFTS") for name in (n.rstrip("?") for n in _OVERWRITTEN)}, "integer"),
    present=_operands,
    shown=_shown,
)


def rescales(node: Node) -> bool:
    """Tell whether a node gives channels another scale."""
    return node.op == RESCALE.name


def fractions(nodes: Iterable[Node]) -> tuple[Value, ...]:
    """Return the fractions of trained int8 weights."""
    found = [operands(node).get("fraction") for node in nodes if not rescales(node)]
    return tuple(value for value in found if value is not None)
