"""Losses behind a model: defaults, absorbed activations, the model's own loss, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.e2e import chain, models
from tests.e2e.gradients import LossFunction, sample
from tests.training import nets
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ops.interpreter import run_graph


@pytest.mark.parametrize(
    ("tail", "loss"), [("Softmax", "cross-entropy"), ("LogSoftmax", "cross-entropy"), ("Sigmoid", "bce")]
)
def test_trailing_activation_is_absorbed(tail: str, loss: str) -> None:
    """Training reads the logits, inference still gives the activation, and the report says so."""
    bare, tailed = (chain.train_graph(models.mlp(tail=t), loss=loss) for t in ("", tail))
    assert tailed.logits.name == "fc3/Gemm"
    assert [note for note in tailed.graph.notes if "absorbed into the loss" in note and tail in note]
    assert f"{tail}Grad" not in nets.ops(tailed) or tail == "LogSoftmax"
    x, label = sample(bare, 0)
    expected = LossFunction(bare, x, label).gradients()
    for name, gradient in LossFunction(tailed, x, label).gradients().items():
        np.testing.assert_array_equal(gradient, expected[name])
    values = run_graph(tailed.graph, {"x": x.astype(np.float32), tailed.label.name: label.astype(tailed.label.dtype)})
    output = values[tailed.graph.outputs[0].name]
    logits = values["fc3/Gemm"]
    wanted = {
        "Softmax": np.exp(logits) / np.exp(logits).sum(),
        "LogSoftmax": logits - np.log(np.exp(logits).sum()),
        "Sigmoid": 1 / (1 + np.exp(-logits)),
    }[tail]
    np.testing.assert_allclose(output, wanted, rtol=1e-5)


@pytest.mark.parametrize(("tail", "loss"), [("Sigmoid", "mse"), ("Softmax", "mse"), ("Softmax", "bce")])
def test_other_activations_stay(tail: str, loss: str) -> None:
    train = chain.train_graph(models.mlp(tail=tail), loss=loss)
    assert train.logits == train.graph.outputs[0]
    assert f"{tail}Grad" in nets.ops(train)


def test_default_is_said() -> None:
    train = chain.train_graph(models.mlp())
    assert train.graph.notes[0].startswith("loss: cross-entropy, the default")
    assert chain.train_graph(models.mlp(), loss="cross-entropy").graph.notes == ()
    assert (train.label.dtype, train.label.shape) == ("int32", (1,))


@pytest.mark.parametrize(("loss", "dtype", "shape"), [("mse", "float32", (1, 4)), ("bce", "float32", (1, 4))])
def test_labels_of_values(loss: str, dtype: str, shape: tuple[int, ...]) -> None:
    label = chain.train_graph(models.mlp(), loss=loss).label
    assert (label.dtype, label.shape) == (dtype, shape)


@pytest.mark.parametrize("loss", [None, "cross-entropy"])
def test_one_score_is_no_classification(loss: str | None) -> None:
    with pytest.raises(CompileError) as caught:
        chain.train_graph(models.mlp(classes=1), loss=loss)
    assert caught.value.code == "E0304"
    assert "mse or bce" in str(caught.value)
    assert chain.train_graph(models.mlp(classes=1), loss="bce").label.shape == (1, 1)


def test_own_loss_is_used_and_said() -> None:
    train = chain.train_graph(models.with_loss(models.mlp(), [1.0, 2.0, 3.0, 4.0], "sum", ignore=2))
    assert train.label.name == "target"
    note = next(note for note in train.graph.notes if "contract 2" in note)
    assert "'loss/SCE'" in note
    assert "'target'" in note
    assert "sum" in note
    with pytest.raises(CompileError) as caught:
        chain.train_graph(models.with_loss(models.mlp()), loss="mse")
    assert caught.value.code == "E0304"


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_own_loss_counts_weights_and_ignores(reduction: str) -> None:
    weights = [0.5, 2.0, 1.0, 0.25]
    plain = chain.train_graph(models.mlp())
    own = chain.train_graph(models.with_loss(models.mlp(), weights, reduction, ignore=2))
    x, _ = sample(plain, 1)
    for label in range(4):
        y = np.array([label], np.int32)
        expected, found = (LossFunction(train, x, y).value({}) for train in (plain, own))
        factor = 0.0 if label == 2 else weights[label] if reduction == "sum" else 1.0
        assert found == pytest.approx(factor * expected, rel=1e-12)


def test_parameter_names_that_the_graph_adds_do_not_clash() -> None:
    """A model may already have nodes and weights that are called like what training adds."""
    model = models.mlp()
    names = ["loss", "label", "learning_rate", "log_probabilities", "adam_power", "loss_gradient", "fc1_weight.update"]
    for node, name in zip(model.graph.node, names, strict=False):
        node.name = name
    for item, name in zip(model.graph.initializer, ("learning_rate", "label", "loss"), strict=False):
        old, item.name = item.name, name
        for node in model.graph.node:
            node.input[:] = [name if text == old else text for text in node.input]
    train = chain.train_graph(model, optimizer="adam", batch=2)
    assert len(train.graph.updates) == 3 * 6 + 6 + 1
    assert chain.check(chain.project(train), mode="host", steps=2).result == "pass"
