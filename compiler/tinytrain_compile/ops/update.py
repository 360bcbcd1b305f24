"""Optimizer steps and gradient accumulation: nodes that overwrite their first operands (alias)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops.base import ELEMENTWISE, NonDifferentiable, OpDef, register
from tinytrain_compile.ops.names import Named, named
from tinytrain_compile.ops.owned import Owned

_UPDATE = NonDifferentiable("updates are not part of the differentiated function")


@dataclass(frozen=True)
class SgdAttrs(Attrs):
    """weight_decay: L2 penalty added to the gradient; momentum: of the velocity (unused by plain SGD);
    scaled: whether a last operand (a scalar) multiplies the gradient, for accumulated gradients.
    nesterov: the step looks ahead along the velocity; damped: whether an operand says what share of the gradient enters
    the velocity (1 at first, as in PyTorch)."""

    weight_decay: float = 0.0
    momentum: float = 0.0
    scaled: bool = False
    nesterov: bool = False
    damped: bool = False


@dataclass(frozen=True)
class AdamAttrs(Attrs):
    """Decay rates, epsilon and weight decay; decoupled: AdamW (decay acts on the weight, not on the gradient).

    raw: epsilon is added to sqrt(v) as it is, before the correction; after: the decay acts on the weight after its
    step; late: the corrections are those of the step before, none at the first (ONNX's Adam from T = 0).
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
    """Of Adagrad and RMSprop. alpha: share of the mean of squares that is kept; momentum: of the velocity, where there
    is one; others as in SgdAttrs."""

    epsilon: float
    weight_decay: float = 0.0
    scaled: bool = False
    alpha: float = 0.99
    momentum: float = 0.0


@dataclass(frozen=True)
class SetAttrs(Attrs):
    """value: what a scalar of the state becomes."""

    value: float


def _check_same(*first: Value) -> None:
    if len({value.shape for value in first}) > 1:
        raise ValueError(f"shapes differ: {[value.shape for value in first]}")


def _same_type(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    return (x.type,)


def _adam_tick(arrays: tuple[Array, ...], attrs: AdamAttrs) -> tuple[Array, ...]:
    (share,) = arrays
    rates = np.asarray([1 - attrs.beta1, 1 - attrs.beta2], share.dtype)  # exact in double: no digit is lost near 1
    return (share + rates * (share.dtype.type(1) - share),)


def _gradient_of(w: Array, g: Array, scale: Array | None, decay: float) -> Array:
    g = g if scale is None else g * scale
    return g + w.dtype.type(decay) * w if decay else g


def _blend(old: Array, share: float, new: Array) -> Array:
    return old.dtype.type(share) * old + new if share else new


def _present(attrs: SgdAttrs | AdamAttrs | AdaptiveAttrs) -> tuple[str, ...]:
    return ("scale",) if attrs.scaled else ()


def _present_damped(attrs: SgdAttrs) -> tuple[str, ...]:
    return (*(("gain",) if attrs.damped else ()), *_present(attrs))


def _sgd_infer(inputs: tuple[Value, ...], _attrs: SgdAttrs) -> tuple[TensorType, ...]:
    w, g, *_ = inputs
    _check_same(w, g)
    return (w.type,)


def _sgd(arrays: tuple[Array, ...], attrs: SgdAttrs) -> tuple[Array, ...]:
    o = named("SgdUpdate", arrays, attrs)
    return (o["w"] - o["rate"] * _gradient_of(o["w"], o["g"], o.get("scale"), attrs.weight_decay),)


SGD_UPDATE = register(
    OpDef(
        "SgdUpdate",
        "w -= rate (g + decay w); operands (w, g, rate, [scale]).",
        _sgd_infer,
        _sgd,
        _UPDATE,
        SgdAttrs,
        inputs=("w", "g", "rate", "scale?"),
        outputs=("w",),
        owned=Owned({"w": "PARAMETER"}, "sgd"),
        present=_present,
        traits=ELEMENTWISE,
    )
)


def _momentum_infer(inputs: tuple[Value, ...], _attrs: SgdAttrs) -> tuple[TensorType, ...]:
    w, v, g, *_ = inputs
    _check_same(w, v, g)
    return (w.type, v.type)


def _momentum(arrays: tuple[Array, ...], attrs: SgdAttrs) -> tuple[Array, ...]:
    o = named("MomentumUpdate", arrays, attrs)
    step = _gradient_of(o["w"], o["g"], o.get("scale"), attrs.weight_decay)
    gain = o.get("gain")
    velocity = _blend(o["v"], attrs.momentum, step if gain is None else gain * step)
    move = step + o["w"].dtype.type(attrs.momentum) * velocity if attrs.nesterov else velocity
    return (o["w"] - o["rate"] * move, velocity)


MOMENTUM_UPDATE = register(
    OpDef(
        "MomentumUpdate",
        "v = momentum v + gain (g + decay w); w -= rate v, or by Nesterov rate (g + decay w + momentum v); operands "
        "(w, v, g, rate, [gain], [scale]).",
        _momentum_infer,
        _momentum,
        _UPDATE,
        SgdAttrs,
        inputs=("w", "v", "g", "rate", "gain?", "scale?"),
        outputs=("w", "v"),
        owned=Owned({"w": "PARAMETER", "v": "FINITE"}, "sgd"),
        present=_present_damped,
        traits=ELEMENTWISE,
    )
)


def _adam_infer(inputs: tuple[Value, ...], _attrs: AdamAttrs) -> tuple[TensorType, ...]:
    w, m, v, g, *_ = inputs
    _check_same(w, m, v, g)
    return (w.type, m.type, v.type)


def _adam(arrays: tuple[Array, ...], attrs: AdamAttrs) -> tuple[Array, ...]:
    o = named("AdamUpdate", arrays, attrs)
    w, m, v, g, rate, power = o.several("w", "m", "v", "g", "rate", "power")
    one = w.dtype.type
    decay = 0.0 if attrs.decoupled else attrs.weight_decay
    g = _gradient_of(w, g, o.get("scale"), decay)
    m = _blend(m, attrs.beta1, one(1 - attrs.beta1) * g)
    v = _blend(v, attrs.beta2, one(1 - attrs.beta2) * (g * g))
    first, second = np.where(power == 0, one(1), power) if attrs.late else power
    if attrs.raw:
        step = (m / first) * np.sqrt(second) / (np.sqrt(v) + one(attrs.epsilon))
    else:
        step = (m / first) / (np.sqrt(v / second) + one(attrs.epsilon))
    if attrs.decoupled and attrs.weight_decay and not attrs.after:
        step = step + one(attrs.weight_decay) * w
    w = w - rate * step
    if attrs.decoupled and attrs.weight_decay and attrs.after:
        w = w - rate * (one(attrs.weight_decay) * w)
    return (w, m, v)


ADAM_UPDATE = register(
    OpDef(
        "AdamUpdate",
        "Adam (Kingma and Ba, 2015, algorithm 1) or AdamW; operands (w, m, v, g, rate, "
        "[1 - beta1^t, 1 - beta2^t], [scale]).",
        _adam_infer,
        _adam,
        _UPDATE,
        AdamAttrs,
        inputs=("w", "m", "v", "g", "rate", "power", "scale?"),
        outputs=("w", "m", "v"),
        owned=Owned({"w": "PARAMETER", "m": "FINITE", "v": "NOT_NEGATIVE"}, "refused"),
        present=_present,
    )
)
register(
    OpDef(
        "AdamTick",
        "What Adam's moments are divided by, a step later: p + (1 - beta) (1 - p), that is [1 - beta1^t, 1 - beta2^t].",
        _same_type,
        _adam_tick,
        _UPDATE,
        AdamAttrs,
        inputs=("power",),
        outputs=("power",),
        owned=Owned({"power": "POWERS"}, "float"),
    )
)


def _adagrad(arrays: tuple[Array, ...], attrs: AdaptiveAttrs) -> tuple[Array, ...]:
    o = named("AdagradUpdate", arrays, attrs)
    g = _gradient_of(o["w"], o["g"], o.get("scale"), attrs.weight_decay)
    s = o["s"] + g * g
    return (o["w"] - o["rate"] * (g / (np.sqrt(s) + s.dtype.type(attrs.epsilon))), s)


def _rmsprop(arrays: tuple[Array, ...], attrs: AdaptiveAttrs) -> tuple[Array, ...]:
    return _root_mean(named("RmsPropUpdate", arrays, attrs), attrs)


def _rmsprop_momentum(arrays: tuple[Array, ...], attrs: AdaptiveAttrs) -> tuple[Array, ...]:
    return _root_mean(named("RmsPropMomentumUpdate", arrays, attrs), attrs)


def _rmsprop_centered(arrays: tuple[Array, ...], attrs: AdaptiveAttrs) -> tuple[Array, ...]:
    return _root_mean(named("RmsPropCenteredUpdate", arrays, attrs), attrs)


def _root_mean(o: Named[Array], attrs: AdaptiveAttrs) -> tuple[Array, ...]:
    """One step along the gradient over the root of the running mean of its squares (less the square of its mean)."""
    w, s, one = o["w"], o["s"], o["w"].dtype.type
    g = _gradient_of(w, o["g"], o.get("scale"), attrs.weight_decay)
    s = _blend(s, attrs.alpha, one(1 - attrs.alpha) * (g * g))
    mean = _blend(o["a"], attrs.alpha, one(1 - attrs.alpha) * g) if "a" in o else None
    rest = s if mean is None else s - mean * mean
    spread = s if mean is None else np.where(rest < 0, one(0), rest)  # rounding may go below 0
    step = g / (np.sqrt(spread) + one(attrs.epsilon))
    velocity = _blend(o["v"], attrs.momentum, step) if "v" in o else step
    kept = (*(() if mean is None else (mean,)), *((velocity,) if "v" in o else ()))
    return (w - o["rate"] * velocity, s, *kept)


def _centered_infer(inputs: tuple[Value, ...], _attrs: AdaptiveAttrs) -> tuple[TensorType, ...]:
    w, s, a, v, g, *_ = inputs
    _check_same(w, s, a, v, g)
    return (w.type, s.type, a.type, v.type)


def _set(arrays: tuple[Array, ...], attrs: SetAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (np.full_like(x, attrs.value),)


ADAGRAD_UPDATE = register(
    OpDef(
        "AdagradUpdate",
        "g += decay w; s += g^2; w -= rate g / (sqrt(s) + epsilon); operands (w, s, g, rate, [scale]).",
        _momentum_infer,
        _adagrad,
        _UPDATE,
        AdaptiveAttrs,
        inputs=("w", "s", "g", "rate", "scale?"),
        outputs=("w", "s"),
        owned=Owned({"w": "PARAMETER", "s": "NOT_NEGATIVE"}, "refused"),
        present=_present,
    )
)
RMS_PROP_UPDATE = register(
    OpDef(
        "RmsPropUpdate",
        "g += decay w; s = alpha s + (1 - alpha) g^2; w -= rate g / (sqrt(s) + epsilon); operands (w, s, g, rate, "
        "[scale]).",
        _momentum_infer,
        _rmsprop,
        _UPDATE,
        AdaptiveAttrs,
        inputs=("w", "s", "g", "rate", "scale?"),
        outputs=("w", "s"),
        owned=Owned({"w": "PARAMETER", "s": "NOT_NEGATIVE"}, "refused"),
        present=_present,
    )
)
RMS_PROP_MOMENTUM_UPDATE = register(
    OpDef(
        "RmsPropMomentumUpdate",
        "As RmsPropUpdate, with v = momentum v + g / (sqrt(s) + epsilon); w -= rate v; operands (w, s, v, g, rate, "
        "[scale]).",
        _adam_infer,
        _rmsprop_momentum,
        _UPDATE,
        AdaptiveAttrs,
        inputs=("w", "s", "v", "g", "rate", "scale?"),
        outputs=("w", "s", "v"),
        owned=Owned({"w": "PARAMETER", "s": "NOT_NEGATIVE", "v": "FINITE"}, "refused"),
        present=_present,
    )
)
RMS_PROP_CENTERED_UPDATE = register(
    OpDef(
        "RmsPropCenteredUpdate",
        "As RmsPropMomentumUpdate, with a = alpha a + (1 - alpha) g, and sqrt(max(s - a^2, 0)) in place of sqrt(s); "
        "operands (w, s, a, v, g, rate, [scale]).",
        _centered_infer,
        _rmsprop_centered,
        _UPDATE,
        AdaptiveAttrs,
        inputs=("w", "s", "a", "v", "g", "rate", "scale?"),
        outputs=("w", "s", "a", "v"),
        owned=Owned({"w": "PARAMETER", "s": "NOT_NEGATIVE", "a": "FINITE", "v": "FINITE"}, "refused"),
        present=_present,
    )
)
register(
    OpDef(
        "SetState",
        "A scalar of the state becomes a constant: PyTorch's dampening, which begins with the second update.",
        _same_type,
        _set,
        _UPDATE,
        SetAttrs,
        inputs=("x",),
        outputs=("x",),
        owned=Owned({"x": "FINITE"}, "float"),
    )
)


def _accumulate_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    acc, g = inputs
    _check_same(acc, g)
    return (acc.type,)


def _clear(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    (acc,) = arrays
    return (np.zeros_like(acc),)


def _accumulate(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    acc, g = arrays
    return (acc + g,)


ACCUMULATE = register(
    OpDef(
        "Accumulate",
        "acc += g; operands (acc, g).",
        _accumulate_infer,
        _accumulate,
        _UPDATE,
        inputs=("acc", "g"),
        outputs=("acc",),
        owned=Owned({"acc": "SUM"}, "sum"),
        traits=ELEMENTWISE,
    )
)
register(
    OpDef(
        "Clear",
        "acc = 0, after its content was applied; operands (acc).",
        _same_type,
        _clear,
        _UPDATE,
        inputs=("acc",),
        outputs=("acc",),
        owned=Owned({"acc": "SUM"}, "sum"),
        traits=ELEMENTWISE,
    )
)
