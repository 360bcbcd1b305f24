"""Training graphs with gradient nodes: Deeploy's fixtures by their goldens, operators of dialects, files of weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from testing import deeploy
from testing.gradient_graph import MICROSOFT, weights_of, write_graph
from testing.places import ROOT
from tests.frontend.test_training_graphs import train_of
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.data.samples import samples_of
from tinytrain_compile.driver.pipeline import imported
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.training_file.dialects import FORMS, REFUSED
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.twin.parameters import FileParameters

needs_fixtures = pytest.mark.skipif(not deeploy.FOLDER.is_dir(), reason=f"{deeploy.FOLDER} is not here")


@needs_fixtures
@pytest.mark.parametrize("name", deeploy.TRAINED)
def test_fixtures_of_deeploy_meet_their_goldens(name: str) -> None:
    """Losses of four micro-batches within 1e-6, the change of every weight within 1 % of its norm."""
    known = deeploy.fixture(name)
    run = Run(known.model, known.accumulate, weights=known.given, learning_rate=known.rate)
    found = known.judge(run.step, run.weights)
    assert found.meets, found
    assert all((known.weights[key] != known.first[key]).any() for key in known.first) or name == "cct"


@needs_fixtures
@pytest.mark.parametrize("name", deeploy.REFUSED)
def test_batch_statistics_are_the_reason_in_the_first_line(name: str) -> None:
    path = deeploy.FOLDER / name
    with pytest.raises(CompileError, match=r"E0231.*BatchNormInternal.*mean and variance of the batch"):
        train_of(path / "network.onnx", weights=path / "inputs.npz")


@needs_fixtures
def test_the_command_trains_a_fixture(tmp_path: Path) -> None:
    """Judged by the file; the learning rate is that of optimizer.onnx, and a note says how batches differ."""
    known = deeploy.fixture("simplemlp")
    options = CompileOptions(known.model, weights=known.given, batch=4, out=tmp_path / "out", verify="host")
    summary = compile_model(options).summary
    assert summary is not None
    assert (summary.contract, summary.optimizer, summary.verify.result) == (4, "sgd", "pass")
    assert float(summary.train.graph.constants[summary.train.learning_rate.name]) == np.float32(0.001)
    assert any("--lr 0.004" in note for note in summary.notes)


# ---- operators of dialects ------------------------------------------------------------------------------------------


def network(body: str, weights: dict[str, tuple[int, ...]], x: str = "1, 4, 6", opset: int = 17) -> onnx.ModelProto:
    """A model with cross-entropy of 3 classes; `body` makes `h`, with as many numbers as `fc` has columns."""
    random = np.random.default_rng(7)
    head = "f = Reshape (h, flat) s = Gemm <transB = 1> (f, fc) loss = SoftmaxCrossEntropyLoss (s, labels)"
    head = "" if "loss, p" in body else head
    text = f'<ir_version: 8, opset_import: ["": {opset}, "{MICROSOFT}": 1]>'
    model = parser.parse_model(f"{text} net (float[{x}] x, int64[1] labels) => (float loss) {{ {body} {head} }}")
    drawn = {name: random.normal(size=shape).astype(np.float32) * 0.4 for name, shape in weights.items()}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in drawn.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "flat"))
    return model


_MS = f"{MICROSOFT}."
_ONE = {"w": (6, 5)}
_W = {**_ONE, "b": (5,)}
_TIME = "t = Transpose <perm = [1, 0, 2]> (x)"
_RMS = "q = Mul (a, a) m = ReduceMean <axes = [-1]> (q) e = Add (m, eps) r = Sqrt (e) d = Div (a, r) h = Mul (d, b)"
_EPS = "eps = Constant <value = float {0.00001}> ()"
_LSTM = {"w": (1, 12, 6), "r": (1, 12, 3)}
_GRU = {"w": (1, 9, 6), "r": (1, 9, 3)}
_MM = "a = MatMul (x, w)"
_ALPHA = "c = Constant <value = float {1.702}> ()"
_SPLIT = "n = Constant <value = int64[2] {1, 3}> ()"
FORMS_AND_THEIR_MEANING: dict[str, tuple[dict[str, tuple[int, ...]], str, str]] = {
    # operator: weights, as the tool writes it, in ONNX's operators
    "ConcatTraining": (
        {**_ONE, "fc": (3, 40)},
        f"{_MM} k = Relu (a) h, lengths = {_MS}ConcatTraining <axis = 1> (a, k)",
        f"{_MM} k = Relu (a) h = Concat <axis = 1> (a, k)",
    ),
    "SplitTraining": (
        {**_ONE, "fc": (3, 15)},
        f"{_MM} {_SPLIT} o, h = {_MS}SplitTraining <axis = 1> (a, n)",
        f"{_MM} {_SPLIT} o, h = Split <axis = 1> (a, n)",
    ),
    "Gelu": ({**_ONE, "fc": (3, 20)}, f"{_MM} h = {_MS}Gelu (a)", f"{_MM} h = Gelu (a)"),
    "BiasGelu": (
        {**_W, "fc": (3, 20)},
        f"{_MM} h = {_MS}BiasGelu (a, b)",
        f"{_MM} s0 = Add (a, b) h = Gelu (s0)",
    ),
    "FastGelu": (
        {**_W, "fc": (3, 20)},
        f"{_MM} h = {_MS}FastGelu (a, b)",
        f'{_MM} s0 = Add (a, b) h = Gelu <approximate = "tanh"> (s0)',
    ),
    "QuickGelu": (
        {**_ONE, "fc": (3, 20)},
        f"{_MM} h = {_MS}QuickGelu <alpha = 1.702> (a)",
        f"{_MM} {_ALPHA} m = Mul (a, c) g = Sigmoid (m) h = Mul (a, g)",
    ),
    "BiasSoftmax": (
        {**_W, "fc": (3, 20)},
        f"{_MM} h = {_MS}BiasSoftmax <axis = -1, is_inner_broadcast = 1> (a, b)",
        f"{_MM} s0 = Add (a, b) h = Softmax <axis = -1> (s0)",
    ),
    "SimplifiedLayerNormalization": (
        {**_W, "fc": (3, 20)},
        f"{_MM} h = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001, stash_type = 1> (a, b)",
        f"{_MM} {_EPS} {_RMS}",
    ),
    "FusedMatMul": (
        {"w": (5, 6), "fc": (3, 20)},
        f"h = {_MS}FusedMatMul <alpha = 0.5, transA = 0, transB = 1, transBatchA = 0, transBatchB = 0> (x, w)",
        "half = Constant <value = float {0.5}> () t = Transpose (w) a = MatMul (x, t) h = Mul (a, half)",
    ),
    "LSTMTraining": (
        {**_LSTM, "fc": (3, 12)},
        f"{_TIME} h, y_h, y_c, all_c, gates = {_MS}LSTMTraining <hidden_size = 3> (t, w, r)",
        f"{_TIME} h, y_h = LSTM <hidden_size = 3> (t, w, r)",
    ),
    "GRUTraining": (
        {**_GRU, "fc": (3, 12)},
        f"{_TIME} h, y_h, zrh = {_MS}GRUTraining <hidden_size = 3> (t, w, r)",
        f"{_TIME} h, y_h = GRU <hidden_size = 3> (t, w, r)",
    ),
    "SoftmaxCrossEntropyLossInternal": (
        {"w": (3, 24)},
        "f = Reshape (x, flat) s = Gemm <transB = 1> (f, w) i = Constant <value = int64 {-100}> () "
        f'loss, p = {_MS}SoftmaxCrossEntropyLossInternal <reduction = "mean"> (s, labels, , i)',
        "f = Reshape (x, flat) s = Gemm <transB = 1> (f, w) "
        "loss, p = SoftmaxCrossEntropyLoss <ignore_index = -100> (s, labels)",
    ),
    "Gemm": (
        {"w": (5, 6), "b": (5,), "fc": (3, 20)},
        "h = Gemm <transB = 1> (x, w, b)",
        "t = Transpose (w) a = MatMul (x, t) h = Add (a, b)",
    ),
    "Squeeze": (
        {**_ONE, "fc": (3, 20)},
        f"{_MM} h = Squeeze <axes = 0> (a)",
        f"{_MM} one = Constant <value = int64[1] {{0}}> () h = Squeeze (a, one)",
    ),
    "ReduceMean": (
        {**_ONE, "fc": (3, 4)},
        f"{_MM} ax = Constant <value = int64[1] {{2}}> () h = ReduceMean <noop_with_empty_axes = 0> (a, ax)",
        f"{_MM} h = ReduceMean <axes = [2]> (a)",
    ),
    "ReduceSum": (
        {**_ONE, "fc": (3, 4)},
        f'{_MM} h = ReduceSum <axes = [2], description = "[Backward pass]"> (a)',
        f"{_MM} ax = Constant <value = int64[1] {{2}}> () h = ReduceSum (a, ax)",
    ),
}


class Run:
    """Training of a file by the numpy reference: samples in the file's layout, weights by its names."""

    def __init__(self, path: Path, batch: int = 1, **options: Any) -> None:
        self._train = train_of(path, batch, **options)
        self._model = imported(CompileOptions(path, **options, given=frozenset(options)))
        self._trainer, self._file = Trainer(self._train), FileParameters(self._model, self._train)

    def step(self, x: Array, y: Array) -> list[float]:
        """Losses of the samples of an update."""
        samples = samples_of("x, y", x, y, self._model, self._train)
        return [float(loss) for loss in self._trainer.step(samples.x, samples.y)]

    def weights(self) -> dict[str, Array]:
        """What is trained."""
        return self._file.of_state(self._trainer.state)

    def after(self, steps: int) -> tuple[list[float], dict[str, Array]]:
        """Losses of steps on random samples, and the weights."""
        random, losses = np.random.default_rng(3), list[float]()
        for _ in range(steps):
            losses += self.step(random.normal(size=self._model.input_shape).astype(np.float32), np.array([1]))
        return losses, self.weights()


