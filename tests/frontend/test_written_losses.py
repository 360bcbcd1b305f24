"""Losses that a file writes out: what is trained is the loss of the file, for one sample and for a batch.

The oracle is onnx.reference in float64 on the file with all samples of a batch at once, gradients by central
differences; it shares no code with the compiler.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.file_training import wide
from tests.frontend.models import parse, write
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import SamplesMixError
from tinytrain_compile.training.build import build_training
from tinytrain_compile.training.optimizer import TrainingOptions

RATE, STEP = 0.2, 1e-5
INDICES, NUMBERS, COUNTS = "int64[N] t", "float[N, 4] t", "int64[N, 4] t"
BODY = "h = Gemm <transB = 1> (x, w1, b1) a = Relu (h) y = Gemm <transB = 1> (a, w2, b2)"
LOG = "lp = LogSoftmax <axis = 1> (y) "
MEAN = "loss = ReduceMean <keepdims = 0> "
SUM = "loss = ReduceSum <keepdims = 0> "
HOT = "d = Constant <value_int = 4> () v = Constant <value_floats = [0.0, 1.0]> () o = OneHot <axis = 1> (t, d, v) "
ONE = "one = Constant <value_float = 1.0> () "
PICK = "ax = Constant <value_ints = [1]> () u = Unsqueeze (t, ax) g = GatherElements <axis = 1> (lp, u) n = Neg (g) "
BINARY = (
    f"{ONE} p = Sigmoid (y) q = Sub (one, p) r = Sub (one, t) lp = Log (p) lq = Log (q) "
    "m1 = Mul (t, lp) m2 = Mul (r, lq) s = Add (m1, m2) n = Neg (s) "
)
ENTROPY = "l = SoftmaxCrossEntropyLoss (y, t) "
HUBER = (
    "e = Sub (y, t) z = Abs (e) b = Constant <value_float = 0.7> () hb = Constant <value_float = 0.35> () "
    "c = Less (z, b) zz = Mul (z, z) k = Constant <value_float = 0.5> () q1 = Mul (zz, k) q = Div (q1, b) "
    "f = Sub (z, hb) s = Where (c, q, f) "
)
PENALTY = "c = Constant <value_float = 0.05> () ww = Mul (w1, w1) r = ReduceSum <keepdims = 0> (ww) rc = Mul (r, c) "

FORMS: dict[str, tuple[str, str, str]] = {
    "gather elements": (INDICES, f"{LOG} {PICK} {MEAN} (n)", "nll"),
    "gather elements, summed": (INDICES, f"{LOG} {PICK} {SUM} (n)", "nll"),
    "minus behind the mean": (INDICES, f"{LOG} {PICK} m = ReduceMean <keepdims = 0> (g) loss = Neg (m)", "nll"),
    "one-hot": (
        INDICES,
        f"{LOG} {HOT} m = Mul (o, lp) s = ReduceSum <keepdims = 0> (m, k) n = Neg (s) {MEAN} (n)".replace(
            "s = ReduceSum", "k = Constant <value_ints = [1]> () s = ReduceSum"
        ),
        "nll",
    ),
    "smoothed one-hot": (
        INDICES,
        f"{LOG} {HOT.replace('0.0, 1.0', '0.1, 0.7')} m = Mul (o, lp) n = Neg (m) {MEAN} (n)",
        "written",
    ),
    "mse": (NUMBERS, f"e = Sub (y, t) s = Mul (e, e) {MEAN} (s)", "mse"),
    "mse by a power": (NUMBERS, f"e = Sub (t, y) p = Constant <value_float = 2.0> () s = Pow (e, p) {MEAN} (s)", "mse"),
    "sum of squares": (NUMBERS, f"e = Sub (y, t) s = Mul (e, e) {SUM} (s)", "written"),
    "l1": (NUMBERS, f"e = Sub (y, t) s = Abs (e) {MEAN} (s)", "written"),
    "huber": (NUMBERS, f"{HUBER} {MEAN} (s)", "written"),
    "bce of probabilities": (NUMBERS, f"{BINARY} {MEAN} (n)", "bce"),
    "bce of logits": (NUMBERS, f"s = Softplus (y) m = Mul (y, t) e = Sub (s, m) {MEAN} (e)", "written"),
    "bce with integer labels": (
        COUNTS,
        f"f = Cast <to = 1> (t) s = Softplus (y) m = Mul (y, f) e = Sub (s, m) {MEAN} (e)",
        "written",
    ),
    "scaled": (INDICES, f"{ENTROPY} c = Constant <value_float = 0.5> () loss = Mul (l, c)", "written"),
    "through identity": (INDICES, f"{ENTROPY} loss = Identity (l)", "softmax-ce"),
    "penalty": (INDICES, f"{ENTROPY} {PENALTY} loss = Add (l, rc)", "written"),
    "penalty in front": (INDICES, f"{PENALTY} {ENTROPY} loss = Add (rc, l)", "written"),
    "two terms": (NUMBERS, f"e = Sub (y, t) s = Mul (e, e) z = Abs (e) f = Max (z, s) {MEAN} (f)", "written"),
}  # fmt: skip


def net(labels: str, loss: str, beside: str = "") -> onnx.ModelProto:
    random = np.random.default_rng(2)
    shapes = {"w1": (8, 6), "b1": (8,), "w2": (4, 8), "b2": (4,)}
    weights = {name: random.standard_normal(shape).astype(np.float32) * 0.5 for name, shape in shapes.items()}
    return parse(f"net (float[N, 6] x, {labels}) => (float loss{beside}) {{ {BODY} {loss} }}", weights)


def data(labels: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    x = random.standard_normal((count, 6)).astype(np.float32)
    if labels == INDICES:
        return x, random.integers(0, 4, count)
    y = random.random((count, 4)).astype(np.float32)
    return x, (y > 0.5).astype(np.int64) if labels == COUNTS else y


class Oracle:
    """The loss of the file in float64, its weights trained by gradient descent on it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        made = onnx.ModelProto()
        made.CopyFrom(model)
        self.weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in made.graph.initializer}
        del made.graph.initializer[:]
        for name, array in self.weights.items():
            made.graph.input.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, array.shape))
        for node in list(made.graph.node):
            wide(node)
        self._evaluator = ReferenceEvaluator(made)

    def loss(self, x: np.ndarray, t: np.ndarray) -> float:
        t = t.astype(np.float64) if t.dtype == np.float32 else t
        feeds = {"x": x.astype(np.float64), "t": t, **self.weights}
        (found,) = self._evaluator.run(["loss"], feeds)  # pyright: ignore[reportUnknownMemberType]
        return float(np.asarray(found).reshape(()))

    def step(self, x: np.ndarray, t: np.ndarray) -> float:
        before = self.loss(x, t)
        gradients = {name: self._gradient(array, x, t) for name, array in self.weights.items()}
        for name, gradient in gradients.items():
            self.weights[name] -= RATE * gradient
        return before

    def _gradient(self, weight: np.ndarray, x: np.ndarray, t: np.ndarray) -> np.ndarray:
        gradient = np.zeros(weight.shape)
        for place in np.ndindex(weight.shape):
            kept, ends = weight[place], list[float]()
            for sign in (1, -1):
                weight[place] = kept + sign * STEP
                ends.append(self.loss(x, t))
            weight[place] = kept
            gradient[place] = (ends[0] - ends[1]) / (2 * STEP)
        return gradient


