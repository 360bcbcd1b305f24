"""Recurrent layers through all stages: what the frameworks compute, on the host, with several samples, in int8."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from testing.places import SHARED
from tests.e2e import chain
from tests.e2e.gradients import largest_error
from tests.e2e.marks import needs_shared
from tests.e2e.test_micro_batch import apart, trained
from tests.frontend.models import parse
from tests.frontend.recurrent import Cell, model_of
from tests.quantize import nets
from tinytrain_compile.data.samples import load_samples
from tinytrain_compile.frontend import load_model
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.training import join_pieces

ZOO = SHARED / "zoo"
ALIKE = 5e-6
EXPORTED = {
    "torch-ts/lstm": {"onnx::LSTM_117": "weight_ih", "onnx::LSTM_118": "weight_hh"},
    "torch-ts/gru": {"onnx::GRU_105": "weight_ih", "onnx::GRU_106": "weight_hh"},
}
"""The operator's weights -> those of the layer, whose gates have another order."""
GATES = {"torch-ts/lstm": (0, 3, 1, 2), "torch-ts/gru": (1, 0, 2)}
"""Where each of the operator's gates is in the layer's weights."""


def after_five_steps(model: ImportedModel, name: str) -> tuple[list[float], Trainer]:
    known = json.loads((ZOO / f"{name}.json").read_text())
    train = chain.train_graph(model, loss="cross-entropy", learning_rate=known["lr"])
    samples = load_samples(ZOO / f"{name}.npz", model, train)
    trainer = Trainer(train)
    losses = [trainer.step(x[None], y[None])[0] for x, y in zip(samples.x[:5], samples.y[:5], strict=True)]
    np.testing.assert_allclose(losses, known["losses"], rtol=ALIKE)
    return losses, trainer


@needs_shared
@pytest.mark.parametrize("name", ["torch-ts/lstm", "torch-ts/gru", "torch-dynamo/rnn_tanh"])
def test_training_is_that_of_pytorch(name: str) -> None:
    _, trainer = after_five_steps(load_model(ZOO / f"{name}.onnx"), name)
    final = np.load(ZOO / f"{name}.ref.npz")
    for key in ("l.weight", "l.bias", *(k for k in ("r.bias_ih_l0", "r.bias_hh_l0") if k in trainer.state)):
        np.testing.assert_allclose(trainer.state[key], final[f"f_{key}"], rtol=0, atol=ALIKE)
    for ours, theirs in EXPORTED.get(name, {}).items():
        gates = np.split(final[f"f_r.{theirs}_l0"], len(GATES[name]))
        expected = np.concatenate([gates[gate] for gate in GATES[name]])
        np.testing.assert_allclose(trainer.state[ours], expected, rtol=0, atol=ALIKE)


@needs_shared
def test_training_is_that_of_keras() -> None:
    """tf2onnx leaves a bias of zeros out, which Keras trains (the last layer's): it is put back for the comparison."""
    model = onnx.load(ZOO / "keras" / "lstm.onnx")
    last = max(index for index, node in enumerate(model.graph.node) if node.op_type == "MatMul")
    product = model.graph.node[last]
    model.graph.node.insert(last + 1, helper.make_node("Add", ["product", "dense_bias"], list(product.output)))
    product.output[0] = "product"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(5, np.float32), "dense_bias"))
    after_five_steps(chain.imported(model), "keras/lstm")


@needs_shared
@pytest.mark.parametrize(
    "name", ["torch-ts/gru_unrolled_manual", "torch-dynamo/gru_unrolled_manual", "torch-ts/x_lstm_h0"]
)
def test_first_states_of_zeros_are_not_trained(name: str) -> None:
    path = ZOO / f"{name}.onnx"
    layers = {key.removeprefix("f_") for key in np.load(path.with_suffix(".ref.npz")).files if key.startswith("f_")}
    assert {value.name for value in load_model(path).graph.parameters} == layers


CELLS = [
    Cell("LSTM", "bidirectional", used="Yhc", states="given"),
    Cell("GRU", "reverse", reset_last=1, used="Y", states="computed"),
    Cell("GRU", "bidirectional", used="h"),
    Cell("RNN", "bidirectional", layout=1, used="Yh", states="given"),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_gradients_are_those_of_the_loss(cell: Cell) -> None:
    assert largest_error(chain.train_graph(model_of(cell)))[0] < 1e-6


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_generated_code_trains_it(cell: Cell) -> None:
    train = join_pieces(chain.train_graph(model_of(cell), optimizer="adam"))
    assert chain.check(chain.project(train), mode="host", steps=3).result == "pass"


def test_several_samples_in_a_step_give_the_same_training(tmp_path: Path) -> None:
    model = model_of(Cell("LSTM", "bidirectional", used="Yh", states="computed"))
    graphs = [chain.train_graph(model, batch=4, micro_batch=size, learning_rate=0.05) for size in (1, 4)]
    one, four = (trained(t, tmp_path / str(t.micro_batch), one=graphs[0]) for t in graphs)
    assert apart(graphs[0], one, four) < 1e-5


def test_a_step_takes_a_bounded_number_of_nodes() -> None:
    def nodes(steps: int) -> int:
        cell = Cell("LSTM", used="h", steps=steps)
        return len(join_pieces(chain.train_graph(model_of(cell), loss="cross-entropy")).graph.nodes)

    assert nodes(21) - nodes(20) <= 36


@pytest.mark.parametrize(("op", "more"), [("LSTM", ""), ("GRU", ", linear_before_reset = 1")])
def test_in_int8_the_layer_is_a_region_of_float32(op: str, more: str) -> None:
    text = f"""net (float[1, 1, 8, 4] x) => (float[1, 3] y) {{
        c = Conv <kernel_shape = [1, 1]> (x, K, k) a = Relu (c) f = Squeeze (a, zero)
        t = Transpose <perm = [1, 0, 2]> (f) _, h = {op} <hidden_size = 4{more}> (t, W, R, B)
        s = Squeeze (h, zero) y = Gemm (s, head) }}"""
    gates = {"LSTM": 4, "GRU": 3}[op]
    random = np.random.default_rng(0)
    shapes = {"K": (1, 1, 1, 1), "k": (1,), "W": (1, 4 * gates, 4), "R": (1, 4 * gates, 4), "B": (1, 8 * gates)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {"head": random.standard_normal((4, 3)).astype(np.float32), "zero": np.array([0])}
    train = join_pieces(nets.int8_train(parse(text, weights), loss="cross-entropy"))
    stored = {value.name: value.dtype for value in train.graph.state}
    assert (stored["K"], stored["W"], stored["R"]) == ("int8", "float32", "float32")
    assert not any(node.op == "Embed" for node in train.graph.nodes if node.outputs[0].shape[1:] == (8, 4 * gates))
    assert chain.check(chain.project(train), mode="host").max_error == 0.0