@pytest.mark.parametrize("operator", FORMS_AND_THEIR_MEANING)
def test_an_operator_of_a_tool_trains_as_its_meaning(operator: str, tmp_path: Path) -> None:
    """The same losses and weights as the forward model in ONNX's own operators gives, and the file itself agrees."""
    weights, written, meant = FORMS_AND_THEIR_MEANING[operator]
    path, given = write_graph(network(written, weights), tmp_path)
    plain = tmp_path / "forward.onnx"
    plain.write_bytes(network(meant, weights).SerializeToString())
    found, learned = Run(path, weights=given, learning_rate=0.1).after(4)
    wanted, expected = Run(plain, trainable=tuple(weights), update="all", learning_rate=0.1).after(4)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert set(learned) == set(weights) == set(expected)
    for name, array in learned.items():
        assert np.abs(array - weights_of(network(written, weights))[name]).max() > 1e-4, name
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


IN_ONNX_RUNTIME = ("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "SimplifiedLayerNormalization", "FusedMatMul")
"""Operators that its inference package has too."""


@pytest.mark.parametrize("operator", IN_ONNX_RUNTIME)
def test_the_meaning_of_an_operator_is_that_of_onnx_runtime(operator: str, tmp_path: Path) -> None:
    """The loss of one sample, which ONNX Runtime computes by the operator itself."""
    weights, written, _ = FORMS_AND_THEIR_MEANING[operator]
    model = network(written, weights)
    path, given = write_graph(model, tmp_path)
    x = np.random.default_rng(8).normal(size=(1, 4, 6)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(["loss"], {"x": x, "labels": np.array([1])})
    np.testing.assert_allclose(Run(path, weights=given).step(x, np.array([1])), [wanted], rtol=1e-5)


_MEAN = "loss = ReduceMean <keepdims = 0>"
_ONES = "one = Constant <value = float[1] {1.0}> () two = Constant <value = float {2.0}> ()"
_BCE = "s = Sigmoid (y) a1 = Log (s) a = Mul (a1, target) n = Sub (one, s) b1 = Log (n) m = Sub (one, target)"
LOSSES: dict[str, tuple[str, Callable[[Array, Array], Array], Callable[[Array, Array], Array]]] = {
    # as the tool writes it, the loss of each number, its derivative
    "MSELoss of Deeploy": (
        "loss = MSELoss (y, target)",
        lambda y, t: (y - t) ** 2,
        lambda y, t: 2 * (y - t),
    ),
    "MSELoss of the artifact generator": (
        f"d = Sub (y, target) p = Pow (d, two) {_MEAN} (p)",
        lambda y, t: (y - t) ** 2,
        lambda y, t: 2 * (y - t),
    ),
    "L1Loss": (
        f"d = Sub (y, target) p = Abs (d) {_MEAN} (p)",
        lambda y, t: np.abs(y - t),
        lambda y, t: np.sign(y - t),
    ),
    "BCEWithLogitsLoss": (
        f"{_BCE} b = Mul (b1, m) t = Add (a, b) g = Neg (t) {_MEAN} (g)",
        lambda y, t: np.log1p(np.exp(y)) - t * y,
        lambda y, t: 1 / (1 + np.exp(-y)) - t,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_with_targets(name: str, tmp_path: Path) -> None:
    """Means over all numbers, and a step of a layer by hand."""
    written, loss, derivative = LOSSES[name]
    head = '<ir_version: 8, opset_import: ["": 17]> net (float[1, 6] x, float[1, 5] target) => (float loss)'
    model = parser.parse_model(f"{head} {{ {_ONES} y = MatMul (x, w) {written} }}")
    w = drawn((6, 5))
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    path, given = write_graph(model, tmp_path)
    run, x, target = Run(path, weights=given, learning_rate=0.1), drawn((1, 6)), np.full((1, 5), 0.25, np.float32)
    y = x.astype(np.float64) @ w
    np.testing.assert_allclose(run.step(x, target), [loss(y, target).mean()], rtol=1e-5)
    expected = w - 0.1 * x.T @ derivative(y, target) / 5
    np.testing.assert_allclose(run.weights()["w"], expected, rtol=1e-5, atol=1e-6)


def test_every_operator_of_the_tables_is_tried_and_documented() -> None:
    page = (ROOT / "docs" / "training-graphs.md").read_text()
    for _, operator in (*FORMS, *REFUSED):
        assert f"`{operator}`" in page, operator
    assert {operator for _, operator in FORMS} <= {*FORMS_AND_THEIR_MEANING, "MSELoss"}


@pytest.mark.parametrize("operator", [operator for _, operator in REFUSED])
def test_what_is_refused_has_its_reason_in_the_first_line(operator: str, tmp_path: Path) -> None:
    path, given = write_graph(network(f"{_MM} h = {_MS}{operator} (a)", {"w": (6, 5), "fc": (3, 20)}), tmp_path)
    why = next(why for (_, name), (why, _) in REFUSED.items() if name == operator)
    with pytest.raises(CompileError, match=rf"E0231.*{operator} \(1 of 5 forward nodes\) {why}"):
        train_of(path, weights=given)


@pytest.mark.parametrize("operator", FORMS_AND_THEIR_MEANING)
def test_damaged_operators_are_errors_with_an_id(operator: str, tmp_path: Path) -> None:
    """Without inputs, with one, with further ones, and with attributes of other types."""
    weights, written, _ = FORMS_AND_THEIR_MEANING[operator]
    for damage in range(6):
        model = network(written, weights)
        node = next(node for node in model.graph.node if node.op_type == operator)
        if damage < 2:
            del node.input[damage:]
        elif damage == 2:
            node.input.extend(["w", "w", "w"])
        else:
            kinds: tuple[Any, ...] = ("text", 0.5, numpy_helper.from_array(np.zeros(2, np.float32)))
            names = [attribute.name for attribute in node.attribute] or ["axes"]
            del node.attribute[:]
            node.attribute.extend(helper.make_attribute(name, kinds[damage - 3]) for name in names)
        path, given = write_graph(model, tmp_path)
        try:
            train_of(path, weights=given)
        except CompileError:
            continue


def test_normalisation_in_training_mode_is_refused_as_onnx_runtime_writes_it(tmp_path: Path) -> None:
    body = "n, rm, rv = BatchNormalization <training_mode = 1> (x, g, b, m, v) h = Relu (n)"
    norm = dict.fromkeys(("g", "b", "m", "v"), (4,))
    path, given = write_graph(network(body, {**norm, "fc": (3, 24)}), tmp_path, ["fc"])
    with pytest.raises(CompileError, match=r"E0231.*mean and variance of the batch"):
        train_of(path, weights=given)


# ---- files of weights -----------------------------------------------------------------------------------------------

_SHAPES = {"w": (6, 5), "fc": (3, 20)}


def saved(folder: Path, **arrays: Array) -> tuple[Path, Path]:
    """A graph with weights w and fc, and a file with these arrays."""
    path, given = write_graph(network(f"{_MM} h = Relu (a)", _SHAPES), folder)
    np.savez(given, allow_pickle=False, **arrays)
    return path, given


def drawn(shape: tuple[int, ...]) -> Array:
    """Random numbers."""
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def test_weights_by_position(tmp_path: Path) -> None:
    """Inputs are counted without accumulators; those in front of the first weight are samples, not weights."""
    w, fc = drawn((6, 5)), drawn((3, 20))
    more = {"arr_0004": np.array([True]), "mb1_arr_0000": drawn((1, 4, 6)), "meta_n_batches": np.array([2])}
    arrays = {"arr_0000": drawn((1, 4, 6)), "arr_0001": np.array([2]), "arr_0002": w, "arr_0003": fc}
    path, given = saved(tmp_path, **arrays, **more)
    constants = train_of(path, weights=given).graph.constants
    np.testing.assert_array_equal(constants["w"], w.T)
    np.testing.assert_array_equal(constants["fc"], fc)
    np.savez(given, drawn((1, 4, 6)), np.array([2]), w, fc)  # numpy's own names: arr_0 and so on
    np.testing.assert_array_equal(train_of(path, weights=given).graph.constants["fc"], fc)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"w": (6, 5)}, r"weights\.npz has no weight fc"),
        ({"w": (6, 5), "fc": (20, 3)}, r"weight fc: its values have shape \[20, 3\], the model wants \[3, 20\]"),
        ({"w": (6, 5), "fc": (3, 20), "fc2": (1,)}, r"holds fc2, and the model has no such input; its inputs are: x"),
        ({"arr_2": (6, 5)}, r"weights\.npz has no weight fc"),
        ({"arr_2": (6, 5), "arr_3": (20, 3)}, r"weight fc \(arr_3\): its values have shape \[20, 3\]"),
        ({"arr_2": (6, 5), "arr_3": (3, 20), "arr_9": (1,)}, r"holds arr_9, and the model has no such input"),
        ({"other": (1,)}, r"holds other, and the model has no such input"),
    ],
)
def test_files_of_weights_that_do_not_fit(arrays: dict[str, tuple[int, ...]], said: str, tmp_path: Path) -> None:
    path, given = saved(tmp_path, **{name: drawn(shape) for name, shape in arrays.items()})
    with pytest.raises(CompileError, match=rf"E0231.*{said}"):
        train_of(path, weights=given)