def trainer(path: Path, batch: int = 1, **more: object) -> Trainer:
    imported = load_model(path)
    options = TrainingOptions(learning_rate=RATE, batch=batch, **more)  # type: ignore[arg-type]
    return Trainer(build_training(imported, resolve_update(imported.graph, "all"), options))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_training_is_that_of_the_file(form: str, batch: int, tmp_path: Path) -> None:
    labels, text, kind = FORMS[form]
    model = net(labels, text)
    path = write(model, tmp_path)
    imported = load_model(path)
    assert imported.loss is not None
    assert (imported.contract, imported.loss.kind, imported.loss.label) == (2, kind, "t")
    ours, oracle = trainer(path, batch), Oracle(model)
    x, t = data(labels, 3 * batch)
    indices = t.astype(np.int32 if labels == INDICES else np.float32)
    for start in range(0, 3 * batch, batch):
        part = slice(start, start + batch)
        expected = oracle.step(x[part], t[part])
        found = ours.step(x[part], indices[part])
        joined = np.sum(found) if imported.loss.reduction == "sum" else np.mean(found)
        np.testing.assert_allclose(joined, expected, rtol=2e-5)
        for name, weight in oracle.weights.items():
            np.testing.assert_allclose(ours.state[name], weight, rtol=2e-4, atol=5e-6, err_msg=f"{name}, {start}")


