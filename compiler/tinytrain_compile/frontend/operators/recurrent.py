"""LSTM, GRU and RNN, written out: one product for the inputs of all steps, then per step one product of the state.

Values are batch-first: rows of a step are [batch, gates * hidden], and the gates of a step are cut from them, so that
with one sample every cut is a view. W, R and the two halves of B are one parameter per direction, read by every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext
from tinytrain_compile.frontend.graph.entries import Order, plain
from tinytrain_compile.frontend.graph.operands import constant_input, integers, is_zero
from tinytrain_compile.ir.types import NO_ATTRS, Array, Attrs, Value
from tinytrain_compile.ops.activation import ClipAttrs, HardSigmoidAttrs, LeakyReluAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, SliceAttrs

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
    """Read a node. Raises Refused for what has no IR form, ValueError for shapes that do not fit."""
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
        raise Refused("", what, "shorter sequences, or a strided Conv or a pool before it")
    return form


def _check_attributes(ctx: ImportContext, node: OnnxNode) -> None:
    if "clip" in node.attrs:
        raise Refused("clip", "the clip of the gates' sums has no form", "a model without it")
    if node.integer("input_forget", 0):
        raise Refused("input_forget", "gates i and f are coupled", "input_forget 0")
    peepholes = constant_input(ctx, node, 7, "P")
    if peepholes is not None and bool(np.any(peepholes)):
        raise Refused("P", "peepholes are not computed", "an LSTM without them")


def _directions(node: OnnxNode) -> tuple[str, ...]:
    found = node.text("direction", "forward")
    if found not in _DIRECTIONS:
        raise Refused("direction", f"{found} is no known direction", "forward, reverse or bidirectional")
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
            raise Refused("activations", f"{name} is not known here", "Sigmoid, Tanh, Relu or HardSigmoid")
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
        raise Refused("sequence_lens", f"not all are {form.steps}, the whole length", "sequences of one length")


_TWO_BIASES = "pytorch"
"""Producer whose layers have two biases, whatever they hold. Of others a second one of zeros is only there because the
operator wants it (Keras has one bias)."""
_W, _R, _B, _H, _C = 1, 2, 3, 5, 6
"""Places of the operands."""


@dataclass(frozen=True)
class _State:
    """h, and of an LSTM c, after a step, [batch, hidden]; None where they are zero, which no step needs to multiply."""

    h: Value | None
    c: Value | None = None


@dataclass(frozen=True)
class _Direction:
    """One direction of a node, and how nodes and parameters of it are made."""

    ctx: ImportContext
    node: OnnxNode
    form: Form
    index: int

    @property
    def activations(self) -> tuple[Activation, ...]:
        """In the standard's order (f, g, h)."""
        return self.form.activations[self.index]

    @property
    def order(self) -> range:
        """The steps in the order in which they are computed."""
        steps = range(self.form.steps)
        return steps[::-1] if self.form.directions[self.index] == "reverse" else steps

    def emit(self, op: str, inputs: tuple[Value, ...], what: str, attrs: Attrs = NO_ATTRS) -> Value:
        """Return a node of this direction."""
        return self.ctx.emit(self.node, op, inputs, attrs, f"reverse.{what}" if self.index else what)

    def activate(self, which: int, value: Value, what: str) -> Value:
        """Return one of the cell's activations."""
        function = self.activations[which]
        return self.emit(function.op, (value,), what, function.attrs)

    def columns(self, value: Value, first: int, last: int, what: str) -> Value:
        """Return gates first .. last - 1 of [batch, gates * hidden]."""
        hidden = self.form.hidden
        return self.cut(value, (0, first * hidden), (value.shape[0], (last - first) * hidden), what)

    def cut(self, value: Value, starts: tuple[int, ...], sizes: tuple[int, ...], what: str) -> Value:
        """Return neighbouring elements; the value itself if that is all of it."""
        if sizes == value.shape:
            return value
        return self.emit("Slice", (value,), what, SliceAttrs(starts, (1,) * len(sizes), sizes))

    def product(self, rows: Value, weight: Value, what: str, bias: Value | None = None) -> Value:
        """Return rows times the transpose of a weight, plus a vector."""
        operands = (rows, weight) if bias is None else (rows, weight, bias)
        return self.emit("Gemm", operands, what, GemmAttrs(bias=bias is not None))

    def parameter(self, place: int, rows: tuple[int, int], name: str = "") -> Value:
        """Return rows [first, last) of this direction of an operand; `name` tells several parts of it apart."""
        first, last = rows

        def lay(array: Array) -> Array:
            return array[self.index, first:last]

        ctx, node, entry = self.ctx, self.node, self.ctx.entry(self.node.input(place))
        if entry.is_constant and not ctx.is_tied(entry):
            use = entry.laid(lay)
            parts = (entry.source or node.input(place), name, "reverse" if self.index else "")
            hint = ".".join(part for part in parts if part)
            return ctx.constant(use.data.astype(np.float32), hint, node, (use.origin,))
        whole = ctx.weight(entry, node, place) if entry.is_constant else ctx.value(node, entry)
        rest = entry.shape[2:]
        part = self.cut(whole, (self.index, first) + (0,) * len(rest), (1, last - first, *rest), "part")
        return ctx.reshape(node, part, (last - first, *rest))

    def initial(self, place: int) -> Value | None:
        """Return the state before the first step, [batch, hidden]; None where it is zero."""
        ctx, node, form = self.ctx, self.node, self.form
        entry = ctx.optional(node.input(place))
        if entry is None or (is_zero(entry) and not ctx.is_trained(entry.origin)):
            return None
        axis = 1 if form.batch_first else 0
        if entry.is_constant:
            use = entry.laid(lambda array: array.take(self.index, axis))
            hint = (entry.source or node.input(place)) + (".reverse" if self.index else "")
            return ctx.constant(use.data, hint, node, (use.origin,))
        value = ctx.value(node, entry, (0, 1, 2) if form.batch_first else (1, 0, 2))
        part = self.cut(value, (0, self.index, 0), (form.batch, 1, form.hidden), "initial")
        return ctx.reshape(node, part, (form.batch, form.hidden))