def test_weights_of_another_kind(tmp_path: Path) -> None:
    path, given = saved(tmp_path, w=drawn((6, 5)), fc=np.ones((3, 20), np.int64))
    with pytest.raises(CompileError, match=r"E0231.*weight fc: its values are int64, the model wants float32"):
        train_of(path, weights=given)
    given.write_bytes(b"no archive")
    with pytest.raises(CompileError, match=r"E0105.*weights\.npz"):
        train_of(path, weights=given)


def test_weights_in_other_floats(tmp_path: Path) -> None:
    """Numbers are of the type that the graph declares; one that is too large for it is an error."""
    w, fc = drawn((6, 5)).astype(np.float64), drawn((3, 20)).astype(np.float16)
    path, given = saved(tmp_path, w=w, fc=fc)
    train = train_of(path, weights=given)
    np.testing.assert_array_equal(train.graph.constants["fc"], fc.astype(np.float32))
    assert not any("float64" in note for note in train.graph.notes)
    path, given = saved(tmp_path, w=w * 1e300, fc=fc)
    with pytest.raises(CompileError, match=r"E0225.*weight w"):
        train_of(path, weights=given)


def test_a_frozen_weight_is_an_input_without_an_accumulator(tmp_path: Path) -> None:
    model = network(f"{_MM} h = Relu (a)", _SHAPES)
    path, given = write_graph(model, tmp_path, ["fc"])
    assert {value.name for value, _ in train_of(path, weights=given).graph.updates} == {"fc"}


