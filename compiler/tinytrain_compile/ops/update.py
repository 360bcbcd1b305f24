"""Optimizer steps and gradient accumulation: nodes that overwrite their first operands (alias)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops.base import ELEMENTWISE, NonDifferentiable, OpDef, register
from tinytrain_compile.ops.names import named

_UPDATE = NonDifferentiable("updates are not part of the differentiated function")


@dataclass(frozen=True)
class SgdAttrs(Attrs):
    """weight_decay: L2 penalty added to the gradient; momentum: of the velocity (unused by plain SGD);
    scaled: whether a last operand (a scalar) multiplies the gradient, for accumulated gradients."""

    weight_decay: float = 0.0
    momentum: float = 0.0
    scaled: bool = False


@dataclass(frozen=True)
class AdamAttrs(Attrs):
    """Decay rates, epsilon and weight decay; decoupled: AdamW (decay acts on the weight, not on the gradient)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    scaled: bool = False


def _check_same(*first: Value) -> None:
    if len({value.shape for value in first}) > 1:
        raise ValueError(f"shapes differ: {[value.shape for value in first]}")


def _same_type(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    return (x.type,)


def _adam_tick(arrays: tuple[Array, ...], attrs: AdamAttrs) -> tuple[Array, ...]:
    (power,) = arrays
    return (power * np.asarray([attrs.beta1, attrs.beta2], power.dtype),)


def _gradient_of(w: Array, g: Array, scale: Array | None, decay: float) -> Array:
    g = g if scale is None else g * scale
    return g + w.dtype.type(decay) * w if decay else g


def _blend(old: Array, share: float, new: Array) -> Array:
    return old.dtype.type(share) * old + new if share else new


def _present(attrs: SgdAttrs | AdamAttrs) -> tuple[str, ...]:
    return ("scale",) if attrs.scaled else ()


def _sgd_infer(inputs: tuple[Value, ...], _attrs: SgdAttrs) -> tuple[TensorType, ...]:
    w, g, *_ = inputs
    _check_same(w, g)
    return (w.type,)


def _sgd(arrays: tuple[Array, ...], attrs: SgdAttrs) -> tuple[Array, ...]:
    o = named("SgdUpdate", arrays, attrs)
    return (o["w"] - o["rate"] * _gradient_of(o["w"], o["g"], o.get("scale"), attrs.weight_decay),)


register(
    OpDef(
        "SgdUpdate",
        "w -= rate (g + decay w); operands (w, g, rate, [scale]).",
        _sgd_infer,
        _sgd,
        _UPDATE,
        SgdAttrs,
        inputs=("w", "g", "rate", "scale?"),
        outputs=("w",),
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
    velocity = _blend(o["v"], attrs.momentum, step)
    return (o["w"] - o["rate"] * velocity, velocity)


register(
    OpDef(
        "MomentumUpdate",
        "v = momentum v + g + decay w; w -= rate v; operands (w, v, g, rate, [scale]).",
        _momentum_infer,
        _momentum,
        _UPDATE,
        SgdAttrs,
        inputs=("w", "v", "g", "rate", "scale?"),
        outputs=("w", "v"),
        present=_present,
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
    step = (m / (1 - power[0])) / (np.sqrt(v / (1 - power[1])) + one(attrs.epsilon))
    if attrs.decoupled and attrs.weight_decay:
        step = step + one(attrs.weight_decay) * w
    return (w - rate * step, m, v)


register(
    OpDef(
        "AdamUpdate",
        "Adam (Kingma and Ba, 2015, algorithm 1) or AdamW; operands (w, m, v, g, rate, [beta1^t, beta2^t], [scale]).",
        _adam_infer,
        _adam,
        _UPDATE,
        AdamAttrs,
        inputs=("w", "m", "v", "g", "rate", "power", "scale?"),
        outputs=("w", "m", "v"),
        present=_present,
    )
)
register(
    OpDef(
        "AdamTick",
        "Next powers of Adam's decay rates: [beta1^t, beta2^t] times [beta1, beta2].",
        _same_type,
        _adam_tick,
        _UPDATE,
        AdamAttrs,
        inputs=("power",),
        outputs=("power",),
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


register(
    OpDef(
        "Accumulate",
        "acc += g; operands (acc, g).",
        _accumulate_infer,
        _accumulate,
        _UPDATE,
        inputs=("acc", "g"),
        outputs=("acc",),
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
        traits=ELEMENTWISE,
    )
)
