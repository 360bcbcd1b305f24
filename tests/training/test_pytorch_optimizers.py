"""Optimizers against PyTorch's documented formulas in float64, ten steps, on gradients computed apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.training import nets
from tests.training.test_optimizer import State, gradient_at
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.reference.trainer import Trainer

RATE, STEPS = 0.02, 10
Memory = dict[str, Array]
Rule = Callable[[Array, Array, Memory, int, dict[str, Any]], Array]


def sgd(w: Array, g: Array, memory: Memory, step: int, o: dict[str, Any]) -> Array:
    """torch.optim.SGD."""
    g = g + o.get("weight_decay", 0.0) * w
    mu, tau = o.get("momentum", 0.9), o.get("dampening", 0.0)
    memory["b"] = g if step == 1 else mu * memory["b"] + (1 - tau) * g
    return w - RATE * (g + mu * memory["b"] if o.get("nesterov") else memory["b"])


def adam(w: Array, g: Array, memory: Memory, step: int, o: dict[str, Any]) -> Array:
    """torch.optim.Adam and AdamW; with raw_epsilon transformers' AdamW (which ONNX Runtime has as adam_mode 1)."""
    b1, b2 = o.get("betas", (0.9, 0.999))
    epsilon, decay = o.get("epsilon", 1e-8), o.get("weight_decay", 0.0)
    if o["optimizer"] == "adam":
        g = g + decay * w
    elif not o.get("decay_after"):
        w = w - RATE * decay * w
    memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * g
    memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * g * g
    c1, c2 = 1 - b1**step, 1 - b2**step
    if o.get("raw_epsilon"):
        w = w - RATE * np.sqrt(c2) / c1 * memory["m"] / (np.sqrt(memory["v"]) + epsilon)
    else:
        w = w - RATE * (memory["m"] / c1) / (np.sqrt(memory["v"] / c2) + epsilon)
    return w - RATE * decay * w if o.get("decay_after") else w


def adagrad(w: Array, g: Array, memory: Memory, step: int, o: dict[str, Any]) -> Array:
    """torch.optim.Adagrad."""
    g = g + o.get("weight_decay", 0.0) * w
    memory["s"] = memory.get("s", 0.0) + g * g
    return w - RATE * g / (np.sqrt(memory["s"]) + o.get("epsilon", 1e-10))


def rmsprop(w: Array, g: Array, memory: Memory, step: int, o: dict[str, Any]) -> Array:
    """torch.optim.RMSprop."""
    g = g + o.get("weight_decay", 0.0) * w
    alpha, mu = o.get("alpha", 0.99), o["momentum"]
    memory["v"] = alpha * memory.get("v", 0.0) + (1 - alpha) * g * g
    spread = memory["v"]
    if o.get("centered"):
        memory["a"] = alpha * memory.get("a", 0.0) + (1 - alpha) * g
        spread = spread - memory["a"] ** 2
    move = g / (np.sqrt(spread) + o.get("epsilon", 1e-8))
    memory["b"] = mu * memory.get("b", 0.0) + move
    return w - RATE * (memory["b"] if mu else move)


def lion(w: Array, g: Array, memory: Memory, step: int, o: dict[str, Any]) -> Array:
    """Lion of google/automl (lion_pytorch.py)."""
    b1, b2 = o.get("betas", (0.9, 0.99))
    m = memory.get("m", np.zeros_like(w))
    w = w * (1 - RATE * o.get("weight_decay", 0.0))
    memory["m"] = m * b2 + g * (1 - b2)
    return w - RATE * np.sign(m * b1 + g * (1 - b1))


