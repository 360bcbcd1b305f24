"""Losses behind a model: defaults, absorbed activations, the model's own loss, and what does not fit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.gradients import LossFunction, largest_error, sample
from tests.quantize import nets as int8_nets
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


@pytest.mark.parametrize(("tail", "loss"), [("Sigmoid", "mse"), ("Softmax", "mse")])
def test_other_activations_stay(tail: str, loss: str) -> None:
    train = chain.train_graph(models.mlp(tail=tail), loss=loss)
    assert train.logits == train.graph.outputs[0]
    assert f"{tail}Grad" in nets.ops(train)


def dressed(tail: str, shape: str = "1, 4") -> onnx.ModelProto:
    """A dense layer from 6 to 4, then `tail` from its scores s to y."""
    net = models.Network("dressed", "float[1, 6] x", f"float[{shape}] y", seed=3)
    tables = {"image": [1, 4, 1, 1], "flat": [1, 4], "pixels": [1, 4, 2, 2], "low": 0.0, "high": 0.9}
    for name, numbers in tables.items():
        net.table(name, numbers, np.float32 if isinstance(numbers, float) else np.int64)
    net.node("scores", f"s = Identity ({net.dense('fc', 'x', 6, 16 if '2, 2' in shape else 4)})")
    for index, line in enumerate(tail.split("; ")):
        net.node(f"tail{index}", line)
    return net.model()


SQUASHED = {
    "a Softmax of an image": ("i = Reshape (s, image); p = Softmax <axis = 1> (i); y = Flatten (p)", "1, 4", True),
    "a Softmax behind a turn": (
        "i = Reshape (s, pixels); t = Transpose <perm = [0, 2, 3, 1]> (i); p = Softmax (t); "
        "y = Transpose <perm = [0, 3, 1, 2]> (p)",
        "1, 4, 2, 2",
        True,
    ),
    "a Softmax whose storage saturates": ("p = Softmax (s); y = Clip (p, low, high)", "1, 4", True),
    "a Sigmoid of an image": ("i = Reshape (s, image); p = Sigmoid (i); y = Flatten (p)", "1, 4", True),
}


@pytest.mark.parametrize("case", SQUASHED)
def test_the_loss_reads_scores_wherever_the_activation_stands(case: str) -> None:
    tail, shape, absorbed = SQUASHED[case]
    loss = "bce" if "Sigmoid" in tail else "cross-entropy"
    train = chain.train_graph(dressed(tail, shape), loss=loss)
    notes = " ".join(train.graph.notes)
    assert ("absorbed into the loss" in notes) == absorbed
    assert ("takes what Softmax 'tail1' gives for scores" in notes) != absorbed
    if absorbed:
        bare = dressed("y = Identity (s)" if shape == "1, 4" else "y = Reshape (s, pixels)", shape)
        plain = chain.train_graph(bare, loss=loss)
        x, label = sample(plain, 0)
        label = label % 4
        expected = LossFunction(plain, x, label).gradients()
        for name, gradient in LossFunction(train, x, label).gradients().items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("classes", [1, 4])
def test_a_sigmoid_at_the_end_means_bce(classes: int) -> None:
    train = chain.train_graph(models.mlp(classes=classes, tail="Sigmoid"))
    assert "SigmoidCrossEntropy" in nets.ops(train) and train.logits.name == "fc3/Gemm"
    assert train.graph.notes[0].startswith("loss: bce, the default behind a Sigmoid")
    assert (train.label.dtype, train.label.shape) == ("float32", (1, classes))


def test_a_loss_that_takes_probabilities_for_scores_is_said() -> None:
    (note,) = chain.train_graph(models.mlp(tail="Sigmoid"), loss="cross-entropy").graph.notes
    assert "Sigmoid" in note and "--loss bce" in note


def test_bce_of_scores_is_said() -> None:
    assert "loss: bce is of scores (logits)" in chain.train_graph(models.mlp(), loss="bce").graph.notes[0]


@pytest.mark.parametrize(
    "tail",
    [
        "p = Softmax (s); y = Identity (p)",
        "i = Reshape (s, image); p = Sigmoid (i); a = GlobalAveragePool (p); y = Flatten (a)",
        "p = HardSigmoid (s); y = Identity (p)",
    ],
)
def test_bce_of_probabilities_that_no_loss_contains(tail: str) -> None:
    """The loss against its formula, its gradients against differences."""
    train = chain.train_graph(dressed(tail), loss="bce")
    x, label = sample(train, 0)
    values = run_graph(train.graph, {train.graph.inputs[0].name: x.astype(np.float32), train.label.name: label})
    p = values[train.graph.outputs[0].name].astype(np.float64)
    expected = -(label * np.log(p) + (1 - label) * np.log(1 - p)).mean()
    assert float(values[train.loss.name]) == pytest.approx(expected, rel=1e-5)
    assert any("holds probabilities" in note for note in train.graph.notes)
    assert largest_error(train)[0] < 1e-6


def test_classes_lie_where_the_softmax_says() -> None:
    """Keras has them last: (batch, time, classes)."""
    tail = "i = Reshape (s, pixels); p = Softmax <axis = 3> (i); y = Identity (p)"
    train = chain.train_graph(dressed(tail, "1, 4, 2, 2"), loss="cross-entropy")
    assert train.label.shape == (1, 4, 2)
    assert any("absorbed into the loss" in note for note in train.graph.notes)
    x, label = sample(train, 0)
    values = run_graph(train.graph, {train.graph.inputs[0].name: x.astype(np.float32), train.label.name: label})
    p = values[train.graph.outputs[0].name]
    order = np.argsort(chain.imported(dressed(tail, "1, 4, 2, 2")).output_perm)
    picked = np.take_along_axis(p.transpose(order), label[..., None].astype(np.int64), axis=3)
    assert float(values[train.loss.name]) == pytest.approx(float(-np.log(picked).mean()), rel=1e-5)


def test_the_format_of_a_softmax_is_no_obstacle() -> None:
    """int8, with an int8 head: the clamp of its storage lies behind the Softmax."""
    model = int8_nets.cnn()
    model.graph.node[-1].op_type = "Softmax"
    train = int8_nets.float_train(model, head="int8")
    assert any("absorbed into the loss" in note for note in train.graph.notes)
    assert "SoftmaxGrad" not in nets.ops(train)


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
    note = next(note for note in train.graph.notes if "of the model itself" in note)
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
