"""The optimizers as their authors write them: which gradient a change of the state implies, and the state it should be.

Sources: torch.optim (documentation of PyTorch 2.13: SGD, Adam, AdamW, Adagrad, RMSprop); ai.onnx.preview.training
(Adam, Momentum, Adagrad) and ONNX Runtime's AdamW for the variants that files ask for; Lion: Chen et al. 2023, arXiv
2302.06675, algorithm 2. All in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.update import OptimizerName
from tinytrain_compile.training import TrainingOptions

Tensors = Mapping[str, Array]
"""A parameter ("w") and its optimizer state by kind ("velocity", "moment1" ...), in float64."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("velocity",),
    "adam": ("moment1", "moment2"),
    "adamw": ("moment1", "moment2"),
    "adagrad": ("squares",),
    "rmsprop": ("squares", "mean", "velocity"),
    "lion": ("moment",),
}
"""State of each optimizer; rmsprop has the last two only if it is centred or has a momentum."""
assert tuple(KINDS) == get_args(OptimizerName), "a new optimizer is judged by formulas of its own, here"


@dataclass(frozen=True)
class Step:
    """One update: rate, and how many updates came before."""

    rate: float
    before: int


def implied(o: TrainingOptions, step: Step, old: Tensors, new: Tensors) -> Array:
    """Return the gradient of the loss that this change of a parameter and its state implies."""
    return _OF[o.optimizer](o, step, old, new)


def expected(o: TrainingOptions, step: Step, old: Tensors, gradient: Array) -> dict[str, Array]:
    """Return the parameter and its state after the update by a gradient."""
    return _AFTER[o.optimizer](o, step, old, gradient)


def _decayed(o: TrainingOptions, old: Tensors, gradient: Array) -> Array:
    """Return the gradient with that of the L2 penalty; AdamW's decay acts on the weight instead."""
    return gradient if o.optimizer == "adamw" else gradient + o.weight_decay * old["w"]


def _bare(o: TrainingOptions, old: Tensors, total: Array) -> Array:
    return total - (_decayed(o, old, total) - total)


def _gain(o: TrainingOptions, step: Step) -> float:
    """Return the share of the gradient that enters the velocity: PyTorch's SGD takes all of the first one."""
    return 1.0 if step.before == 0 else 1.0 - o.dampening


def _of_sgd(o: TrainingOptions, step: Step, old: Tensors, new: Tensors) -> Array:
    return _bare(o, old, (old["w"] - new["w"]) / step.rate)


def _after_sgd(o: TrainingOptions, step: Step, old: Tensors, gradient: Array) -> dict[str, Array]:
    return {"w": old["w"] - step.rate * _decayed(o, old, gradient)}


def _of_momentum(o: TrainingOptions, step: Step, old: Tensors, new: Tensors) -> Array:
    return _bare(o, old, (new["velocity"] - o.momentum * old["velocity"]) / _gain(o, step))


def _after_momentum(o: TrainingOptions, step: Step, old: Tensors, gradient: Array) -> dict[str, Array]:
    total = _decayed(o, old, gradient)
    velocity = o.momentum * old["velocity"] + _gain(o, step) * total
    move = total + o.momentum * velocity if o.nesterov else velocity
    return {"w": old["w"] - step.rate * move, "velocity": velocity}


def _betas(o: TrainingOptions) -> tuple[float, float]:
    if o.betas is not None:
        return o.betas
    return (0.9, 0.99) if o.optimizer == "lion" else (0.9, 0.999)


def _of_adam(o: TrainingOptions, _step: Step, old: Tensors, new: Tensors) -> Array:
    beta, _ = _betas(o)
    return _bare(o, old, (new["moment1"] - beta * old["moment1"]) / (1 - beta))