_Step = Callable[[_State, Value], _State]
"""From the state and a step's share of the inputs' product to the next state."""


def _recurrent(ctx: ImportContext, node: OnnxNode) -> None:
    form = form_of(ctx, node)
    ctx.floats.add(node.name)
    x = ctx.value(node, ctx.entry(node.input(0)), (0, 1, 2) if form.batch_first else (1, 0, 2))
    rows = ctx.reshape(node, x, (form.batch * form.steps, form.features))
    passes = [_run(_Direction(ctx, node, form, index), rows) for index in range(len(form.directions))]
    ends = [steps[0 if way == "reverse" else -1] for steps, way in zip(passes, form.directions, strict=True)]
    _define(ctx, node, form, 0, [steps[place].h for place in range(form.steps) for steps in passes])
    _define(ctx, node, form, 1, [end.h for end in ends])
    _define(ctx, node, form, 2, [end.c for end in ends])


def _run(to: _Direction, rows: Value) -> list[_State]:
    """Return the states after every step, by the step's place in the sequence."""
    form = to.form
    width = form.gates * form.hidden
    bias, step = _CELLS[to.node.op](to)
    weight = to.parameter(_W, (0, width))
    inputs = to.ctx.reshape(to.node, to.product(rows, weight, "inputs", bias), (form.batch, form.steps, width))
    state = _State(to.initial(_H), to.initial(_C))
    found: dict[int, _State] = {}
    for place in to.order:
        share = to.cut(inputs, (0, place, 0), (form.batch, 1, width), "input")
        state = step(state, to.ctx.reshape(to.node, share, (form.batch, width)))
        found[place] = state
    return [found[place] for place in range(form.steps)]


def _define(ctx: ImportContext, node: OnnxNode, form: Form, output: int, states: list[Value | None]) -> None:
    """Define Y, of the states by step and direction, or Y_h or Y_c, of the last ones by direction, if it is read."""
    if not ctx.links.is_used(node.output(output)):
        return
    pieces = [state for state in states if state is not None]  # a step leaves a state
    joined = pieces[0]
    if len(pieces) > 1:
        joined = ctx.emit(node, "Concat", pieces, ConcatAttrs(1), ("Y", "Y_h", "Y_c")[output])
    order: Order = (1, 0, 2) if output else (2, 0, 1, 3)
    value = ctx.reshape(
        node, joined, (form.batch, *(() if output else (form.steps,)), len(form.directions), form.hidden)
    )
    order = plain(len(order)) if form.batch_first else order
    shape = tuple(value.shape[order.index(axis)] for axis in range(len(order)))
    ctx.define_value(node.output(output), value, shape, order)


# ---- cells ----------------------------------------------------------------------------------------------------------


def _one_bias(to: _Direction) -> Value | None:
    """Return the sum of both halves of B, which are only added to each other: a parameter each, as in the framework."""
    entry = to.ctx.optional(to.node.input(_B))
    if entry is None:
        return None
    width = to.form.gates * to.form.hidden
    first = to.parameter(_B, (0, width), "Wb")
    if entry.is_constant and not np.any(entry.data[to.index, width:]):
        choice = to.ctx.trainables.choices.get(entry.source)  # a second half of zeros may be a parameter all the same
        if to.ctx.model.proto.producer_name != _TWO_BIASES and (choice is None or choice.why != "--trainable"):
            return first
    return to.emit("Add", (first, to.parameter(_B, (width, 2 * width), "Rb")), "bias")


