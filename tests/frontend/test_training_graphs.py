"""Training graphs as files: TrainingInfoProto by optimizers of onnx.reference, artifacts by ONNX Runtime's numbers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from testing.networks.training_info import SHAPES, info_model
from tests.training.test_optimizer import gradient_at
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.driver.checks.model_options import training_options, with_file_training
from tinytrain_compile.driver.pipeline import imported
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions
from tinytrain_compile.training.build import build_training

STEPS = 10


class Oracle:
    """The algorithm of the file in onnx.reference, but for Gradient and the loss, on gradients that are given."""

    def __init__(self, model: onnx.ModelProto) -> None:
        algorithm = model.training_info[0].algorithm
        left = [n for n in algorithm.node if n.op_type not in ("Gradient", "SoftmaxCrossEntropyLoss")]
        self.values = {t.name: numpy_helper.to_array(t) for t in (*model.graph.initializer, *algorithm.initializer)}
        results = [name for node in left for name in node.output if name.endswith("_new")]
        inputs = [*self.values, *(f"g_{name}" for name in SHAPES)]
        typed = [onnx.ValueInfoProto(name=name) for name in inputs]
        graph = helper.make_graph(left, "update", typed, [onnx.ValueInfoProto(name=name) for name in results])
        self._names = results
        self._evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=model.opset_import))

    def step(self, gradients: dict[str, Array]) -> None:
        feeds = {**self.values, **{f"g_{name}": array.astype(np.float32) for name, array in gradients.items()}}
        found: Any = self._evaluator.run(self._names, feeds)  # pyright: ignore[reportUnknownMemberType]
        for name, array in zip(self._names, found, strict=True):
            self.values[name.removesuffix("_new")] = np.asarray(array)


def train_of(path: Path, batch: int = 1, **more: Any) -> TrainGraph:
    """The training graph that the command would make."""
    options = CompileOptions(path, **more, given=frozenset(more))
    model = imported(options)
    options, _ = with_file_training(options, model)
    return build_training(model, resolve_update(model.graph, options.update), training_options(options, model, batch))


def check_info(model: onnx.ModelProto, path: Path) -> None:
    path.write_bytes(model.SerializeToString())
    train = train_of(path)
    whole = imported(CompileOptions(path))
    plain = build_training(whole, resolve_update(whole.graph, "all"), TrainingOptions())
    oracle, trainer, random = Oracle(model), Trainer(train), np.random.default_rng(9)
    for _ in range(STEPS):
        x, label = random.normal(size=(1, 6)).astype(np.float32), random.integers(0, 4, 1).astype(np.int32)
        weights = {name: oracle.values[name].astype(np.float64) for name in SHAPES}
        oracle.step(gradient_at(plain, weights, x[0], label))
        trainer.step(x, label)
    for name in SHAPES:
        np.testing.assert_allclose(trainer.state[name], oracle.values[name], rtol=1e-5, atol=1e-5, err_msg=name)


INFOS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "sgd": ("Sgd", 0, {}),
    "momentum": ("Momentum", 0, {"alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 1e-3}),
    "damped": ("Momentum", 0, {"alpha": 0.9, "beta": 0.3, "mode": "standard", "norm_coefficient": 0.0}),
    "nesterov, later": ("Momentum", 3, {"alpha": 0.8, "beta": 0.5, "mode": "nesterov", "norm_coefficient": 0.01}),
    "adam": ("Adam", 0, {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "norm_coefficient": 0.0}),
    "adam from the first step": ("Adam", 1, {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-4, "norm_coefficient": 0.01}),
    "adam, later": ("Adam", 5, {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0}),
    "adagrad": ("Adagrad", 0, {"decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.01}),
    "adagrad, later": ("Adagrad", 2, {"decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.0}),
}


@pytest.mark.parametrize("bind_state", [True, False], ids=["bound", "not bound"])
@pytest.mark.parametrize("name", INFOS)
def test_training_information_is_honoured(name: str, bind_state: bool, tmp_path: Path) -> None:
    """Ten steps: the optimizer nodes of the file in onnx.reference, state from step to step."""
    optimizer, start, attributes = INFOS[name]
    check_info(info_model(optimizer, start, bind_state, **attributes), tmp_path / "net.onnx")


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adagrad"])
def test_shared_files_with_training_information(name: str, tmp_path: Path) -> None:
    from testing.places import SHARED

    path = SHARED / "training-graphs" / f"ti_{name}.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    check_info(onnx.load(path), tmp_path / "net.onnx")


def test_initial_values_of_an_initialization_graph(tmp_path: Path) -> None:
    model = info_model("Sgd")
    info = model.training_info[0]
    node = helper.make_node("Constant", [], ["first"], value=numpy_helper.from_array(np.full((4,), 0.5, np.float32)))
    out = helper.make_tensor_value_info("first", TensorProto.FLOAT, [4])
    info.initialization.CopyFrom(helper.make_graph([node], "start", [], [out]))
    info.initialization_binding.add(key="b2", value="first")
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    np.testing.assert_array_equal(train_of(path).graph.constants["b2"], np.full(4, 0.5, np.float32))


def test_a_slice_begins_with_the_state_of_its_channels(tmp_path: Path) -> None:
    """A file's velocities belong to channels: those that are trained keep theirs."""
    path, scheme = tmp_path / "net.onnx", tmp_path / "scheme.toml"
    model = info_model("Momentum", 3, alpha=0.8, beta=0.5, mode="nesterov", norm_coefficient=0.01)
    path.write_bytes(model.SerializeToString())
    scheme.write_text(
        '[[update]]\nlayer = "fc1"\nweight = [1, 3]\n[[update]]\nlayer = "fc2"\nweight = [0, 2]\naxis = "in"\n'
    )
    held = {t.name: numpy_helper.to_array(t) for t in model.training_info[0].algorithm.initializer}
    constants = train_of(path, update=str(scheme)).graph.constants
    np.testing.assert_array_equal(constants["w1.updated.velocity"], held["v_w1"][[1, 3]])
    np.testing.assert_array_equal(constants["w2.updated.velocity"], held["v_w2"][:, [0, 2]])


