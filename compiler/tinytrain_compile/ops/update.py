"""Optimizers: each is described once, by its operator, formula, state and options; and sums of gradients.

The operators overwrite their first operands (alias). --optimizer and its options, training, both numpy readings, the
kernels and the checkpoint use OPTIMIZERS and the operators. Only the derivative check (driver/derivative/optimizers.py)
has formulas of its own, since it checks these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from tinytrain_compile.ir.stages import Velocity
from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.arithmetic import REFERENCE, Arithmetic, Steps, run_steps
from tinytrain_compile.ops.base import ELEMENTWISE, NonDifferentiable, OpDef, Trait, operator, traits
from tinytrain_compile.ops.describe import number
from tinytrain_compile.ops.names import Named, attrs_of, named, operands
from tinytrain_compile.ops.owned import Int8, IntegerStep, Kind, Owned

_UPDATE = NonDifferentiable("updates are not part of the differentiated function")

OptimizerName = Literal["sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop", "lion"]


@dataclass(frozen=True)
class SgdAttrs(Attrs):
    """weight_decay: L2 penalty added to the gradient; momentum: of the velocity (unused by plain SGD);
    scaled: whether a last operand (a scalar) multiplies the gradient, for accumulated gradients.
    nesterov: the step looks ahead along the velocity; damped: whether an operand holds the share of the gradient that
    enters the velocity (1 at first, as in PyTorch)."""

    weight_decay: float = 0.0
    momentum: float = 0.0
    scaled: bool = False
    nesterov: bool = False
    damped: bool = False


@dataclass(frozen=True)
class AdamAttrs(Attrs):
    """Decay rates, epsilon and weight decay; decoupled: AdamW (decay acts on the weight, not on the gradient).

    raw: epsilon is added to sqrt(v) before the correction; after: the decay acts on the weight after its step; late:
    the corrections are those of the step before, none at the first (ONNX's Adam from T = 0).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    scaled: bool = False
    raw: bool = False
    after: bool = False
    late: bool = False


@dataclass(frozen=True)
class AdaptiveAttrs(Attrs):
    """Attributes of Adagrad and RMSprop. alpha: share of the mean of squares that is kept; momentum: of the velocity,
    if there is one; others as in SgdAttrs."""

    epsilon: float
    weight_decay: float = 0.0
    scaled: bool = False
    alpha: float = 0.99
    momentum: float = 0.0


@dataclass(frozen=True)
class LionAttrs(Attrs):
    """beta1: share of the moment in the direction of a step; beta2: share of it that is kept; others as in SgdAttrs,
    except that the decay acts on the weight."""

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    scaled: bool = False


@dataclass(frozen=True)
class SetAttrs(Attrs):
    """value: new value of a scalar of the state."""

    value: float


# ---- update operators ------------------------------------------------------------------------------------------------

UpdateFormula = Callable[[Arithmetic, Named[Any], Any], Steps]
"""(arithmetic, elements of the operands by name, attributes) -> results.

A scalar of the state is an element; a vector of it has an element at each index. A result overwrites its operand when
it is computed, so steps that read the old value come before.
"""


@dataclass(frozen=True)
class Update:
    """Formula by which an operator changes a tensor, element by element.

    lanes: whether vectors of four compute it (they have neither roots nor quotients). low_rank: whether it is also
    fused with the gradient of a low-rank activation.
    """

    formula: UpdateFormula
    lanes: bool = False
    low_rank: bool = False


FORMULAS: dict[str, Update] = {}
"""Formulas by the name of the operator."""


def _register(
    name: str,
    doc: str,
    update: Update,
    attrs: type[Attrs],
    inputs: tuple[str, ...],
    owned: Owned,
    present: Callable[[Any], Iterable[str]] | None = None,
    *more: Trait,
    says: Callable[[Node], str] | None = None,
) -> OpDef:
    """Register an operator whose results overwrite its first operands, those that `owned` names.

    Its numpy reading consists of +, -, *, / and roots, which are exact: it repeats the C to the bit as well.
    """
    outputs = tuple(owned.holds)
    FORMULAS[name] = update

    def infer(values: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
        same = values[: len(outputs) + 1]  # with g
        if len({value.shape for value in same}) > 1:
            raise ValueError(f"shapes differ: {[value.shape for value in same]}")
        return tuple(value.type for value in values[: len(outputs)])

    def rule(arrays: tuple[Array, ...], attrs: Any) -> tuple[Array, ...]:
        operands, made = named(name, arrays, attrs), dict[str, Array]()

        def store(result: str, value: Any) -> Array:
            made[result] = np.asarray(value)
            return made[result]

        run_steps(update.formula(REFERENCE, operands, attrs), store)
        return tuple(made[result] for result in outputs)

    own = traits(*(ELEMENTWISE if update.lanes else ()), *more)
    return operator(
        name,
        doc,
        infer,
        rule,
        _UPDATE,
        attrs,
        inputs=inputs,
        outputs=outputs,
        owned=owned,
        present=present,
        traits=own,
        says=says,
    )


def update_operator(
    name: str,
    doc: str,
    formula: UpdateFormula,
    attrs: type[Attrs],
    holds: Mapping[str, Kind],
    int8: Int8,
    *shared: str,
    lanes: bool = False,
    low_rank: bool = False,
    says: Callable[[Node], str] | None = None,
) -> OpDef:
    """Register the update of a parameter by its gradient.

    holds: the operands that it overwrites, "w" first, and their kinds. shared: scalars of the state that updates of all
    parameters read; one with a "?" exists if the attributes are `damped`. lanes, low_rank: see Update.
    """

    def present(given: Any) -> tuple[str, ...]:
        optional = (stem for stem in stems if f"{stem}?" in shared and given.damped)
        return (*optional, *(("scale",) if given.scaled else ()))

    stems = [each.rstrip("?") for each in shared]
    listed = (f"[{stem}]" if f"{stem}?" in shared else stem for stem in (*holds, "g", "rate", *stems))
    doc = doc if "; operands" in doc else f"{doc}; operands ({', '.join(listed)}, [scale])."
    inputs = (*holds, "g", "rate", *shared, "scale?")
    return _register(name, doc, Update(formula, lanes, low_rank), attrs, inputs, Owned(holds, int8), present, says=says)


def _gradient(o: Named[Any], decay: float) -> Any:
    """Return the gradient to apply: the mean if it is a sum over a batch, plus that of an L2 penalty."""
    g = o["g"] * o["scale"] if "scale" in o else o["g"]
    return g + decay * o["w"] if decay else g


def _blend(old: Any, share: float, new: Any) -> Any:
    return share * old + new if share else new


def _gradient_text(attrs: SgdAttrs | AdaptiveAttrs | LionAttrs | AdamAttrs, decay: float) -> str:
    """Write `_gradient` as a factor."""
    g = "g * scale" if attrs.scaled else "g"
    return f"({g} + {number(decay)} * w)" if decay else f"({g})" if attrs.scaled else g


def _sgd_says(node: Node) -> str:
    a = attrs_of(node, SgdAttrs)
    return f"w -= rate * {_gradient_text(a, a.weight_decay)}"


def _momentum_says(node: Node) -> str:
    a = attrs_of(node, SgdAttrs)
    g, momentum = _gradient_text(a, a.weight_decay), number(a.momentum)
    step = f"({g} + {momentum} * v)" if a.nesterov else "v"
    return f"v = {momentum} * v + {'gain * ' if a.damped else ''}{g}; w -= rate * {step}"


def _adam_says(node: Node) -> str:
    a = attrs_of(node, AdamAttrs)
    g = _gradient_text(a, 0.0 if a.decoupled else a.weight_decay)
    m, v = (
        f"m = {number(a.beta1)} * m + {number(1 - a.beta1)} * {g}",
        f"v = {number(a.beta2)} * v + {number(1 - a.beta2)} * {g}^2",
    )
    root = "sqrt(v)" if a.raw else "sqrt(v / power[1])"
    factor = " * sqrt(power[1])" if a.raw else ""
    decay = f"; w also decays by rate * {number(a.weight_decay)}" if a.decoupled and a.weight_decay else ""
    return f"{m}; {v}; w -= rate * m / power[0]{factor} / ({root} + {number(a.epsilon)}){decay}"


def _adaptive_says(node: Node) -> str:
    a, kept = attrs_of(node, AdaptiveAttrs), operands(node)
    g, alpha, rest = _gradient_text(a, a.weight_decay), number(a.alpha), number(1 - a.alpha)
    parts = ["s += g^2".replace("g", g) if node.op == "AdagradUpdate" else f"s = {alpha} * s + {rest} * {g}^2"]
    parts += [f"a = {alpha} * a + {rest} * {g}"] if "a" in kept else []
    step = f"{g} / (sqrt({'max(s - a^2, 0)' if 'a' in kept else 's'}) + {number(a.epsilon)})"
    parts += [f"v = {number(a.momentum)} * v + {step}", "w -= rate * v"] if "v" in kept else [f"w -= rate * {step}"]
    return "; ".join(parts)


def _lion_says(node: Node) -> str:
    a = attrs_of(node, LionAttrs)
    g = _gradient_text(a, 0.0)
    blend = [f"{number(beta)} * m + {number(1 - beta)} * {g}" for beta in (a.beta1, a.beta2)]
    decay = f" + {number(a.weight_decay)} * w" if a.weight_decay else ""
    return f"w -= rate * (sign({blend[0]}){decay}); m = {blend[1]}"


def _sgd(_m: Arithmetic, o: Named[Any], a: SgdAttrs) -> Steps:
    yield "w", o["w"] - o["rate"] * _gradient(o, a.weight_decay)


def _plain_momentum(a: SgdAttrs) -> Iterable[tuple[str, str]]:
    """Yield the settings that have no integer form."""
    what = "int8 weights (--quant int8, or a quantised model) have plain momentum only"
    if a.nesterov or a.damped:
        yield "--nesterov" if a.nesterov else "--dampening", what
    yield from _no_decay(a)


def _no_decay(a: SgdAttrs | LionAttrs) -> Iterable[tuple[str, str]]:
    if a.weight_decay:
        yield "--weight-decay", "int8 weights (--quant int8, or a quantised model) take no decay"


SGD_UPDATE = update_operator(
    "SgdUpdate",
    "w -= rate (g + decay w)",
    _sgd,
    SgdAttrs,
    {"w": "PARAMETER"},
    IntegerStep(SgdAttrs, lambda _attrs: None, refused=_no_decay),
    lanes=True,
    low_rank=True,
    says=_sgd_says,
)


def _momentum(_m: Arithmetic, o: Named[Any], a: SgdAttrs) -> Steps:
    g = _gradient(o, a.weight_decay)
    velocity = yield "v", _blend(o["v"], a.momentum, o["gain"] * g if "gain" in o else g)
    yield "w", o["w"] - o["rate"] * (g + a.momentum * velocity if a.nesterov else velocity)


MOMENTUM_UPDATE = update_operator(
    "MomentumUpdate",
    "v = momentum v + gain (g + decay w); w -= rate v, or by Nesterov rate (g + decay w + momentum v)",
    _momentum,
    SgdAttrs,
    {"w": "PARAMETER", "v": "FINITE"},
    IntegerStep(SgdAttrs, lambda a: Velocity(a.momentum), "v", _plain_momentum),
    "gain?",
    lanes=True,
    low_rank=True,
    says=_momentum_says,
)


def _adam(m: Arithmetic, o: Named[Any], a: AdamAttrs) -> Steps:
    decay = a.weight_decay if a.decoupled else 0.0
    g = _gradient(o, 0.0 if a.decoupled else a.weight_decay)
    first = yield "m", _blend(o["m"], a.beta1, (1 - a.beta1) * g)
    second = yield "v", _blend(o["v"], a.beta2, (1 - a.beta2) * (g * g))
    share1, share2 = (m.where(m.equal(p, 0), 1.0, p) if a.late else p for p in (o["power"][0], o["power"][1]))
    if a.raw:
        step = first / share1 * m.sqrt(share2) / (m.sqrt(second) + a.epsilon)
    else:
        step = first / share1 / (m.sqrt(second / share2) + a.epsilon)
    w = o["w"] - o["rate"] * (step + decay * o["w"] if decay and not a.after else step)
    yield "w", w - o["rate"] * (decay * w) if decay and a.after else w


ADAM_UPDATE = update_operator(
    "AdamUpdate",
    "Adam (Kingma and Ba, 2015, algorithm 1) or AdamW; operands (w, m, v, g, rate, "
    "[1 - beta1^t, 1 - beta2^t], [scale]).",
    _adam,
    AdamAttrs,
    {"w": "PARAMETER", "m": "FINITE", "v": "NOT_NEGATIVE"},
    "refused",
    "power",
    low_rank=True,
    says=_adam_says,
)


def _adagrad(m: Arithmetic, o: Named[Any], a: AdaptiveAttrs) -> Steps:
    g = _gradient(o, a.weight_decay)
    squares = yield "s", o["s"] + g * g
    yield "w", o["w"] - o["rate"] * (g / (m.sqrt(squares) + a.epsilon))


def _rmsprop(m: Arithmetic, o: Named[Any], a: AdaptiveAttrs) -> Steps:
    """Step along the gradient over the root of the running mean of its squares, less the square of its mean if `a`."""
    g = _gradient(o, a.weight_decay)
    spread = yield "s", _blend(o["s"], a.alpha, (1 - a.alpha) * (g * g))
    if "a" in o:
        mean = yield "a", _blend(o["a"], a.alpha, (1 - a.alpha) * g)
        rest = spread - mean * mean
        spread = m.where(rest < 0, 0.0, rest)  # rounding may go below 0
    step = g / (m.sqrt(spread) + a.epsilon)
    if "v" in o:
        step = yield "v", _blend(o["v"], a.momentum, step)
    yield "w", o["w"] - o["rate"] * step


ADAGRAD_UPDATE = update_operator(
    "AdagradUpdate",
    "g += decay w; s += g^2; w -= rate g / (sqrt(s) + epsilon)",
    _adagrad,
    AdaptiveAttrs,
    {"w": "PARAMETER", "s": "NOT_NEGATIVE"},
    "refused",
    says=_adaptive_says,
)
RMS_PROP_UPDATE = update_operator(
    "RmsPropUpdate",
    "g += decay w; s = alpha s + (1 - alpha) g^2; w -= rate g / (sqrt(s) + epsilon)",
    _rmsprop,
    AdaptiveAttrs,
    {"w": "PARAMETER", "s": "NOT_NEGATIVE"},
    "refused",
    says=_adaptive_says,
)
RMS_PROP_MOMENTUM_UPDATE = update_operator(
    "RmsPropMomentumUpdate",
    "As RmsPropUpdate, with v = momentum v + g / (sqrt(s) + epsilon); w -= rate v",
    _rmsprop,
    AdaptiveAttrs,
    {"w": "PARAMETER", "s": "NOT_NEGATIVE", "v": "FINITE"},
    "refused",
    says=_adaptive_says,
)
RMS_PROP_CENTERED_UPDATE = update_operator(
    "RmsPropCenteredUpdate",
    "As RmsPropMomentumUpdate, with a = alpha a + (1 - alpha) g, and sqrt(max(s - a^2, 0)) in place of sqrt(s)",
    _rmsprop,
    AdaptiveAttrs,
    {"w": "PARAMETER", "s": "NOT_NEGATIVE", "a": "FINITE", "v": "FINITE"},
    "refused",
    says=_adaptive_says,
)


def _lion(m: Arithmetic, o: Named[Any], a: LionAttrs) -> Steps:
    g = _gradient(o, 0.0)
    step = m.sign(_blend(o["m"], a.beta1, (1 - a.beta1) * g))
    yield "w", o["w"] - o["rate"] * (step + a.weight_decay * o["w"] if a.weight_decay else step)
    yield "m", _blend(o["m"], a.beta2, (1 - a.beta2) * g)  # the step reads the old one


def _lion_velocity(a: LionAttrs) -> Velocity:
    """Return the factors by which sums of gradients, not means of them, enter sign and moment."""
    return Velocity(a.beta2 / (1 - a.beta2), 1 - a.beta2, a.beta1 / (1 - a.beta1))


LION_UPDATE = update_operator(
    "LionUpdate",
    "Lion (Chen et al., 2023, algorithm 2): w -= rate (sign(beta1 m + (1 - beta1) g) + decay w); "
    "m = beta2 m + (1 - beta2) g",
    _lion,
    LionAttrs,
    {"w": "PARAMETER", "m": "FINITE"},
    IntegerStep(LionAttrs, _lion_velocity, "m", _no_decay),
    low_rank=True,
    says=_lion_says,
)


# ---- sums of gradients, and scalars of the state ---------------------------------------------------------------------


def _accumulate(_m: Arithmetic, o: Named[Any], _attrs: Attrs) -> Steps:
    yield "acc", o["acc"] + o["g"]


ACCUMULATE = _register(
    "Accumulate",
    "acc += g; operands (acc, g).",
    Update(_accumulate, lanes=True, low_rank=True),
    Attrs,
    ("acc", "g"),
    Owned({"acc": "SUM"}, "sum"),
    None,
    "gradient_sum",
    "accumulates",
)


def _same_type(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    return (x.type,)


def _adam_tick(arrays: tuple[Array, ...], attrs: AdamAttrs) -> tuple[Array, ...]:
    (share,) = arrays
    rates = np.asarray([1 - attrs.beta1, 1 - attrs.beta2], share.dtype)  # exact in double: no digit is lost near 1
    return (share + rates * (share.dtype.type(1) - share),)


operator(
    "Clear",
    "acc = 0, after its content was applied; operands (acc).",
    _same_type,
    lambda arrays, _attrs: (np.zeros_like(arrays[0]),),
    _UPDATE,
    inputs=("acc",),
    outputs=("acc",),
    owned=Owned({"acc": "SUM"}, "sum"),
    traits=traits("elementwise", "clears"),
)
operator(
    "AdamTick",
    "What Adam's moments are divided by, a step later: p + (1 - beta) (1 - p), that is [1 - beta1^t, 1 - beta2^t].",
    _same_type,
    _adam_tick,
    _UPDATE,
    AdamAttrs,
    inputs=("power",),
    outputs=("power",),
    says=lambda node: (
        "power[i] += (1 - beta[i]) * (1 - power[i]): 1 - beta^t of the next step, beta {:g} and {:g}".format(
            *(getattr(attrs_of(node, AdamAttrs), beta) for beta in ("beta1", "beta2"))
        )
    ),
    owned=Owned({"power": "POWERS"}, "float"),
)
operator(
    "SetState",
    "A scalar of the state becomes a constant: PyTorch's dampening, which begins with the second update.",
    _same_type,
    lambda arrays, attrs: (np.full_like(arrays[0], attrs.value),),
    _UPDATE,
    SetAttrs,
    inputs=("x",),
    outputs=("x",),
    says=lambda node: f"x = {number(attrs_of(node, SetAttrs).value)}, from the second update on",
    owned=Owned({"x": "FINITE"}, "float"),
)


# ---- optimizers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of an optimizer besides its name and learning rate.

    nesterov, dampening: of momentum; alpha, centered: of rmsprop; betas, epsilon: None for the optimizer's own;
    raw_epsilon, decay_after, late: see AdamAttrs. steps_before: updates already made to the state.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    alpha: float = 0.99
    centered: bool = False
    betas: tuple[float, float] | None = None
    epsilon: float | None = None
    raw_epsilon: bool = False
    decay_after: bool = False
    late: bool = False
    steps_before: int = 0


@dataclass(frozen=True)
class SharedState:
    """State that the updates of all parameters read. tick: the operator that advances it once per update, and its node.

    old: updates read its value before that. leads: it precedes the first parameter's own state in a checkpoint.
    """

    name: str
    first: Array
    tick: tuple[str, Attrs, str]
    old: bool = False
    leads: bool = False


@dataclass(frozen=True)
class Rule:
    """Update of a parameter. kept: its state by kind, zeros at first, in the operator's order."""

    op: OpDef
    attrs: Attrs
    kept: tuple[str, ...] = ()
    shared: SharedState | None = None


@dataclass(frozen=True)
class Optimizer:
    """Description of an optimizer.

    rule: (settings, itself, whether gradients are scaled) -> Rule. takes: its options, besides the learning rate and
    the weight decay. momentum (None: that of the option), betas, epsilon: its defaults. meaning: settings that give
    saved state another meaning, so that only builds with the same ones read it.
    """

    rule: Callable[[Settings, Optimizer, bool], Rule]
    takes: tuple[str, ...] = ()
    momentum: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    meaning: tuple[Literal["betas", "late"], ...] = ()

    def betas_of(self, s: Settings) -> tuple[float, float]:
        """Return its decay rates."""
        return self.betas if s.betas is None else s.betas

    def epsilon_of(self, s: Settings) -> float:
        """Return the epsilon that is added to a root."""
        return self.epsilon if s.epsilon is None else s.epsilon

    def meaning_of(self, s: Settings) -> tuple[object, ...]:
        """Return the settings that give its state a meaning."""
        return tuple(self.betas_of(s) if name == "betas" else s.late for name in self.meaning)


def _sgd_rule(s: Settings, _own: Optimizer, scaled: bool) -> Rule:
    return Rule(SGD_UPDATE, SgdAttrs(s.weight_decay, 0.0, scaled))


def _momentum_rule(s: Settings, _own: Optimizer, scaled: bool) -> Rule:
    gain = None
    if s.dampening != 0:  # all of the first gradient enters the velocity, as in PyTorch
        share = 1.0 - s.dampening
        first = np.asarray(share if s.steps_before else 1.0, np.float32)
        gain = SharedState("momentum_gain", first, ("SetState", SetAttrs(share), "gain_set"), old=True, leads=True)
    attrs = SgdAttrs(s.weight_decay, s.momentum, scaled, s.nesterov, gain is not None)
    return Rule(MOMENTUM_UPDATE, attrs, ("velocity",), gain)


def _adam_rule(s: Settings, own: Optimizer, scaled: bool, decoupled: bool = False) -> Rule:
    betas = own.betas_of(s)
    first = np.asarray([1.0 - beta**s.steps_before for beta in betas], np.float32)
    power = SharedState("adam_power", first, ("AdamTick", AdamAttrs(*betas), "adam_tick"), old=s.late)
    placed = (s.raw_epsilon, s.decay_after, s.late)
    attrs = AdamAttrs(*betas, own.epsilon_of(s), s.weight_decay, decoupled, scaled, *placed)
    return Rule(ADAM_UPDATE, attrs, ("moment1", "moment2"), power)


def _adagrad_rule(s: Settings, own: Optimizer, scaled: bool) -> Rule:
    return Rule(ADAGRAD_UPDATE, AdaptiveAttrs(own.epsilon_of(s), s.weight_decay, scaled, s.alpha), ("squares",))


def _rmsprop_rule(s: Settings, own: Optimizer, scaled: bool) -> Rule:
    attrs = AdaptiveAttrs(own.epsilon_of(s), s.weight_decay, scaled, s.alpha, s.momentum)
    if s.centered:
        return Rule(RMS_PROP_CENTERED_UPDATE, attrs, ("squares", "mean", "velocity"))
    if s.momentum:
        return Rule(RMS_PROP_MOMENTUM_UPDATE, attrs, ("squares", "velocity"))
    return Rule(RMS_PROP_UPDATE, attrs, ("squares",))


def _lion_rule(s: Settings, own: Optimizer, scaled: bool) -> Rule:
    return Rule(LION_UPDATE, LionAttrs(*own.betas_of(s), s.weight_decay, scaled), ("moment",))


_ADAM = Optimizer(_adam_rule, ("betas", "epsilon", "epsilon_place"), meaning=("betas", "late"))
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(_sgd_rule),
    "momentum": Optimizer(_momentum_rule, ("momentum", "nesterov", "dampening")),
    "adam": _ADAM,
    "adamw": replace(_ADAM, rule=partial(_adam_rule, decoupled=True)),
    "adagrad": Optimizer(_adagrad_rule, ("epsilon",), epsilon=1e-10),
    "rmsprop": Optimizer(_rmsprop_rule, ("momentum", "alpha", "centered", "epsilon"), momentum=0.0),
    "lion": Optimizer(_lion_rule, ("betas",), betas=(0.9, 0.99)),
}
"""Optimizers by the value of --optimizer. Defaults are those of PyTorch, or of the authors."""
assert tuple(OPTIMIZERS) == get_args(OptimizerName)
OPTIMIZER_OPTIONS = frozenset(option for optimizer in OPTIMIZERS.values() for option in optimizer.takes)
"""Options that are for some optimizers only."""


def optimizers_with(option: str) -> str:
    """Name the optimizers that an option is for, as in "adam, adamw or lion"."""
    *others, last = (name for name, optimizer in OPTIMIZERS.items() if option in optimizer.takes)
    return f"{', '.join(others)} or {last}" if others else last


def defaults_of(option: Literal["betas", "epsilon"]) -> str:
    """Describe an option's default as --help does: "[default: 1e-08; adagrad: 1e-10]"."""

    def default(optimizer: Optimizer) -> str:
        return f"{optimizer.epsilon:g}" if option == "epsilon" else "{:g},{:g}".format(*optimizer.betas)

    found = {name: default(optimizer) for name, optimizer in OPTIMIZERS.items() if option in optimizer.takes}
    usual = next(iter(found.values()))
    others = [f"{name}: {value}" for name, value in found.items() if value != usual]
    return f"[default: {'; '.join((usual, *others))}]"


def optimizers_in_int8() -> str:
    """Name the optimizers that int8 parameters can be trained with, as in "sgd, momentum or lion"."""
    owned = {name: own.rule(Settings(), own, False).op.owned for name, own in OPTIMIZERS.items()}
    *others, last = (name for name, it in owned.items() if it is not None and isinstance(it.int8, IntegerStep))
    return f"{', '.join(others)} or {last}"
