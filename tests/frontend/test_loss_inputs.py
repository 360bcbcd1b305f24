"""Losses of several inputs, without labels, and with labels that are used twice: trained as the file says.

The oracle is onnx.reference in float64 on the file with all samples of a batch at once, gradients by central
differences; it shares no code with the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.file_training import wide
from tests.frontend.models import parse, write
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model
from tinytrain_compile.ir.records import packed
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training.build import build_training
from tinytrain_compile.training.optimizer import TrainingOptions

RATE, STEP, CLASSES = 0.2, 1e-5, 4
MEAN, SUM, SQUARE = "loss = ReduceMean <keepdims = 0> ", "loss = ReduceSum <keepdims = 0> ", "s = Mul (e, e) "
AX = "ax = Constant <value_ints = [1]> () "
ONE = "one = Constant <value_float = 1.0> () "
MARGIN = "m = Constant <value_float = 0.3> () "
HIDDEN = "g = Gemm <transB = 1> (x, w1, b1) h = Relu (g) "
BODY = f"{HIDDEN} y = Gemm <transB = 1> (h, w2, b2) "
LOG = "lp = LogSoftmax <axis = 1> (y) "
HOT = "d = Constant <value_int = 4> () v = Constant <value_floats = [0.0, 1.0]> () o = OneHot <axis = 1> (t, d, v) "
INTEGER_HOT = (
    HOT.replace("value_floats = [0.0, 1.0]", "value_ints = [0, 1]").replace("o =", "i =") + "o = Cast <to = 1> (i) "
)
EQUAL = (
    f"c = Constant <value_ints = [0, 1, 2, 3]> () {AX} u = Unsqueeze (t, ax) q = Equal (c, u) o = Cast <to = 1> (q) "
)
TRUTH = HOT.replace("o = OneHot", "f = OneHot") + "q = Cast <to = 9> (f) "
HINGE = (
    "yo = Mul (y, o) cy = ReduceSum <keepdims = 1> (yo, ax) df = Sub (y, cy) dm = Add (df, one) "
    f"rl = Relu (dm) no = Sub (one, o) mm = Mul (rl, no) {MEAN} (mm) "
)
VALUE = f"r = Gemm <transB = 1> (h, w3, b3) f = Cast <to = 1> (t) {AX} fu = Unsqueeze (f, ax) e = Sub (r, fu) {SQUARE}"
TOWERS = "p = Gemm <transB = 1> (x, w1, b1) n = Gemm <transB = 1> (z, w1, b1) e = Sub (p, n) "
DECODED = "g = Gemm <transB = 1> (x, w1, b1) h = Relu (g) k = Gemm <transB = 1> (h, wd) y = Add (k, bd) e = Sub (y, x) "
CE = "SoftmaxCrossEntropyLoss"
CLASS, SOFT = "int64[N] t", "float[N, 4] t"

FORMS: dict[str, tuple[str, str, str]] = {
    # name: inputs besides x, nodes, the label
    "autoencoder": ("", f"{DECODED} {SQUARE} {MEAN} (s)", ""),
    "autoencoder with l1": ("", f"{DECODED} s = Abs (e) {MEAN} (s)", ""),
    "entropy": ("", f"{BODY} {LOG} p = Exp (lp) e = Mul (p, lp) n = Neg (e) {SUM} (n)", ""),
    "siamese": ("float[N, 5] z", f"{TOWERS} {SQUARE} {MEAN} (s)", ""),
    "triplet": (
        "float[N, 5] z, float[N, 5] k",
        f"{TOWERS} {SQUARE} {AX} l = Gemm <transB = 1> (k, w1, b1) e2 = Sub (p, l) s2 = Mul (e2, e2) {ONE} "
        f"a = ReduceSum <keepdims = 0> (s, ax) c = ReduceSum <keepdims = 0> (s2, ax) j = Sub (a, c) i = Add (j, one) "
        f"q = Relu (i) {MEAN} (q)",
        "",
    ),
    "contrastive": (
        "float[N, 5] z, float[N] t",
        f"{TOWERS} {SQUARE} {AX} {ONE} a = ReduceSum <keepdims = 0> (s, ax) td = Mul (t, a) r = Sqrt (a) "
        f"i = Sub (one, r) q = Relu (i) q2 = Mul (q, q) nt = Sub (one, t) k = Mul (nt, q2) l = Add (td, k) {MEAN} (l)",
        "t",
    ),
    "two kinds of labels": (
        f"{CLASS}, float[N, 1] box",
        f"{BODY} r = Gemm <transB = 1> (h, w3, b3) e = Sub (r, box) {SQUARE} a = ReduceMean <keepdims = 0> (s) "
        f"c = {CE} (y, t) loss = Add (a, c)",
        "t",
    ),
    "distillation": (
        f"{CLASS}, float[N, 4] teacher",
        f"{BODY} c = {CE} (y, t) {LOG} p = Softmax <axis = 1> (teacher) {AX} m = Mul (p, lp) "
        "i = ReduceSum <keepdims = 0> (m, ax) j = ReduceMean <keepdims = 0> (i) loss = Sub (c, j)",
        "t",
    ),
    "soft labels": (SOFT, f"{BODY} {LOG} m = Mul (t, lp) n = Neg (m) {SUM} (n)", "t"),
    "divergence": (
        SOFT,
        f"{BODY} {LOG} a = Log (t) i = IsNaN (t) b = Mul (t, a) c = Where (i, t, b) m = Mul (t, lp) "
        f"e = Sub (c, m) {SUM} (e)",
        "t",
    ),
    "class and value": (
        CLASS,
        f"{BODY} {VALUE} a = ReduceMean <keepdims = 0> (s) c = {CE} (y, t) loss = Add (a, c)",
        "t",
    ),
    "value of a class": (CLASS, f"{HIDDEN} {VALUE} {MEAN} (s)", "t"),
    "margin at the class": (CLASS, f"{BODY} {HOT} {MARGIN} k = Mul (m, o) z = Sub (y, k) loss = {CE} (z, t)", "t"),
    "margin by Where": (CLASS, f"{BODY} {TRUTH} {MARGIN} k = Sub (y, m) z = Where (q, k, y) loss = {CE} (z, t)", "t"),
    "hinge by OneHot": (CLASS, f"{BODY} {HOT} {ONE} {AX} {HINGE}", "t"),
    "hinge by integers": (CLASS, f"{BODY} {INTEGER_HOT} {ONE} {AX} {HINGE}", "t"),
    "hinge by Equal": (CLASS, f"{BODY} {EQUAL} {ONE} {HINGE}", "t"),
}
TRAINED = ("w1", "b1", "w2", "b2", "w3", "b3", "wd", "bd")


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = ((6, 5), (6,), (4, 6), (4,), (1, 6), (1,), (5, 6), (5,))
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in zip(TRAINED, shapes, strict=True)}


def net(inputs: str, text: str) -> onnx.ModelProto:
    known = {name: data for name, data in weights().items() if re.search(rf"\b{name}\b", text)}
    return parse(f"net (float[N, 5] x{inputs and ', '}{inputs}) => (float loss) {{ {text} }}", known)


def data(model: onnx.ModelProto, count: int) -> dict[str, np.ndarray]:
    """Samples of every input: classes, probabilities where a logarithm is taken of them, else normal numbers."""
    rng, found = np.random.default_rng(11), dict[str, np.ndarray]()
    logs = {node.input[0] for node in model.graph.node if node.op_type == "Log"}
    for value in model.graph.input:
        shape = (count, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        if value.type.tensor_type.elem_type == TensorProto.INT64:
            found[value.name] = rng.integers(0, CLASSES, shape)
            continue
        found[value.name] = rng.normal(size=shape).astype(np.float32)
        if value.name in logs:
            found[value.name] = rng.dirichlet(np.ones(CLASSES), count).astype(np.float32)
    return found


class Oracle:
    """Plain SGD on the file's own weights."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.weights: dict[str, np.ndarray] = {}
        graph = onnx.ModelProto.FromString(model.SerializeToString())
        for tensor in graph.graph.initializer:
            self.weights[tensor.name] = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(self.weights[tensor.name], tensor.name))
        for node in graph.graph.node:
            wide(node)
        for name in self.weights:
            graph.graph.input.append(onnx.helper.make_empty_tensor_value_info(name))
        del graph.graph.initializer[:]
        self._run = ReferenceEvaluator(graph)

    def loss(self, feeds: Mapping[str, np.ndarray]) -> float:
        wide_feeds = {n: a if a.dtype.kind == "i" else a.astype(np.float64) for n, a in feeds.items()}
        return float(self._run.run(None, {**wide_feeds, **self.weights})[0])

    def step(self, feeds: Mapping[str, np.ndarray]) -> float:
        before, gradients = self.loss(feeds), dict[str, np.ndarray]()
        for name, weight in self.weights.items():
            gradients[name] = np.zeros(weight.shape)
            for place in np.ndindex(weight.shape):
                kept, ends = weight[place], list[float]()
                for sign in (1, -1):
                    weight[place] = kept + sign * STEP
                    ends.append(self.loss(feeds))
                weight[place] = kept
                gradients[name][place] = (ends[0] - ends[1]) / (2 * STEP)
        for name in self.weights:
            self.weights[name] = self.weights[name] - RATE * gradients[name]
        return before


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_training_is_that_of_the_file(form: str, batch: int, tmp_path: Path) -> None:
    inputs, text, label = FORMS[form]
    model = net(inputs, text)
    imported = load_model(write(model, tmp_path))
    assert imported.loss is not None
    if batch > 1 and imported.loss.reduction == "other":
        pytest.skip("the loss of a batch does not follow from those of its samples")
    names = [value.name for value in model.graph.input]
    assert (imported.loss.label, [one.name for one in imported.data]) == (label, [n for n in names if n != label])
    options = TrainingOptions(learning_rate=RATE, batch=batch)
    train = build_training(imported, resolve_update(imported.graph, "all"), options)
    ours, oracle, samples = Trainer(train), Oracle(model), data(model, 2 * batch)
    x = packed({one.name: samples[one.name] for one in imported.data})
    y = samples[label] if label else np.zeros((2 * batch, 1))
    y = y.astype(np.int32 if train.label.dtype == "int32" else np.float32)
    for start in range(0, 2 * batch, batch):
        part = slice(start, start + batch)
        expected = oracle.step({name: array[part] for name, array in samples.items()})
        found = ours.step(x[part], y[part])
        joined = np.sum(found) if imported.loss.reduction == "sum" else np.mean(found)
        np.testing.assert_allclose(joined, expected, rtol=2e-5)
        for name, weight in oracle.weights.items():
            np.testing.assert_allclose(ours.state[name], weight, rtol=2e-4, atol=5e-6, err_msg=f"{name}, {start}")