CASES: dict[str, tuple[Rule, dict[str, Any]]] = {
    "momentum": (sgd, {"optimizer": "momentum", "weight_decay": 0.01}),
    "nesterov": (sgd, {"optimizer": "momentum", "nesterov": True, "weight_decay": 0.01}),
    "dampening": (sgd, {"optimizer": "momentum", "momentum": 0.8, "dampening": 0.4}),
    "adam": (adam, {"optimizer": "adam", "weight_decay": 0.01}),
    "adam, betas": (adam, {"optimizer": "adam", "betas": (0.8, 0.9), "epsilon": 1e-3}),
    "adamw": (adam, {"optimizer": "adamw", "weight_decay": 0.1}),
    "adamw as in ort": (
        adam,
        {"optimizer": "adamw", "weight_decay": 0.1, "epsilon": 1e-4, "raw_epsilon": True, "decay_after": True},
    ),
    "adagrad": (adagrad, {"optimizer": "adagrad", "weight_decay": 0.01}),
    "rmsprop": (rmsprop, {"optimizer": "rmsprop", "momentum": 0.0, "alpha": 0.9}),
    "rmsprop, centered": (
        rmsprop,
        {"optimizer": "rmsprop", "momentum": 0.4, "alpha": 0.9, "epsilon": 1e-2, "centered": True},
    ),
    "rmsprop with momentum": (
        rmsprop,
        {"optimizer": "rmsprop", "momentum": 0.5, "epsilon": 1e-4, "weight_decay": 0.01},
    ),
    "lion": (lion, {"optimizer": "lion"}),
    "lion, decay": (lion, {"optimizer": "lion", "betas": (0.8, 0.9), "weight_decay": 0.1}),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_ten_steps_are_those_of_pytorch(case: str, batch: int) -> None:
    rule, options = CASES[case]
    model = chain.imported(models.mlp())
    train, plain = chain.train_graph(model, learning_rate=RATE, batch=batch, **options), chain.train_graph(model)
    samples = random_samples(train, STEPS * batch, 3)
    trainer = Trainer(train)
    weights: State = {name: plain.graph.constants[name].astype(np.float64) for name in nets.updated(plain)}
    memory: dict[str, Memory] = {name: {} for name in weights}
    for step in range(STEPS):
        part = slice(step * batch, (step + 1) * batch)
        each = [gradient_at(plain, weights, x, y) for x, y in zip(samples.x[part], samples.y[part], strict=True)]
        for name in weights:
            mean = np.mean([gradients[name] for gradients in each], axis=0)
            weights[name] = rule(weights[name], mean, memory[name], step + 1, options)
        trainer.step(samples.x[part], samples.y[part])
    for name, expected in weights.items():
        np.testing.assert_allclose(trainer.state[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "case",
    [
        "nesterov",
        "dampening",
        "adamw as in ort",
        "adagrad",
        "rmsprop with momentum",
        "rmsprop, centered",
        "lion, decay",
    ],
)
def test_the_c_code_does_the_same(case: str) -> None:
    _, options = CASES[case]
    train = chain.train_graph(chain.imported(models.mlp()), learning_rate=RATE, batch=2, **options)
    assert chain.check(chain.project(train), mode="host").result == "pass"


def test_the_correction_of_adam_is_exact() -> None:
    """1 - beta^t from beta in double: within two roundings of float32, at once and after a thousand steps."""
    train = chain.train_graph(chain.imported(models.mlp()), "head", optimizer="adam", learning_rate=0.0)
    tick = next(node for node in train.graph.nodes if node.op == "AdamTick")
    trainer = Trainer(train)
    shares = {0: trainer.state[tick.inputs[0].name]}
    for step in range(1, 1001):
        values = trainer.run_nodes([tick], {tick.inputs[0].name: shares[step - 1]})
        shares[step] = values[tick.outputs[0].name]
    for step in (1, 2, 3, 10, 100, 1000):
        exact = 1 - np.asarray([0.9, 0.999]) ** step
        np.testing.assert_allclose(shares[step], exact, rtol=3e-7, err_msg=str(step))


@pytest.mark.parametrize(
    "options", [{"optimizer": "rmsprop"}, {"optimizer": "adagrad"}, {"optimizer": "momentum", "nesterov": True}]
)
def test_int8_refuses_what_it_has_no_form_of(options: dict[str, Any]) -> None:
    from tests.quantize import nets as integer

    with pytest.raises(CompileError, match="E0113"):
        integer.int8_train(integer.cnn(), head="int8", **options)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"optimizer": "adam"}, {"optimizer": "adam", "betas": (0.9, 0.99)}, False),
        ({"optimizer": "adam"}, {"optimizer": "adam", "epsilon": 1e-4}, True),
        ({"optimizer": "momentum"}, {"optimizer": "momentum", "nesterov": True}, True),
        ({"optimizer": "adagrad"}, {"optimizer": "rmsprop", "momentum": 0.0}, False),
    ],
)
def test_the_model_hash_knows_what_gives_the_state_a_meaning(
    first: dict[str, Any], second: dict[str, Any], same: bool
) -> None:
    model = chain.imported(models.mlp())
    found = [chain.train_graph(model, "head", **options).identity for options in (first, second)]
    assert (found[0] == found[1]) == same
