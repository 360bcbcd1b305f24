"""Layers of random networks that are drawn less often: smooth activations, masks, powers, cells, computed weights."""

from __future__ import annotations

from random import Random
from typing import Protocol

import numpy as np

from testing.networks.models import Network

Shape = tuple[int, ...]


class End(Protocol):
    """A network that grows (`nets.Grower`)."""

    source: Random
    net: Network
    x: str
    shape: Shape

    def name(self, kind: str) -> str:
        """A new name."""
        ...

    def done(self, kind: str, line: str, shape: Shape | None = None) -> None:
        """A node that follows the end."""
        ...


_SMOOTH = (
    *(
        "Abs",
        "Elu",
        "Selu",
        "Celu <alpha = 0.75>",
        "Softplus",
        "Softsign",
        "Sin",
        "Cos",
        "ThresholdedRelu <alpha = 0.5>",
    ),
    *("Exp", "Neg", "HardSwish"),
)


def smooth(g: End) -> None:
    """One operator of those that came later."""
    operator = g.source.choice(_SMOOTH)
    if operator == "Exp":
        g.done("calm", f"Tanh ({g.x})")
    g.done("smooth", f"{operator} ({g.x})")


def choice(g: End) -> None:
    """The larger or smaller of two, a mask, or a choice by comparison."""
    before, name, kind = g.x, g.name("choice"), g.source.randrange(4)
    limit = g.net.near(f"{name}_limit", 0.1, 0.3, g.shape[-1])
    if kind < 2:
        return g.done("larger", f"{('Max', 'Min')[kind]} ({before}, {limit})")
    compare = g.source.choice(("Greater", "Less", "GreaterOrEqual"))
    zero = g.net.table(f"{name}_zero", 0.05, np.float32)
    mask = g.net.node(f"{name}/mask", f"{name}_mask = {compare} ({before}, {zero})")
    if kind == 2:
        return g.done("where", f"Where ({mask}, {before}, {limit})")
    factor = g.net.node(f"{name}/cast", f"{name}_cast = Cast <to = 1> ({mask})")
    return g.done("masked", f"Mul ({before}, {factor})")


def power(g: End) -> None:
    """Of what is positive, with an exponent that is trained, or each column's own."""
    name = g.name("power")
    shape = (g.shape[-1],) if g.source.randrange(2) else (1,)
    g.done("positive", f"Softplus ({g.x})")
    g.done("power", f"Pow ({g.x}, {g.net.near(f'{name}_exponent', 1.5, 0.3, *shape)})")


def unit_length(g: End) -> None:
    """Divided by its norm."""
    before, shape = g.x, g.shape
    g.done("norm", f"ReduceL2 <axes = [-1], keepdims = 1> ({g.x})", (*g.shape[:-1], 1))
    low = g.net.table(g.name("low"), 1e-3, np.float32)
    g.done("apart", f"Max ({g.x}, {low})")
    g.done("unit", f"Div ({before}, {g.x})", shape)


def cell(g: End) -> None:
    """A recurrent layer over tokens: all of its outputs."""
    steps, width, name = g.shape[1], g.shape[2], g.name("cell")
    kind, gates = g.source.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    both = g.source.randrange(3) == 0
    ways, hidden = 1 + both, g.source.choice((2, 3))
    w = g.net.weight(f"{name}_w", ways, gates * hidden, width, fan_in=width)
    r = g.net.weight(f"{name}_r", ways, gates * hidden, hidden, fan_in=hidden)
    bias = f", {g.net.near(f'{name}_b', 0.0, 0.1, ways, 2 * gates * hidden)}" if g.source.randrange(3) else ""
    attributes = f'hidden_size = {hidden}, direction = "{("forward", "bidirectional")[both]}"'
    attributes += f", linear_before_reset = {g.source.randrange(2)}" if kind == "GRU" else ""
    g.done("turn", f"Transpose <perm = [1, 0, 2]> ({g.x})")
    g.done("cell", f"{kind} <{attributes}> ({g.x}, {w}, {r}{bias})")
    g.done("back", f"Transpose <perm = [2, 0, 1, 3]> ({g.x})")
    shape = (1, steps, ways * hidden)
    g.done("flat", f"Reshape ({g.x}, {g.net.table(f'{name}_shape', shape)})", shape)


def normed_conv(g: End) -> None:
    """A convolution with weight normalisation."""
    channels, name = g.shape[1], g.name("normed")
    v = g.net.weight(f"{name}_v", channels, channels, 3, 3)
    factor = g.net.near(f"{name}_g", 1.0, 0.1, channels, 1, 1, 1)
    length = g.net.node(f"{name}/length", f"{name}_l = ReduceL2 <axes = [1, 2, 3], keepdims = 1> ({v})")
    unit = g.net.node(f"{name}/unit", f"{name}_u = Div ({v}, {length})")
    weight = g.net.node(f"{name}/weight", f"{name}_w = Mul ({unit}, {factor})")
    g.done("conv", f"Conv <pads = [1, 1, 1, 1]> ({g.x}, {weight})")


def dropout(g: End) -> None:
    """In training mode: left out, or computed with --dropout on."""
    name = g.name("dropout")
    ratio = g.net.table(f"{name}_ratio", g.source.choice((0.1, 0.5)), np.float32)
    mode = g.net.table(f"{name}_mode", True, np.bool_)
    g.done("dropout", f"Dropout ({g.x}, {ratio}, {mode})")


def selection(g: End) -> None:
    """Running sums, signs, the largest elements, or what an index names: along the last axis."""
    before, name, kind, size = g.x, g.name("selection"), g.source.randrange(4), g.shape[-1]
    if kind == 0:
        ways = f"reverse = {g.source.randrange(2)}, exclusive = {g.source.randrange(2)}"
        g.done("sums", f"CumSum <{ways}> ({g.x}, {g.net.table(f'{name}_axis', -1)})")
        return g.done("mean", f"Div ({g.x}, {g.net.table(f'{name}_size', float(size), np.float32)})")
    if kind == 1:
        return g.done("signed", f"Mul ({before}, {g.net.node(f'{name}/sign', f'{name}_sign = Sign ({before})')})")
    apart = g.net.table(f"{name}_apart", np.linspace(-0.7, 0.8, size), np.float32)  # no two are alike
    g.done("apart", f"Add ({g.x}, {apart})")
    if kind == 2:
        hard = g.net.node(f"{name}/hard", f"{name}_hard = Hardmax <axis = -1> ({g.x})")
        return g.done("hard", f"Mul ({g.net.node(f'{name}/top', f'{name}_top = Mul ({hard}, {g.x})')}, {g.x})")
    one = g.net.table(f"{name}_k", [1])
    g.net.node(f"{name}/top", f"{name}_top, {name}_places = TopK <axis = -1> ({g.x}, {one})")
    g.done("below", f"Sub ({g.x}, {name}_top)")