def test_every_weight_of_a_loss_without_labels_is_trained(tmp_path: Path) -> None:
    """An autoencoder's inference is what it makes of its input, a siamese network's the first embedding."""
    decoder = load_model(write(net(*FORMS["autoencoder"][:2]), tmp_path))
    assert decoder.output_name == "y"
    assert {value.name for value in decoder.graph.parameters} == {"w1", "b1", "wd", "bd"}
    assert load_model(write(net(*FORMS["siamese"][:2]), tmp_path)).output_name == "p"


def test_a_number_for_each_sample_is_no_loss(tmp_path: Path) -> None:
    text = f"{BODY} loss = ReduceMean <axes = [1], keepdims = 0> (y)"
    model = parse(f"net (float[N, 5] x) => (float[N] loss) {{ {text} }}", {n: weights()[n] for n in TRAINED[:4]})
    assert load_model(write(model, tmp_path)).loss is None


def test_axes_that_a_constant_node_holds_as_a_tensor(tmp_path: Path) -> None:
    """Since opset 18 a ReduceMean reads its axes, here all of them: the file ends in its own loss."""
    text = f"{DECODED} {SQUARE} ax = Constant <value = int64[2] {{0, 1}}> () {MEAN} (s, ax)"
    known = {name: weights()[name] for name in ("w1", "b1", "wd", "bd")}
    model = parse(f"net (float[1, 5] x) => (float loss) {{ {text} }}", known, opset=18)
    imported = load_model(write(model, tmp_path))
    assert imported.loss is not None and imported.output_name == "y"


def test_two_inputs_that_may_both_be_labels_are_asked_about(tmp_path: Path) -> None:
    text = f"{BODY} e = Sub (y, t) {SQUARE} k = Mul (s, c) {MEAN} (k)"
    with pytest.raises(CompileError, match=r"E0209\]: inputs: t, c reach no layer.*--label"):
        load_model(write(net("float[N, 4] t, float[N, 4] c", text), tmp_path))