def _after_adam(o: TrainingOptions, step: Step, old: Tensors, gradient: Array) -> dict[str, Array]:
    (b1, b2), w, total = _betas(o), old["w"], _decayed(o, old, gradient)
    first = b1 * old["moment1"] + (1 - b1) * total
    second = b2 * old["moment2"] + (1 - b2) * total**2
    count = step.before if o.late else step.before + 1  # ONNX's Adam corrects by T, the updates before
    correct1, correct2 = (1 - b1**count, 1 - b2**count) if count else (1.0, 1.0)
    epsilon = 1e-8 if o.epsilon is None else o.epsilon
    root = np.sqrt(second)
    rate = step.rate * (np.sqrt(correct2) if o.raw_epsilon else 1.0) / correct1
    move = rate * first / (root + epsilon if o.raw_epsilon else root / np.sqrt(correct2) + epsilon)
    decay = step.rate * o.weight_decay if o.optimizer == "adamw" else 0.0
    moved = (w - move) * (1 - decay) if o.decay_after else w * (1 - decay) - move
    return {"w": moved, "moment1": first, "moment2": second}


def _signed(total: Array, old: Tensors, new: Tensors) -> Array:
    """Return the root of a square with the sign that the parameter's change shows."""
    return np.sqrt(np.maximum(total, 0)) * -np.sign(new["w"] - old["w"])


def _of_adagrad(o: TrainingOptions, _step: Step, old: Tensors, new: Tensors) -> Array:
    return _bare(o, old, _signed(new["squares"] - old["squares"], old, new))


def _after_adagrad(o: TrainingOptions, step: Step, old: Tensors, gradient: Array) -> dict[str, Array]:
    total = _decayed(o, old, gradient)
    squares = old["squares"] + total**2
    epsilon = 1e-10 if o.epsilon is None else o.epsilon
    return {"w": old["w"] - step.rate * total / (np.sqrt(squares) + epsilon), "squares": squares}


def _of_rmsprop(o: TrainingOptions, _step: Step, old: Tensors, new: Tensors) -> Array:
    if "mean" in new:
        return _bare(o, old, (new["mean"] - o.alpha * old["mean"]) / (1 - o.alpha))
    square = (new["squares"] - o.alpha * old["squares"]) / (1 - o.alpha)
    if "velocity" in new:  # the parameter follows the velocity, this gradient what is new in it
        moved = {"w": -(new["velocity"] - o.momentum * old["velocity"])}
        return _bare(o, old, _signed(square, {"w": np.zeros_like(square)}, moved))
    return _bare(o, old, _signed(square, old, new))


def _after_rmsprop(o: TrainingOptions, step: Step, old: Tensors, gradient: Array) -> dict[str, Array]:
    total, made = _decayed(o, old, gradient), dict[str, Array]()
    made["squares"] = o.alpha * old["squares"] + (1 - o.alpha) * total**2
    spread = made["squares"]
    if "mean" in old:
        made["mean"] = o.alpha * old["mean"] + (1 - o.alpha) * total
        spread = spread - made["mean"] ** 2
    epsilon = 1e-8 if o.epsilon is None else o.epsilon
    move = total / (np.sqrt(np.maximum(spread, 0)) + epsilon)
    if "velocity" in old:
        move = made["velocity"] = o.momentum * old["velocity"] + move
    made["w"] = old["w"] - step.rate * move
    return made


def _of_lion(o: TrainingOptions, _step: Step, old: Tensors, new: Tensors) -> Array:
    _, beta = _betas(o)
    return (new["moment"] - beta * old["moment"]) / (1 - beta)


def _after_lion(o: TrainingOptions, step: Step, old: Tensors, gradient: Array) -> dict[str, Array]:
    (b1, b2), w, moment = _betas(o), old["w"], old["moment"]
    direction = np.sign(b1 * moment + (1 - b1) * gradient)
    return {"w": w - step.rate * (direction + o.weight_decay * w), "moment": b2 * moment + (1 - b2) * gradient}


_Of = Callable[[TrainingOptions, Step, Tensors, Tensors], Array]
_After = Callable[[TrainingOptions, Step, Tensors, Array], dict[str, Array]]
_OF: Mapping[str, _Of] = {
    "sgd": _of_sgd,
    "momentum": _of_momentum,
    "adam": _of_adam,
    "adamw": _of_adam,
    "adagrad": _of_adagrad,
    "rmsprop": _of_rmsprop,
    "lion": _of_lion,
}
_AFTER: Mapping[str, _After] = {
    "sgd": _after_sgd,
    "momentum": _after_momentum,
    "adam": _after_adam,
    "adamw": _after_adam,
    "adagrad": _after_adagrad,
    "rmsprop": _after_rmsprop,
    "lion": _after_lion,
}