@pytest.mark.parametrize("form", ["gather elements", "smoothed one-hot", "huber", "bce of probabilities", "penalty"])
def test_the_file_and_the_c_code_agree(form: str, tmp_path: Path) -> None:
    labels, text, _ = FORMS[form]
    options = CompileOptions(write(net(labels, text), tmp_path), out=tmp_path / "out", verify="host")
    summary = compile_model(options).summary
    assert summary is not None
    assert summary.verify.result == "pass"
    assert summary.verify.file is not None
    assert summary.verify.file.whole


@pytest.mark.parametrize("form", ["gather elements", "mse", "huber", "smoothed one-hot", "scaled"])
def test_losses_in_nodes_are_float_regions_of_int8(form: str, tmp_path: Path) -> None:
    """The integer graph against the file (onnx.reference) and the C code, byte for byte."""
    labels, text, _ = FORMS[form]
    np.savez(tmp_path / "calib.npz", x=data(labels, 20)[0])
    options = CompileOptions(
        write(net(labels, text), tmp_path),
        out=tmp_path / "o",
        verify="host",
        quant="int8",
        calib=tmp_path / "calib.npz",
    )
    summary = compile_model(options).summary
    assert summary is not None
    assert summary.verify.result == "pass"


def test_int8_refuses_a_penalty(tmp_path: Path) -> None:
    labels, text, _ = FORMS["penalty"]
    np.savez(tmp_path / "calib.npz", x=data(labels, 20)[0])
    path = write(net(labels, text), tmp_path)
    with pytest.raises(CompileError, match=r"E0113.*penalty"):
        compile_model(CompileOptions(path, out=tmp_path / "o", quant="int8", calib=tmp_path / "calib.npz"))


def test_a_penalty_needs_the_whole_weight(tmp_path: Path) -> None:
    """Channels of a weight that the loss reads itself cannot be trained alone."""
    labels, text, _ = FORMS["penalty"]
    scheme = tmp_path / "scheme.toml"
    scheme.write_text('[[update]]\nlayer = "Gemm_h"\nweight = 3\naxis = "out"\n')
    options = CompileOptions(write(net(labels, text), tmp_path), out=tmp_path / "o", update=str(scheme), verify="none")
    with pytest.raises(CompileError, match=r"E0302.*read by the loss"):
        compile_model(options)


def test_outputs_beside_the_loss_are_what_an_inference_gives(tmp_path: Path) -> None:
    """Logits or log-probabilities; without them the last tensor that all of the loss reads."""
    labels, text, _ = FORMS["gather elements"]
    beside = load_model(write(net(labels, text, ", float[N, 4] y"), tmp_path))
    assert (beside.output_name, beside.loss and beside.loss.kind) == ("y", "softmax-ce")
    alone = load_model(write(net(labels, text), tmp_path))
    assert alone.output_name == "lp"
    binary = FORMS["bce of probabilities"]
    assert load_model(write(net(*binary[:2]), tmp_path)).output_name == "p"
    operator = "loss, q = SoftmaxCrossEntropyLoss (y, t)"
    entropy = load_model(write(net(INDICES, operator, ", float[N, 4] q"), tmp_path))
    assert (entropy.output_name, entropy.loss and entropy.loss.kind) == ("y", "softmax-ce")
    assert "outputs beside the loss: m_infer gives y, not q" in entropy.graph.notes


