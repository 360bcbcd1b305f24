"""Weights that several places of a model read: trained as the framework trains them, by the generated code too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from testing.places import SHARED
from tests.e2e import chain
from tests.e2e.gradients import largest_error
from tests.e2e.marks import needs_shared
from tests.e2e.test_micro_batch import apart, trained
from tests.frontend.test_tied_weights import MODELS
from tests.quantize import nets
from tinytrain_compile.data.samples import load_samples, random_samples
from tinytrain_compile.frontend import load_model
from tinytrain_compile.reference.trainer import Trainer, run_reference

ZOO = SHARED / "zoo" / "torch-ts"
LOSSES = {"ce": "cross-entropy", "mse": "mse"}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_loss(name: str) -> None:
    assert largest_error(chain.train_graph(MODELS[name]))[0] < 1e-6


@pytest.mark.parametrize("name", ["plain and transB", "kernels and matrix", "norm behind one use"])
@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "batch": 4, "micro_batch": 2}], ids=["sgd", "adam"])
def test_the_generated_code_trains_it(name: str, options: dict[str, object]) -> None:
    """The update waits for every reader of the weight, also those behind a view of it (the judge of plans looks)."""
    train, one = (chain.train_graph(MODELS[name], **{**options, **size}) for size in ({}, {"micro_batch": 1}))
    report = chain.check(chain.project(train, one=one), mode="host", steps=4)
    assert report.result == "pass"
    assert len(train.graph.updates) == len({old.name for old, _ in train.graph.updates})


def test_micro_batches_give_the_same_training(tmp_path: Path) -> None:
    graphs = [
        chain.train_graph(MODELS["kernels and matrix"], batch=4, micro_batch=size, learning_rate=0.05)
        for size in (1, 4)
    ]
    one, four = (trained(train, tmp_path / str(train.micro_batch), one=graphs[0]) for train in graphs)
    assert apart(graphs[0], one, four) < 1e-5


def test_a_frozen_weight_is_rearranged_at_compile_time() -> None:
    train = chain.train_graph(MODELS["plain and transB"], "MatMul_y")
    assert "Transpose" not in [node.op for node in train.graph.nodes]


@needs_shared
@pytest.mark.parametrize("name", ["tied_ae", "shared_weights", "gru_unrolled_manual", "x_lstm_h0"])
def test_training_is_that_of_the_framework(name: str) -> None:
    """Losses and final weights that PyTorch computed (../shared/zoo)."""
    known = json.loads((ZOO / f"{name}.json").read_text())
    model = load_model(ZOO / f"{name}.onnx")
    train = chain.train_graph(model, loss=LOSSES[known["loss"]], learning_rate=known["lr"])
    samples = load_samples(ZOO / f"{name}.npz", model, train)
    trainer = Trainer(train)
    losses = [trainer.step(x[None], y[None])[0] for x, y in zip(samples.x[:5], samples.y[:5], strict=True)]
    np.testing.assert_allclose(losses, known["losses"], rtol=5e-6)
    final = np.load(ZOO / f"{name}.ref.npz")
    weights = {key.removeprefix("f_"): final[key] for key in final.files if key.startswith("f_")}
    for key, data in weights.items():
        ours = trainer.state[key]
        expected = data.transpose(0, 2, 3, 1) if data.ndim == 4 else data
        np.testing.assert_allclose(ours, expected, rtol=0, atol=5e-6)


@needs_shared
@pytest.mark.parametrize(
    ("name", "integers"),
    [
        ("shared_weights", {"c1.weight", "c1.bias", "c3.weight", "c3.bias"}),
        ("gru_unrolled_manual", {"i.weight", "i.bias"}),
        ("tied_ae", set[str]()),
    ],
)
def test_the_zoo_trains_in_int8(name: str, integers: set[str]) -> None:
    """It ended in E0901. What is not integer is a float32 region, said in a note."""
    train = nets.int8_train(onnx.load(ZOO / f"{name}.onnx"), loss="mse" if name == "tied_ae" else "cross-entropy")
    stored = {value.name for value in train.graph.state if value.dtype in ("int8", "int32")}
    assert {other for other in stored if other.endswith((".weight", ".bias"))} == integers
    assert any("stay float32" in note for note in train.graph.notes) == (name != "shared_weights")
    if name == "shared_weights":
        assert chain.check(chain.project(train), mode="host").max_error == 0.0
    else:
        run_reference(train, random_samples(train, 2, 0), 2)
