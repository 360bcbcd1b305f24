"""A model whose own loss reads several tensors of it trains all of its weights, and no number of the loss.

The oracle is the file itself: central differences of its loss (onnx.reference, float64) along random directions of each
initializer. It shares no code with the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.frontend.models import parse, write
from tests.frontend.test_written_losses import Oracle
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training.build import build_training
from tinytrain_compile.training.optimizer import TrainingOptions

RATE, STEP = 0.1, 1e-5
INDICES, NUMBERS = "int64[N] t", "float[N, 4] t"
DENSE = {"w1": (8, 6), "b1": (8,), "w2": (8, 8), "b2": (8,), "w3": (4, 8), "b3": (4,), "v1": (4, 8), "v2": (4, 8)}
HIDDEN = "g1 = Gemm <transB = 1> (x, w1, b1) h = Sigmoid (g1) "
SECOND = "g2 = Gemm <transB = 1> (h, w2, b2) h2 = Relu (g2) "
MAIN = f"{HIDDEN} {SECOND} y = Gemm <transB = 1> (h2, w3, b3) "
CE = "l = SoftmaxCrossEntropyLoss (y, t) "
AUX = "a = Gemm <transB = 1> (h, v1) la = SoftmaxCrossEntropyLoss (a, t) k = Constant <value_float = 0.3> () "
EACH = 'l = SoftmaxCrossEntropyLoss <reduction = "none">'
SQUARES = "e = Sub (y, t) ee = Mul (e, e) l = ReduceMean <keepdims = 0> (ee) "
HALVED = "c2 = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (r1, k2) "
TWICE = "s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> () "
NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
TWO = "two = Constant <value_float = 2.0> () "


@dataclass(frozen=True)
class Fork:
    """labels, beside: inputs and outputs besides x and the loss; output: which tensor an inference gives.

    numbers: initializers that are no parameters.
    """

    labels: str
    body: str
    output: str
    weights: dict[str, tuple[int, ...]] = field(default_factory=lambda: DENSE)
    beside: str = ""
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    x: str = "float[N, 6] x"


FORKS = {
    "an auxiliary head": Fork(INDICES, f"{MAIN} {CE} {AUX} ka = Mul (la, k) loss = Add (l, ka)", "y"),
    "the auxiliary head first in the file": Fork(
        INDICES,
        f"{HIDDEN} {AUX} {SECOND} y = Gemm <transB = 1> (h2, w3, b3) {CE} ka = Mul (la, k) loss = Add (ka, l)",
        "y",
    ),
    "heads at three depths": Fork(
        INDICES,
        f"{MAIN} {CE} {AUX} b = Gemm <transB = 1> (h2, v2) c = Gemm <transB = 1> (x, v3) "
        "lb = SoftmaxCrossEntropyLoss (b, t) lc = SoftmaxCrossEntropyLoss (c, t) "
        "ka = Mul (la, k) kb = Mul (lb, k) kc = Div (lc, k) s = Sum (ka, kb, l) loss = Add (s, kc)",
        "y",
        {**DENSE, "v3": (4, 6)},
    ),
    "heads without a layer in common": Fork(
        INDICES,
        f"{MAIN} {CE} c = Gemm <transB = 1> (x, v3) lc = SoftmaxCrossEntropyLoss (c, t) loss = Add (lc, l)",
        "y",
        {**DENSE, "v3": (4, 6)},
    ),
    "a penalty on a hidden activation": Fork(
        NUMBERS,
        f"{MAIN} {SQUARES} z = Abs (h) m = ReduceMean <keepdims = 0> (z) k = Constant <value_float = 0.5> () "
        "p = Mul (m, k) loss = Add (l, p)",
        "y",
    ),
    "sparse hidden activations, by numbers of the loss": Fork(
        NUMBERS,
        f"{MAIN} {SQUARES} q = Div (rho, h) lq = Log (q) pq = Mul (rho, lq) m = ReduceMean <keepdims = 0> (pq) "
        "p = Mul (m, lam) loss = Add (l, p)",
        "y",
        numbers={"rho": 0.2, "lam": 0.7},
    ),
    "orthogonal features": Fork(
        INDICES,
        f"{MAIN} {CE} ht = Transpose <perm = [1, 0]> (h) g = MatMul (ht, h) d = Sub (g, eye) dd = Mul (d, d) "
        "m = ReduceMean <keepdims = 0> (dd) loss = Add (l, m)",
        "y",
        numbers={"eye": 1.0},
    ),
    "two heads that agree": Fork(
        INDICES,
        f"{MAIN} {CE} a = Gemm <transB = 1> (h, v1) p = Softmax <axis = 1> (y) q = Softmax <axis = 1> (a) "
        "d = Sub (p, q) dd = Mul (d, d) m = ReduceMean <keepdims = 0> (dd) loss = Add (l, m)",
        "y",
    ),
    "branches that contrast": Fork(
        INDICES,
        f"{MAIN} {CE} f = Gemm <transB = 1> (h, v1) g = Gemm <transB = 1> (h2, v2) fg = Mul (f, g) ff = Mul (f, f) "
        "gg = Mul (g, g) o = Constant <value_ints = [1]> () s = ReduceSum <keepdims = 0> (fg, o) "
        "u = ReduceSum <keepdims = 0> (ff, o) v = ReduceSum <keepdims = 0> (gg, o) uv = Mul (u, v) r = Sqrt (uv) "
        "c = Div (s, r) m = ReduceMean <keepdims = 0> (c) loss = Sub (l, m)",
        "y",
    ),
    "another kind of loss at the other head": Fork(
        NUMBERS,
        f"{MAIN} {SQUARES} a = Gemm <transB = 1> (h, v1) sp = Softplus (a) at = Mul (a, t) b = Sub (sp, at) "
        "lb = ReduceMean <keepdims = 0> (b) loss = Add (lb, l)",
        "y",
    ),
    "a regression of the class": Fork(
        INDICES,
        f"{MAIN} {CE} r = Gemm <transB = 1> (h, v3) f = Cast <to = 1> (t) o = Constant <value_ints = [1]> () "
        "q = Squeeze (r, o) d = Sub (q, f) dd = Mul (d, d) m = ReduceMean <keepdims = 0> (dd) loss = Add (m, l)",
        "y",
        {**DENSE, "v3": (1, 8)},
    ),
    "a decoder of the input": Fork(
        INDICES,
        f"{MAIN} {CE} r = Gemm <transB = 1> (h2, v3) d = Sub (r, x) dd = Mul (d, d) m = ReduceMean <keepdims = 0> (dd) "
        "loss = Add (l, m)",
        "y",
        {**DENSE, "v3": (6, 8)},
    ),
    "the uncertain head's entropy": Fork(
        INDICES,
        f"{MAIN} {CE} a = Gemm <transB = 1> (h, v1) lp = LogSoftmax <axis = 1> (a) p = Exp (lp) e = Mul (p, lp) "
        "m = ReduceMean <keepdims = 0> (e) loss = Sub (l, m)",
        "y",
    ),
    "a divergence of heads": Fork(
        INDICES,
        f"{MAIN} {CE} a = Gemm <transB = 1> (h, v1) la = SoftmaxCrossEntropyLoss (a, t) p = Softmax <axis = 1> (y) "
        "lq = LogSoftmax <axis = 1> (a) lp = LogSoftmax <axis = 1> (y) d = Sub (lp, lq) k = Mul (p, d) "
        "o = Constant <value_ints = [1]> () s = ReduceSum <keepdims = 0> (k, o) m = ReduceMean <keepdims = 0> (s) "
        "l2 = Add (l, la) loss = Add (l2, m)",
        "y",
    ),
    "a variational code": Fork(
        NUMBERS,
        f"{HIDDEN} mu = Gemm <transB = 1> (h, v1) lv = Gemm <transB = 1> (h, v2) y = Gemm <transB = 1> (mu, v4) "
        f"{SQUARES} one = Constant <value_float = 1.0> () ex = Exp (lv) mm = Mul (mu, mu) s1 = Add (one, lv) "
        "s2 = Sub (s1, mm) s3 = Sub (s2, ex) m = ReduceMean <keepdims = 0> (s3) loss = Sub (l, m)",
        "y",
        {**DENSE, "v4": (4, 4)},
    ),
    "a decoder that shares a weight": Fork(
        INDICES,
        f"{MAIN} {CE} r = MatMul (h, w1) d = Sub (r, x) dd = Mul (d, d) m = ReduceMean <keepdims = 0> (dd) "
        "loss = Add (l, m)",
        "y",
    ),
    "a balanced gate": Fork(
        INDICES,
        f"{HIDDEN} ga = Gemm <transB = 1> (x, v3) g = Softmax <axis = 1> (ga) e1 = Gemm <transB = 1> (h, w2, b2) "
        f"gw = MatMul (g, v4) eg = Mul (e1, gw) y = Gemm <transB = 1> (eg, w3, b3) {CE} gg = Mul (g, g) "
        "m = ReduceMean <keepdims = 0> (gg) loss = Add (l, m)",
        "y",
        {**DENSE, "v3": (3, 6), "v4": (3, 8)},
    ),
    "terms of each sample": Fork(
        INDICES,
        f"{MAIN} a = Gemm <transB = 1> (h, v1) {EACH} (y, t) {EACH.replace('l =', 'la =')} (a, t) s = Add (l, la) "
        "loss = ReduceMean <keepdims = 0> (s)",
        "y",
    ),
    "terms in a row": Fork(
        INDICES,
        f"{MAIN} {CE} {AUX} o = Constant <value_ints = [0]> () u = Unsqueeze (l, o) v = Unsqueeze (la, o) "
        "c = Concat <axis = 0> (u, v) loss = ReduceMean <keepdims = 0> (c)",
        "y",
    ),
    "a temperature of a head": Fork(
        INDICES,
        f"{MAIN} {CE} a0 = Gemm <transB = 1> (h, v1) a = Mul (a0, s) la = SoftmaxCrossEntropyLoss (a, t) "
        "loss = Add (l, la)",
        "y",
        {**DENSE, "s": (1,)},
    ),
    "smooth maps": Fork(
        INDICES,
        f"c1 = Conv <pads = [1, 1, 1, 1]> (x, k1, b1) r1 = Relu (c1) p = GlobalAveragePool (r1) f = Flatten (p) "
        f"y = Gemm <transB = 1> (f, w3) {CE} o0 = Constant <value_ints = [0]> () o1 = Constant <value_ints = [1]> () "
        "o2 = Constant <value_ints = [3]> () o3 = Constant <value_ints = [4]> () n = Constant <value_ints = [2]> () "
        "u = Slice (r1, o0, o2, n) v = Slice (r1, o1, o3, n) d = Sub (u, v) dd = Mul (d, d) "
        "m = ReduceMean <keepdims = 0> (dd) loss = Add (l, m)",
        "y",
        {"k1": (4, 2, 3, 3), "b1": (4,), "w3": (3, 4)},
        x="float[N, 2, 4, 4] x",
    ),
    "heads as further outputs": Fork(
        INDICES, f"{MAIN} {CE} {AUX} ka = Mul (la, k) loss = Add (l, ka)", "a", beside=", float[N, 4] a, float[N, 4] y"
    ),
    "a weight of a term as an initializer": Fork(
        INDICES,
        f"{MAIN} {CE} a = Gemm <transB = 1> (h, v1) la = SoftmaxCrossEntropyLoss (a, t) ka = Mul (la, k) "
        "loss = Add (l, ka)",
        "y",
        beside=", float[N, 4] y",
        numbers={"k": 0.3},
    ),
    "terms of the loss as outputs": Fork(
        INDICES,
        f"{MAIN} {CE} {AUX} ka = Mul (la, k) loss = Add (l, ka)",
        "y",
        beside=", float l, float la, float[N, 4] y",
    ),
    "features as an output": Fork(
        INDICES,
        f"{MAIN} lp = LogSoftmax <axis = 1> (y) o = Constant <value_ints = [1]> () u = Unsqueeze (t, o) "
        "g = GatherElements <axis = 1> (lp, u) n = Neg (g) loss = ReduceMean <keepdims = 0> (n)",
        "h2",
        beside=", float[N, 8] h2",
    ),
    "learned weights of tasks": Fork(
        INDICES,
        f"{MAIN} {CE} a = Gemm <transB = 1> (h, v1) la = SoftmaxCrossEntropyLoss (a, t) ns = Neg (s) es = Exp (ns) "
        "nr = Neg (r) er = Exp (nr) ls = Mul (es, l) lr = Mul (er, la) p = Add (ls, s) q = Add (lr, r) "
        "loss = Add (p, q)",
        "y",
        {**DENSE, "s": (1,), "r": (1,)},
    ),
    "a learned weight of the only task": Fork(
        NUMBERS,
        f"{MAIN} {SQUARES} {TWO} ss = Pow (s, two) d = Div (l, ss) n = Log (ss) loss = Add (d, n)",
        "y",
        {**DENSE, "s": (1,)},
    ),
    "weights that are penalised, beside a second head": Fork(
        INDICES,
        f"{MAIN} {CE} {AUX} {TWO} pw = Pow (v1, two) n = ReduceSum <keepdims = 0> (pw) kn = Mul (n, k) "
        "ka = Mul (la, k) s = Add (l, ka) loss = Add (s, kn)",
        "y",
    ),
    "resolutions": Fork(
        "int64[N, 4, 4] t",
        f"c1 = Conv <pads = [1, 1, 1, 1]> (x, k1, b1) r1 = Relu (c1) {HALVED} r2 = Relu (c2) d2 = Conv (r2, k3) "
        f"{TWICE} up = Resize <{NEAREST}> (d2, , s) u2 = Resize <{NEAREST}> (r2, , s) "
        "j = Concat <axis = 1> (r1, u2) y = Conv (j, k4) "
        "l = SoftmaxCrossEntropyLoss (y, t) lb = SoftmaxCrossEntropyLoss (up, t) loss = Add (l, lb)",
        "y",
        {"k1": (4, 2, 3, 3), "b1": (4,), "k2": (5, 4, 3, 3), "k3": (3, 5, 1, 1), "k4": (3, 9, 1, 1)},
        x="float[N, 2, 4, 4] x",
    ),
}  # fmt: skip


def net(fork: Fork) -> onnx.ModelProto:
    random = np.random.default_rng(4)
    weights = {name: (random.standard_normal(shape) * 0.5).astype(np.float32) for name, shape in fork.weights.items()}
    weights = {name: np.abs(w) + 0.5 if name in ("s", "r") and w.size == 1 else w for name, w in weights.items()}
    for name, number in fork.numbers.items():
        weights[name] = np.eye(8, dtype=np.float32) if name == "eye" else np.asarray(number, np.float32)
    used = {
        name for part in fork.body.replace("(", " ").replace(")", " ").replace(",", " ").split() for name in (part,)
    }
    text = f"net ({fork.x}, {fork.labels}) => (float loss{fork.beside}) {{ {fork.body} }}"
    return parse(text, {name: array for name, array in weights.items() if name in used})


def samples(fork: Fork, count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(8)
    x = random.standard_normal((count, 6) if "6]" in fork.x else (count, 2, 4, 4)).astype(np.float32)
    if fork.labels == NUMBERS:
        return x, random.random((count, 4)).astype(np.float32)
    return x, random.integers(0, 3, count if fork.labels == INDICES else (count, 4, 4))


def trainer(path: Path, batch: int = 1) -> Trainer:
    imported = load_model(path)
    options = TrainingOptions(learning_rate=RATE, batch=batch)
    return Trainer(build_training(imported, resolve_update(imported.graph, "all"), options))


def in_slot(x: np.ndarray) -> np.ndarray:
    """An image as the graph takes it."""
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


def in_file(imported: ImportedModel, state: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A parameter as the file has it."""
    source = imported.sources[name]
    found = np.empty(source.tensor.initial.size)
    found[source.places.reshape(-1)] = state[name].reshape(-1)
    return found.reshape(source.tensor.initial.shape)