def test_a_loss_that_is_no_mean_has_no_batch(tmp_path: Path) -> None:
    """The root of a mean: only sample by sample, which --accumulate inplace is."""
    text = "e = Sub (y, t) s = Mul (e, e) m = ReduceMean <keepdims = 0> (s) loss = Sqrt (m)"
    path = write(net(NUMBERS, text), tmp_path)
    with pytest.raises(CompileError, match=r"E0304.*no mean or sum over samples"):
        trainer(path, batch=2)
    x, t = data(NUMBERS, 2)
    oracle = Oracle(net(NUMBERS, text))
    assert trainer(path, batch=2, accumulate="inplace").step(x[:1], t[:1]) == pytest.approx([oracle.loss(x[:1], t[:1])])


def test_a_penalty_on_a_sum_has_no_batch(tmp_path: Path) -> None:
    """It counts once for a batch, and not with every sample."""
    text = f'l = SoftmaxCrossEntropyLoss <reduction = "sum"> (y, t) {PENALTY} loss = Add (l, rc)'
    with pytest.raises(CompileError, match=r"E0304"):
        trainer(write(net(INDICES, text), tmp_path), batch=2)


def test_nodes_of_a_loss_are_for_one_sample(tmp_path: Path) -> None:
    labels, text, _ = FORMS["huber"]
    with pytest.raises(SamplesMixError, match="nodes of the model"):
        trainer(write(net(labels, text), tmp_path), batch=2, micro_batch=2)


def test_two_inputs_that_reach_layers_are_no_labels(tmp_path: Path) -> None:
    """Both are data, and the loss has no labels."""
    means = "e = ReduceMean <keepdims = 0> (u) f = ReduceMean <keepdims = 0> (y)"
    text = f"u = Gemm <transB = 1> (t, w2) {means} loss = Sub (e, f)"
    imported = load_model(write(net("float[N, 8] t", text), tmp_path))
    assert ([one.name for one in imported.data], imported.loss and imported.loss.label) == (["x", "t"], "")


def test_a_row_of_one_number_is_no_loss(tmp_path: Path) -> None:
    """A regression with a factor as second input: no reduction, so no loss, and both are data."""
    weights = {"w": np.ones((1, 3), np.float32)}
    text = "net (float[1, 3] x, float[1, 1] f) => (float[1, 1] y) { g = Gemm <transB = 1> (x, w) y = Mul (g, f) }"
    imported = load_model(write(parse(text, weights), tmp_path))
    assert ([one.name for one in imported.data], imported.loss) == (["x", "f"], None)


def test_labels_beside_indices_of_a_table(tmp_path: Path) -> None:
    """Two inputs of integers: the one that looks up a table is no label."""
    weights = {"e": np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)}
    weights["w"] = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    body = "v = Gather (e, x) m = ReduceMean <axes = [1], keepdims = 0> (v) y = Gemm <transB = 1> (m, w)"
    text = f"net (int64[1, 5] x, int64[1] t) => (float loss) {{ {body} {LOG} {PICK} {MEAN} (n) }}"
    imported = load_model(write(parse(text, weights), tmp_path))
    assert (imported.input_name, imported.loss and imported.loss.kind) == ("x", "nll")


def test_a_label_that_is_named(tmp_path: Path) -> None:
    """Of two inputs that reach no layer, --label says which holds the labels."""
    weights = {"w": np.asarray([[0.5, -1.0, 2.0]], np.float32)}
    text = "net (float[N, 3] x, float[N, 3] t) => (float loss) { y = Mul (x, w) e = Sub (y, t) s = Mul (e, e) %s (s) }"
    path = write(parse(text % MEAN, weights), tmp_path)
    with pytest.raises(CompileError, match=r"E0209"):
        load_model(path)
    imported = load_model(path, FrontendOptions(label="t"))
    assert (imported.input_name, imported.loss and imported.loss.kind) == ("x", "mse")