# ---- optimizers -----------------------------------------------------------------------------------------------------


def sgd(rates: dict[str, float], **more: Any) -> onnx.ModelProto:
    """An optimizer graph as Deeploy writes it: a node for each weight."""
    nodes = [
        helper.make_node("SGD", [name, f"{name}_grad"], [f"{name}_new"], lr=lr, **more) for name, lr in rates.items()
    ]
    outs = [helper.make_tensor_value_info(f"{name}_new", TensorProto.FLOAT, None) for name in rates]
    return helper.make_model(helper.make_graph(nodes, "optimizer", [], outs))


def test_the_learning_rate_of_optimizer_onnx(tmp_path: Path) -> None:
    path, given = write_graph(network(f"{_MM} h = Relu (a)", _SHAPES), tmp_path)
    (tmp_path / "optimizer.onnx").write_bytes(sgd({"w": 0.25, "fc": 0.25}).SerializeToString())
    train = train_of(path, weights=given)
    assert float(train.graph.constants[train.learning_rate.name]) == 0.25
    with pytest.raises(CompileError, match=r"E0113.*--optimizer.*says how it is trained"):
        train_of(path, weights=given, optimizer="adam")


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (sgd({"w": 0.25, "fc": 0.5}), "learning rates of their own"),
        (sgd({"w": 0.25}), "weight fc has an accumulator or an update"),
        (sgd({"w": 0.25, "fc": 0.25}, momentum=0.9), "SGD has momentum"),
    ],
)
def test_optimizers_that_are_refused(optimizer: onnx.ModelProto, said: str, tmp_path: Path) -> None:
    path, given = write_graph(network(f"{_MM} h = Relu (a)", _SHAPES), tmp_path)
    (tmp_path / "optimizer.onnx").write_bytes(optimizer.SerializeToString())
    with pytest.raises(CompileError, match=rf"E0231.*{said}"):
        train_of(path, weights=given)


def test_weights_of_an_ordinary_model_are_no_option(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(network(f"{_MM} h = Relu (a)", _SHAPES).SerializeToString())
    with pytest.raises(CompileError, match=r"E0113.*--weights.*gradient nodes"):
        train_of(path, weights=tmp_path / "w.npz")