@pytest.mark.parametrize("name", FORKS)
def test_every_weight_follows_the_loss_of_the_file(name: str, tmp_path: Path) -> None:
    fork = FORKS[name]
    model = net(fork)
    path = write(model, tmp_path)
    imported = load_model(path)
    assert imported.output_name == fork.output
    ours, oracle, random = trainer(path), Oracle(model), np.random.default_rng(1)
    x, t = samples(fork, 2)
    weights = [name for name in oracle.weights if name not in fork.numbers]
    assert {value.name for value in imported.graph.parameters} == set(weights)
    labels = t.astype(np.int32) if t.dtype.kind == "i" else t
    for i in range(2):
        before = {name: oracle.weights[name].copy() for name in weights}
        (loss,) = ours.step(in_slot(x[i : i + 1]), labels[i : i + 1])
        np.testing.assert_allclose(loss, oracle.loss(x[i : i + 1], t[i : i + 1]), rtol=2e-5)
        after = {key: in_file(imported, ours.state, key) for key in weights}
        for key in weights:
            gradient = (before[key] - after[key]) / RATE
            for _ in range(2):
                way = random.standard_normal(gradient.shape)
                ends = list[float]()
                for sign in (1, -1):
                    oracle.weights[key] = before[key] + sign * STEP * way
                    ends.append(oracle.loss(x[i : i + 1], t[i : i + 1]))
                oracle.weights[key] = before[key]
                slope = (ends[0] - ends[1]) / (2 * STEP)
                size = max(1.0, float(np.abs(gradient).sum()))
                assert float((gradient * way).sum()) == pytest.approx(slope, rel=1e-3, abs=2e-5 * size), (key, i)
            assert np.abs(gradient).max() > 0
        oracle.weights.update(after)


