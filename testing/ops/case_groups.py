"""Random cases of normalisation, losses and parameter updates."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, listed, make, normal, positive
from tinytrain_compile.ir.types import NO_ATTRS
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs
from tinytrain_compile.ops.update import AdamAttrs, AdaptiveAttrs, LionAttrs, SetAttrs, SgdAttrs

AXES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 10), 1),
    ((4, 3, 5), 2),
    ((2, 5, 3), 1),
    ((1, 3, 4, 6), 3),
    ((7,), 0),
    ((3, 1), 1),
)


def _softmax(shape: tuple[int, ...], axis: int, rng: Rng) -> np.ndarray:
    power = np.exp(normal(rng, shape))
    return power / power.sum(axis=axis, keepdims=True)


def _axis(op: str) -> None:
    @generator(op, len(AXES))
    def _case(rng: Rng, index: int) -> Case:
        shape, axis = AXES[index]
        return make(op, (normal(rng, shape) * 2.0,), AxisAttrs(axis))


_axis("Softmax")
_axis("LogSoftmax")


@generator("SoftmaxGrad", len(AXES))
def _softmax_grad(rng: Rng, index: int) -> Case:
    shape, axis = AXES[index]
    return make("SoftmaxGrad", (normal(rng, shape), _softmax(shape, axis, rng)), AxisAttrs(axis))


@generator("LogSoftmaxGrad", len(AXES))
def _log_softmax_grad(rng: Rng, index: int) -> Case:
    shape, axis = AXES[index]
    return make("LogSoftmaxGrad", (normal(rng, shape), np.log(_softmax(shape, axis, rng))), AxisAttrs(axis))


GROUPS = (
    ((3, 8), NormalizeAttrs((1,), 1e-5)),
    ((1, 5, 4, 3), NormalizeAttrs((1, 2), 1e-5)),
    ((2, 3, 6), NormalizeAttrs((2,), 1e-2)),
    ((1, 4, 6), NormalizeAttrs((1, 2), 1e-3)),
    ((1, 3, 3, 7), NormalizeAttrs((3,), 1e-5)),
    ((2, 3, 5, 4), NormalizeAttrs((0, 2, 3), 1e-5)),
)


@generator("Normalize", len(GROUPS))
def _normalize(rng: Rng, index: int) -> Case:
    shape, attrs = GROUPS[index]
    return make("Normalize", (normal(rng, shape) * 2.0 + 0.5,), attrs)


@generator("NormalizeGrad", len(GROUPS))
def _normalize_grad(rng: Rng, index: int) -> Case:
    shape, attrs = GROUPS[index]
    kept = tuple(1 if axis in attrs.axes else dim for axis, dim in enumerate(shape))
    return make("NormalizeGrad", (normal(rng, shape), normal(rng, shape), positive(rng, kept)), attrs)


NLLS = (
    ((1, 10), NllAttrs(1), False),
    ((6, 4), NllAttrs(1, "mean", 2), False),
    ((3, 5, 4), NllAttrs(1, "sum", None), True),
    ((2, 3, 2, 3), NllAttrs(1, "mean", -1), True),
    ((5, 3), NllAttrs(1, "none", 0), True),
    ((2, 4, 3), NllAttrs(2, "mean", None), True),
    ((3, 2, 2), NllAttrs(1, "none", None), False),
    ((4, 3), NllAttrs(1, "sum", 1), False),
)
"""(shape of the log probabilities, attributes, class weights)."""


def _labels(rng: Rng, shape: tuple[int, ...], attrs: NllAttrs) -> np.ndarray:
    dims = (*shape[: attrs.axis], *shape[attrs.axis + 1 :])
    labels = rng.integers(0, shape[attrs.axis], dims).astype(np.int32)
    if attrs.ignore_index is not None and labels.size > 2:
        labels.reshape(-1)[1] = attrs.ignore_index
        labels.reshape(-1)[0] = (attrs.ignore_index + 1) % shape[attrs.axis]  # something must count
    return labels


@generator("NegativeLogLikelihood", len(NLLS))
def _nll(rng: Rng, index: int) -> Case:
    shape, attrs, weighted = NLLS[index]
    logp = np.log(_softmax(shape, attrs.axis, rng))
    weights = [positive(rng, (shape[attrs.axis],))] if weighted else []
    return make("NegativeLogLikelihood", (logp, _labels(rng, shape, attrs), *weights), attrs, (0,))


@generator("NegativeLogLikelihoodGrad", len(NLLS))
def _nll_grad(rng: Rng, index: int) -> Case:
    shape, attrs, weighted = NLLS[index]
    labels = _labels(rng, shape, attrs)
    dloss = normal(rng, labels.shape if attrs.reduction == "none" else ())
    weights = [positive(rng, (shape[attrs.axis],))] if weighted else []
    return make("NegativeLogLikelihoodGrad", (dloss, labels, *weights), NllGradAttrs(attrs, shape))


PAIRS: tuple[tuple[int, ...], ...] = ((1, 5), (3, 4), (7,), (1, 2, 3, 2), (1, 1))


@generator("MeanSquaredError", len(PAIRS))
def _mse(rng: Rng, index: int) -> Case:
    return make("MeanSquaredError", (normal(rng, PAIRS[index]), normal(rng, PAIRS[index])), NO_ATTRS, (0,))


@generator("MeanSquaredErrorGrad", len(PAIRS))
def _mse_grad(rng: Rng, index: int) -> Case:
    shape = PAIRS[index]
    return make("MeanSquaredErrorGrad", (normal(rng, ()), normal(rng, shape), normal(rng, shape)))


def _targets(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.random(shape) < 0.5).astype(np.float64)


@generator("SigmoidCrossEntropy", len(PAIRS))
def _bce(rng: Rng, index: int) -> Case:
    shape = PAIRS[index]
    return make("SigmoidCrossEntropy", (normal(rng, shape) * 4.0, _targets(rng, shape)), NO_ATTRS, (0,))


@generator("SigmoidCrossEntropyGrad", len(PAIRS))
def _bce_grad(rng: Rng, index: int) -> Case:
    shape = PAIRS[index]
    return make("SigmoidCrossEntropyGrad", (normal(rng, ()), normal(rng, shape) * 4.0, _targets(rng, shape)))


# ---- updates --------------------------------------------------------------------------------------------------------

WEIGHTS: tuple[tuple[int, ...], ...] = ((4, 3, 3, 2), (5,), (3, 7), (1,), (2, 5))
RATE, SCALE = np.asarray(0.1), np.asarray(0.25)

SGDS = (*(SgdAttrs(decay, 0.9, scaled) for decay in (0.0, 0.01) for scaled in (False, True)), SgdAttrs(0.02))
MOMENTA = (
    *SGDS,
    SgdAttrs(0.01, 0.9, True, nesterov=True),
    SgdAttrs(0.0, 0.9, damped=True),
    SgdAttrs(0, 0.9, True, damped=True),
)
ADAMS = (
    *(
        AdamAttrs(weight_decay=decay, decoupled=decoupled, scaled=scaled)
        for decay in (0.0, 0.02)
        for decoupled in (False, True)
        for scaled in (False, True)
    ),
    AdamAttrs(0.0, 0.9, 1e-3),
    AdamAttrs(0.5, 0.0, weight_decay=0.1),
    AdamAttrs(weight_decay=0.1, decoupled=True, raw=True, after=True),
    AdamAttrs(raw=True, late=True),
)
ADAPTIVE = (
    AdaptiveAttrs(1e-3),
    AdaptiveAttrs(1e-2, 0.1, True),
    AdaptiveAttrs(1e-3, 0.1, False, 0.9, 0.5),
    AdaptiveAttrs(1e-3, 0.0, True, 0.0, 0.9),
    AdaptiveAttrs(1e-8, 0.01, True, 0.99, 0.9),
)
LIONS = (
    LionAttrs(),
    LionAttrs(weight_decay=0.1, scaled=True),
    LionAttrs(0.0, 0.5),
    LionAttrs(0.5, 0.0, 0.02),
    LionAttrs(0.95, 0.98, scaled=True),
)
TICKS = (AdamAttrs(), AdamAttrs(0.8, 0.95), AdamAttrs(0.0, 0.9), AdamAttrs(0.5, 0.5), AdamAttrs(0.99, 0.9999))


@generator("SgdUpdate", len(SGDS))
def _sgd(rng: Rng, index: int) -> Case:
    shape, attrs = listed(rng, WEIGHTS, index, 1), SGDS[index % len(SGDS)]
    return make("SgdUpdate", (normal(rng, shape), normal(rng, shape), RATE, *([SCALE] if attrs.scaled else [])), attrs)


@generator("MomentumUpdate", len(MOMENTA))
def _momentum(rng: Rng, index: int) -> Case:
    shape, attrs = listed(rng, WEIGHTS, index, 2), MOMENTA[index % len(MOMENTA)]
    tensors = (normal(rng, shape), normal(rng, shape), normal(rng, shape))
    gain = [np.asarray(0.3)] if attrs.damped else []
    return make("MomentumUpdate", (*tensors, RATE, *gain, *([SCALE] if attrs.scaled else [])), attrs)


@generator("AdamUpdate", len(ADAMS))
def _adam(rng: Rng, index: int) -> Case:
    shape, attrs = listed(rng, WEIGHTS, index, 3), ADAMS[index % len(ADAMS)]
    tensors = (normal(rng, shape), normal(rng, shape), positive(rng, shape), normal(rng, shape))
    powers = np.zeros(2) if attrs.late else 1 - np.asarray([0.9, 0.999]) ** (1 + index)
    return make("AdamUpdate", (*tensors, RATE, powers, *([SCALE] if attrs.scaled else [])), attrs)


def _adaptive(op: str, velocities: int) -> None:
    @generator(op, len(ADAPTIVE))
    def _case(rng: Rng, index: int) -> Case:
        shape, attrs = listed(rng, WEIGHTS, index, 1), ADAPTIVE[index % len(ADAPTIVE)]
        tensors = (normal(rng, shape), positive(rng, shape), *(normal(rng, shape) for _ in range(velocities + 1)))
        return make(op, (*tensors, RATE, *([SCALE] if attrs.scaled else [])), attrs)


_adaptive("AdagradUpdate", 0)
_adaptive("RmsPropUpdate", 0)
_adaptive("RmsPropMomentumUpdate", 1)


@generator("RmsPropCenteredUpdate", len(ADAPTIVE))
def _centered(rng: Rng, index: int) -> Case:
    shape, attrs = listed(rng, WEIGHTS, index, 1), ADAPTIVE[index % len(ADAPTIVE)]
    mean, velocity, gradient = (normal(rng, shape) for _ in range(3))
    squares = positive(rng, shape) + mean * mean  # a spread above 0, as running means have
    tensors = (normal(rng, shape), squares, mean, velocity, gradient)
    return make("RmsPropCenteredUpdate", (*tensors, RATE, *([SCALE] if attrs.scaled else [])), attrs)


@generator("LionUpdate", len(LIONS))
def _lion(rng: Rng, index: int) -> Case:
    shape, attrs = listed(rng, WEIGHTS, index, 1), LIONS[index % len(LIONS)]
    tensors = (normal(rng, shape), normal(rng, shape), normal(rng, shape))
    return make("LionUpdate", (*tensors, RATE, *([SCALE] if attrs.scaled else [])), attrs)


@generator("SetState", 5)
def _set(rng: Rng, index: int) -> Case:
    return make("SetState", (normal(rng, ()),), SetAttrs(0.25 * index))


@generator("AdamTick", len(TICKS))
def _tick(rng: Rng, index: int) -> Case:
    return make("AdamTick", (rng.uniform(0.1, 1.0, 2),), TICKS[index])


@generator("Accumulate")
def _accumulate(rng: Rng, index: int) -> Case:
    return make("Accumulate", (normal(rng, WEIGHTS[index]), normal(rng, WEIGHTS[index])))


@generator("Clear")
def _clear(rng: Rng, index: int) -> Case:
    return make("Clear", (normal(rng, WEIGHTS[index]),))
