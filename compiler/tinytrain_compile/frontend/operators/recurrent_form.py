"""What an LSTM, GRU or RNN node asks for: sizes, directions, activations, or the reason why it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.operands import constant_input, integers
from tinytrain_compile.ir.types import NO_ATTRS, Attrs
from tinytrain_compile.ops.activation import ClipAttrs, HardSigmoidAttrs, LeakyReluAttrs

MOST_STEPS = 256
"""Steps of all directions that are written out: each is some 50 nodes of a training step to plan and lower."""

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_DIRECTIONS: Mapping[str, tuple[str, ...]] = {
    "forward": ("forward",),
    "reverse": ("reverse",),
    "bidirectional": ("forward", "reverse"),
}


@dataclass(frozen=True)
class Activation:
    """An operator of the compiler with one operand, and its attributes."""

    op: str
    attrs: Attrs = NO_ATTRS


_Coefficients = Callable[[float], float]
"""Takes the next one of the node's list; the default where that is at its end."""
_ACTIVATIONS: Mapping[str, Callable[[_Coefficients, _Coefficients], Activation]] = {
    "sigmoid": lambda _alpha, _beta: Activation("Sigmoid"),
    "tanh": lambda _alpha, _beta: Activation("Tanh"),
    "relu": lambda _alpha, _beta: Activation("Clip", ClipAttrs(0.0, np.inf)),
    "leakyrelu": lambda alpha, _beta: Activation("LeakyRelu", LeakyReluAttrs(alpha(0.01))),
    "hardsigmoid": lambda alpha, beta: Activation("HardSigmoid", HardSigmoidAttrs(alpha(0.2), beta(0.5))),
}


@dataclass(frozen=True)
class Form:
    """Sizes of a node, and per direction the activations in the standard's order (f, g, h).

    batch_first: the layout of X, Y and the states; reset_last: GRU's linear_before_reset.
    """

    steps: int
    batch: int
    features: int
    hidden: int
    gates: int
    directions: tuple[str, ...]
    activations: tuple[tuple[Activation, ...], ...]
    batch_first: bool
    reset_last: bool


def form_of(ctx: ImportContext, node: OnnxNode) -> Form:
    """Read a node. Raises Unsupported for what has no IR form, ValueError for shapes that do not fit."""
    _check_attributes(ctx, node)
    x, w, r = (ctx.entry(node.input(index)) for index in range(3))
    if x.rank != 3 or w.rank != 3 or r.rank != 3:
        raise ValueError(f"X, W and R of shapes {x.shape}, {w.shape} and {r.shape}")
    batch_first = bool(node.integer("layout", 0))
    batch, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    gates, hidden = GATES[node.op], r.shape[2]
    directions = _directions(node)
    form = Form(
        *(steps, batch, x.shape[2], hidden, gates, directions),
        activations=_activations(node, len(directions)),
        batch_first=batch_first,
        reset_last=bool(node.integer("linear_before_reset", 0)),
    )
    _check_shapes(ctx, node, form)
    _check_lengths(ctx, node, form)
    if steps * len(directions) > MOST_STEPS:
        what = f"{steps} steps in {len(directions)} direction(s) would be written out, {MOST_STEPS} are the most"
        raise Unsupported("", what, "shorter sequences, or a strided Conv or a pool before it")
    return form


def _check_attributes(ctx: ImportContext, node: OnnxNode) -> None:
    if "clip" in node.attrs:
        raise Unsupported("clip", "the clip of the gates' sums has no form", "a model without it")
    if node.integer("input_forget", 0):
        raise Unsupported("input_forget", "gates i and f are coupled", "input_forget 0")
    peepholes = constant_input(ctx, node, 7, "P")
    if peepholes is not None and bool(np.any(peepholes)):
        raise Unsupported("P", "peepholes are not computed", "an LSTM without them")


def _directions(node: OnnxNode) -> tuple[str, ...]:
    found = node.text("direction", "forward")
    if found not in _DIRECTIONS:
        raise Unsupported("direction", f"{found} is no known direction", "forward, reverse or bidirectional")
    return _DIRECTIONS[found]


def _activations(node: OnnxNode, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Return activations per direction. Coefficients are consumed in order by the activations that have any."""
    each = _DEFAULTS[node.op]
    given = node.attrs.get("activations")
    names = [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in given] if given else []
    names = names or [*each] * directions
    if len(names) != directions * len(each):
        raise ValueError(f"{len(names)} activations for {directions} direction(s)")
    alphas, betas = (iter(node.attrs.get(what) or ()) for what in ("activation_alpha", "activation_beta"))
    found: list[Activation] = []
    for name in names:
        make = _ACTIVATIONS.get(name.lower())
        if make is None:
            raise Unsupported("activations", f"{name} is not known here", "Sigmoid, Tanh, Relu or HardSigmoid")
        found.append(make(lambda default: float(next(alphas, default)), lambda default: float(next(betas, default))))
    return tuple(tuple(found[i * len(each) : (i + 1) * len(each)]) for i in range(directions))


def _check_shapes(ctx: ImportContext, node: OnnxNode, form: Form) -> None:
    count, rows = len(form.directions), form.gates * form.hidden
    state = (form.batch, count, form.hidden) if form.batch_first else (count, form.batch, form.hidden)
    wanted = {
        1: ("W", (count, rows, form.features)),
        2: ("R", (count, rows, form.hidden)),
        3: ("B", (count, 2 * rows)),
        5: ("initial_h", state),
        6: ("initial_c", state),
    }
    for index, (what, shape) in wanted.items():
        entry = ctx.optional(node.input(index))
        if entry is not None and entry.shape != shape:
            raise ValueError(f"{what} has shape {entry.shape}, {shape} fits the others")
    hidden = node.integer("hidden_size", form.hidden)
    if hidden != form.hidden:
        raise ValueError(f"hidden_size {hidden}, R is for {form.hidden}")


def _check_lengths(ctx: ImportContext, node: OnnxNode, form: Form) -> None:
    lengths = constant_input(ctx, node, 4, "sequence_lens")
    if lengths is not None and set(integers(lengths)) != {form.steps}:
        raise Unsupported("sequence_lens", f"not all are {form.steps}, the whole length", "sequences of one length")