@pytest.mark.parametrize("name", ["an auxiliary head", "a penalty on a hidden activation", "a decoder of the input"])
def test_a_batch_has_the_loss_of_the_file(name: str, tmp_path: Path) -> None:
    """The mean of its samples, which the file gives for the whole batch."""
    fork = FORKS[name]
    model = net(fork)
    x, t = samples(fork, 3)
    losses = trainer(write(model, tmp_path), 3).step(x, t.astype(np.int32 if t.dtype.kind == "i" else np.float32))
    assert float(np.mean(losses)) == pytest.approx(Oracle(model).loss(x, t), rel=2e-5)


def test_products_of_samples_are_one_sample_only(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"E0304.*no mean or sum over samples"):
        trainer(write(net(FORKS["orthogonal features"]), tmp_path), 2)


def test_a_head_that_the_loss_does_not_read_is_named(tmp_path: Path) -> None:
    """An output beside the loss that it does not depend on: its weights are selected, and stay as they are."""
    fork = replace(FORKS["an auxiliary head"], body=f"{MAIN} {CE} loss = Add (l, l) z = Gemm <transB = 1> (h, v1)")
    both = write(net(replace(fork, beside=", float[N, 4] z, float[N, 4] y")), tmp_path)
    assert load_model(both).output_name == "y"
    path = write(net(replace(fork, beside=", float[N, 4] z")), tmp_path)
    imported = load_model(path)
    train = build_training(imported, resolve_update(imported.graph, "all"), TrainingOptions())
    assert imported.output_name == "z"
    assert "not trained, since the loss does not depend on them: v1" in train.graph.notes
    assert set(train.trained) == {value.name for value in imported.graph.parameters} - {"v1"}