def test_only_bound_weights_are_trained(tmp_path: Path) -> None:
    model = info_model("Sgd")
    bound = [entry for entry in model.training_info[0].update_binding if entry.key in ("w2", "b2")]
    del model.training_info[0].update_binding[:]
    model.training_info[0].update_binding.extend(bound)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert {value.name for value, _ in train_of(path).graph.updates} == {"w2", "b2"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a, _: a.node[-1].CopyFrom(helper.make_node("Add", ["b2", "s_b2"], ["b2_new"])), "weight b2"),
        (lambda a, _: a.node[3].input.__setitem__(0, "g_w2"), "weight w1"),
        (lambda _, i: i.update_binding.__delitem__(slice(None)), "binds no weight"),
        (lambda a, _: a.node.pop(1), "0 Gradient nodes"),
    ],
)
def test_what_is_no_training_is_refused(damage: Any, said: str, tmp_path: Path) -> None:
    model = info_model("Sgd")
    info = model.training_info[0]
    damage(info.algorithm, info)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CompileError, match=rf"E0231.*{said}"):
        train_of(path)


def test_options_that_contradict_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(info_model("Sgd").SerializeToString())
    for option in ({"optimizer": "adam"}, {"weight_decay": 0.1}, {"loss": "mse"}):
        with pytest.raises(CompileError, match=r"E0113.*says how it is trained"):
            train_of(path, **option)
    assert {value.name for value, _ in train_of(path, update="head").graph.updates} == {"w2", "b2"}
    train = train_of(path, learning_rate=0.5)
    assert train.graph.constants[train.learning_rate.name] == np.float32(0.5)
    train = train_of(path)
    assert train.graph.constants[train.learning_rate.name] == np.float32(0.05)


# ---- artifacts of ONNX Runtime --------------------------------------------------------------------------------------

ARTIFACTS = ("mlp_ce_sgd", "mlp_ce_adamw", "cnn_ce_sgd", "cnn_ce_adamw")