def _lstm(to: _Direction) -> tuple[Value | None, _Step]:
    """Return gates i, o, f, c."""
    bias = _one_bias(to)
    r = to.parameter(_R, (0, 4 * to.form.hidden))

    def step(state: _State, share: Value) -> _State:
        if state.h is not None:
            share = to.emit("Add", (share, to.product(state.h, r, "state")), "sum")
        gates = to.activate(0, to.columns(share, 0, 3, "iof"), "gates")
        candidate = to.activate(1, to.columns(share, 3, 4, "candidate"), "new")
        c = to.emit("Mul", (to.columns(gates, 0, 1, "i"), candidate), "input_gate")
        if state.c is not None:
            c = to.emit("Add", (to.emit("Mul", (to.columns(gates, 2, 3, "f"), state.c), "forget_gate"), c), "c")
        h = to.emit("Mul", (to.columns(gates, 1, 2, "o"), to.activate(2, c, "squashed")), "h")
        return _State(h, c)

    return bias, step


def _gru(to: _Direction) -> tuple[Value | None, _Step]:
    """Return gates z, r, h. The reset gate multiplies the product of the state and its bias (cuDNN, PyTorch, Keras)."""
    if not to.form.reset_last:
        return _gru_reset_first(to)
    width = 3 * to.form.hidden
    has_bias = to.ctx.optional(to.node.input(_B)) is not None
    bias = to.parameter(_B, (0, width), "Wb") if has_bias else None
    second = to.parameter(_B, (width, 2 * width), "Rb") if has_bias else None
    r = to.parameter(_R, (0, width))

    def step(state: _State, share: Value) -> _State:
        product = second and to.ctx.reshape(to.node, second, (1, width))
        if state.h is not None:
            product = to.product(state.h, r, "state", second)
        reset, update, candidate = None, to.columns(share, 0, 2, "zr_input"), to.columns(share, 2, 3, "h_input")
        if product is not None:
            update = to.emit("Add", (update, to.columns(product, 0, 2, "zr_state")), "zr")
        gates = to.activate(0, update, "gates")
        if product is not None:
            reset = to.emit("Mul", (to.columns(gates, 1, 2, "r"), to.columns(product, 2, 3, "h_state")), "reset")
            candidate = to.emit("Add", (candidate, reset), "candidate")
        return _blend(to, state, gates, to.activate(1, candidate, "new"))

    return bias, step


def _gru_reset_first(to: _Direction) -> tuple[Value | None, _Step]:
    """Return gates z, r, h. The reset gate multiplies the state."""
    hidden = to.form.hidden
    gate_weight = to.parameter(_R, (0, 2 * hidden), "zr")
    weight = to.parameter(_R, (2 * hidden, 3 * hidden), "h")

    def step(state: _State, share: Value) -> _State:
        update, candidate = to.columns(share, 0, 2, "zr_input"), to.columns(share, 2, 3, "h_input")
        if state.h is None:
            gates = to.activate(0, update, "gates")
        else:
            update = to.emit("Add", (update, to.product(state.h, gate_weight, "zr_state")), "zr")
            gates = to.activate(0, update, "gates")
            kept = to.emit("Mul", (to.columns(gates, 1, 2, "r"), state.h), "reset")
            candidate = to.emit("Add", (candidate, to.product(kept, weight, "h_state")), "candidate")
        return _blend(to, state, gates, to.activate(1, candidate, "new"))

    return _one_bias(to), step


def _blend(to: _Direction, state: _State, gates: Value, new: Value) -> _State:
    """Return (1 - z) new + z h, with one product less."""
    z = to.columns(gates, 0, 1, "z")
    if state.h is None:
        return _State(to.emit("Sub", (new, to.emit("Mul", (z, new), "share")), "h"))
    share = to.emit("Mul", (z, to.emit("Sub", (state.h, new), "apart")), "share")
    return _State(to.emit("Add", (new, share), "h"))


def _rnn(to: _Direction) -> tuple[Value | None, _Step]:
    bias = _one_bias(to)
    r = to.parameter(_R, (0, to.form.hidden))

    def step(state: _State, share: Value) -> _State:
        if state.h is not None:
            share = to.emit("Add", (share, to.product(state.h, r, "state")), "sum")
        return _State(to.activate(0, share, "h"))

    return bias, step


_CELLS: Mapping[str, Callable[[_Direction], tuple[Value | None, _Step]]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}

HANDLERS: Mapping[str, Handler] = dict.fromkeys(_CELLS, _recurrent)