def test_numbers_of_a_loss_that_might_be_weights_are_named(tmp_path: Path) -> None:
    """Not the factors of its terms, which nobody trains."""
    notes = {name: load_model(write(net(FORKS[name]), tmp_path)).graph.notes for name in FORKS}
    said = {name: [note for note in notes[name] if note.startswith("numbers of the loss")] for name in notes}
    assert {name: found for name, found in said.items() if found} == {
        "orthogonal features": ["numbers of the loss itself, not trained: eye"],
        "sparse hidden activations, by numbers of the loss": ["numbers of the loss itself, not trained: rho"],
    }
    assert notes["an auxiliary head"] == ("m_infer gives y; the loss also reads a, and trains what leads there",)


def test_a_fresh_head_is_not_one_of_several(tmp_path: Path) -> None:
    """--classes would leave the other head with its own number of classes."""
    with pytest.raises(CompileError, match=r"E0113.*the loss also reads a, which is not of the last layer"):
        load_model(write(net(FORKS["an auxiliary head"]), tmp_path), FrontendOptions(classes=3))
    fork = FORKS["a penalty on a hidden activation"]
    assert load_model(write(net(fork), tmp_path), FrontendOptions(classes=4)).fresh


@pytest.mark.parametrize("name", ["a decoder of the input", "a learned weight of the only task"])
def test_the_c_code_of_a_fork(name: str, tmp_path: Path) -> None:
    """In int8 a loss that reads a head and the input itself; in float32 one of shape [1]."""
    fork = FORKS[name]
    path, data = write(net(fork), tmp_path), tmp_path / "data.npz"
    x, t = samples(fork, 12)
    np.savez(data, x=x, y=t)
    integers: dict[str, Any] = {"quant": "int8", "calib": data} if "decoder" in name else {}
    summary = compile_model(CompileOptions(path, out=tmp_path / "o", verify="host", data=data, **integers)).summary
    assert summary is not None
    assert summary.verify.result == "pass"
    assert summary.verify.file is not None
    assert summary.verify.file.whole