@pytest.fixture
def artifacts() -> Path:
    from testing.places import SHARED

    folder = SHARED / "training-graphs" / "ort"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return folder


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifacts_train_as_onnx_runtime_does(name: str, artifacts: Path) -> None:
    """Losses of eight steps of four samples, and every weight after them."""
    gold = np.load(artifacts / f"{name}.gold.npz")
    train = train_of(artifacts / name, 4, learning_rate=float(gold["lr"]))
    trainer = Trainer(train)
    x = gold["x"].transpose(0, 2, 3, 1) if gold["x"].ndim == 4 else gold["x"]
    for step, expected in enumerate(gold["losses"]):
        part = slice(4 * step, 4 * step + 4)
        losses = trainer.step(x[part], gold["y"][part].astype(np.int32))
        np.testing.assert_allclose(np.mean(losses), expected, rtol=1e-5, err_msg=str(step))
    assert len(train.graph.updates) > 3
    for key in gold.files:
        if key.startswith("w_") and key[2:] in trainer.state:
            held = trainer.state[key[2:]]
            wanted = gold[key].transpose(0, 2, 3, 1) if gold[key].ndim == 4 else gold[key]
            np.testing.assert_allclose(held, wanted.reshape(held.shape), rtol=1e-5, atol=2e-6, err_msg=key)


def test_artifacts_through_the_command(artifacts: Path, tmp_path: Path) -> None:
    """A folder or its training_model.onnx; the report says what it was; weights of an .npz, and without any."""
    options = CompileOptions(artifacts / "mlp_ce_adamw", out=tmp_path / "out", verify="host")
    summary = compile_model(options).summary
    assert summary is not None
    assert (summary.contract, summary.optimizer, summary.verify.result) == (4, "adamw", "pass")
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("training_model.onnx", "optimizer_model.onnx"):
        (alone / name).write_bytes((artifacts / "mlp_ce_adamw" / name).read_bytes())
    with pytest.raises(CompileError, match=r"E0231.*--weights"):
        train_of(alone)
    forward = onnx.load(artifacts / "mlp_ce.onnx")
    weights = {t.name: numpy_helper.to_array(t) * 2 for t in forward.graph.initializer}
    np.savez(tmp_path / "w.npz", **weights)
    train = train_of(alone / "training_model.onnx", weights=tmp_path / "w.npz")
    np.testing.assert_array_equal(train.graph.constants["w1"], weights["w1"])


def test_frozen_weights_that_are_missing(artifacts: Path, tmp_path: Path) -> None:
    alone = tmp_path / "training_model.onnx"
    alone.write_bytes((artifacts / "cnn_ce_sgd" / "training_model.onnx").read_bytes())
    forward = onnx.load(artifacts / "cnn_ce.onnx")
    weights = {t.name: numpy_helper.to_array(t) for t in forward.graph.initializer if t.name not in ("lo", "hi")}
    np.savez(tmp_path / "w.npz", **weights)
    with pytest.raises(CompileError, match=r"E0231.*x, labels, lo, hi"):
        train_of(alone, weights=tmp_path / "w.npz")


def test_damaged_checkpoints_are_refused(artifacts: Path, tmp_path: Path) -> None:
    """Cut at any length, and with any word of its first part replaced: E0105 or E0231, or the file is read."""
    from tinytrain_compile.frontend.training_file.gradient_graph import checkpoint_tensors

    data = (artifacts / "mlp_ce_sgd" / "checkpoint").read_bytes()
    assert set(checkpoint_tensors(data)) == set(SHAPES)
    for length in range(0, len(data) - 4, 7):
        with pytest.raises(ValueError, match=r"."):
            checkpoint_tensors(data[:length])
    for place in range(0, 200, 2):
        for word in (0, 0xFFFFFFFF, 0x7FFFFFFF, 17):
            broken = data[:place] + struct.pack("<I", word) + data[place + 4 :]
            try:
                checkpoint_tensors(broken)
            except ValueError:
                continue
    wrong = tmp_path / "a"
    wrong.mkdir()
    (wrong / "training_model.onnx").write_bytes((artifacts / "mlp_ce_sgd" / "training_model.onnx").read_bytes())
    (wrong / "checkpoint").write_bytes(data[:100])
    with pytest.raises(CompileError, match=r"E0105.*checkpoint"):
        train_of(wrong)
