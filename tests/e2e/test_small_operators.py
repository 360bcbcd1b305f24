"""Networks of the zoo that hold one further operator each, as C (tests/frontend/test_zoo.py has their losses)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from testing.places import SHARED
from tests.e2e import chain
from tests.e2e.command import FILE, HERE, STEP, run
from tests.e2e.gradients import largest_error
from tests.e2e.marks import needs_shared
from tests.frontend.models import parse
from tests.quantize import nets
from tinytrain_compile.data.samples import load_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model
from tinytrain_compile.reference.trainer import Trainer

ZOO = SHARED / "zoo"
LOSSES = {"ce": "cross-entropy", "mse": "mse", "bce": "bce"}
RUN_AS_C = (
    "torch-dynamo/act_softplus",
    "torch-ts/act_sin",
    "torch-dynamo/amax23",
    "torch-dynamo/where_mask",
    "torch-dynamo/unet_bil",
)


@needs_shared
@pytest.mark.parametrize("name", RUN_AS_C)
def test_the_generated_code_trains_it(name: str) -> None:
    known = json.loads((ZOO / f"{name}.json").read_text())
    train = chain.train_graph(load_model(ZOO / f"{name}.onnx"), loss=LOSSES[known["loss"]], learning_rate=known["lr"])
    assert chain.check(chain.project(train), mode="host").result == "pass"


@needs_shared
@pytest.mark.parametrize("name", RUN_AS_C)
def test_what_has_no_integer_form_is_a_float_region(name: str) -> None:
    known = json.loads((ZOO / f"{name}.json").read_text())
    train = nets.int8_train(onnx.load(ZOO / f"{name}.onnx"), loss=LOSSES[known["loss"]])
    assert chain.check(chain.project(train), mode="host").max_error == 0.0


@needs_shared
@pytest.mark.parametrize("name", ["torch-ts/unet_near", "torch-dynamo/unet_shuf"])
def test_what_moves_pixels_stays_in_integers(name: str) -> None:
    train = nets.int8_train(onnx.load(ZOO / f"{name}.onnx"), loss="bce")
    moving = [node for node in train.graph.nodes if node.op in ("Expand", "Transpose")]
    assert moving and all(node.outputs[0].dtype == "int8" for node in moving)
    assert chain.check(chain.project(train), mode="host").max_error == 0.0


def _dense(body: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {"w1": rng.normal(size=(6, 5)), "w2": rng.normal(size=(5, 3)), "w3": rng.normal(size=(6, 5))}
    text = f"net (float[1, 6] x) => (float[1, 3] y) {{ a = MatMul (x, w1)\n{body}\ny = MatMul (m, w2) }}"
    known = {name: data for name, data in CONSTANTS.items() if f" {name})" in text or f" {name}," in text}
    return parse(text, {**{name: data.astype(np.float32) for name, data in weights.items()}, **known})


CONSTANTS = {
    "one": np.int64(1),
    "two": np.int64([2]),
    "ones": np.int64([1]),
    "twos": np.int64([2]),
    "five": np.int64(5),
    "values": np.float32([0.5, 2.0]),
    "places": np.int64([[4, 0, 0, -2, 1]]),
    "column": np.float32(np.arange(1, 6).reshape(1, 5, 1)),
}


BODIES = {
    "mish, written out": "s = Softplus (a)\nt = Tanh (s)\nm = Mul (a, t)",
    "mish": "m = Mish (a)",
    "celu": "m = Celu <alpha = 0.7> (a)",
    "cos": "m = Cos (a)",
    "of three": "b = MatMul (x, w3)\nc = Tanh (b)\nm = Max (a, b, c)",
    "min and mean": "b = MatMul (x, w3)\nc = Min (a, b)\nm = Mean (a, c, b)",
    "logic": "b = MatMul (x, w3)\nc = Less (a, b)\nd = GreaterOrEqual (a, x0)\ne = Not (d)\nf = Xor (c, e)\n"
    "g = Cast <to = 1> (f)\nh = Where (c, a, b)\nm = Add (g, h)",
    "thresholded": "m = ThresholdedRelu <alpha = 0.3> (a)",
    "log of sums": "b = ReduceLogSumExp <keepdims = 1> (a)\nm = Sub (a, b)",
    "normalised": "m = LpNormalization <axis = 1, p = 2> (a)",
    "norm 1": "b = ReduceL1 <keepdims = 1> (a)\nm = Div (a, b)",
    "einsum": 'b = Einsum <equation = "ni,nj->ij"> (a, a)\nc = Einsum <equation = "i...->i"> (b)\nm = Mul (a, c)',
    "sign": "s = Sign (a)\nm = Mul (s, a)",
    "running sums": "c = CumSum <reverse = 1> (a, one)\nd = CumSum <exclusive = 1> (c, one)\nm = Add (c, d)",
    "top k": "v, i = TopK <axis = 1, largest = 0> (a, two)\nr = ReduceSum <keepdims = 1> (v, ones)\nm = Add (a, r)",
    "hardmax": "h = Hardmax <axis = 1> (a)\nm = Mul (h, a)",
    "arg max": "i = ArgMax <axis = 1, keepdims = 1, select_last_index = 1> (a)\nv = GatherElements <axis = 1> (a, i)\n"
    "m = Sub (a, v)",
    "one hot": "i = ArgMin <axis = 1, keepdims = 0> (a)\nh = OneHot <axis = -1> (i, five, values)\nm = Mul (h, a)",
    "chosen": "m = GatherElements <axis = 1> (a, places)",
    "triangle": "u = Unsqueeze (a, ones)\nt = Mul (u, column)\nl = Trilu <upper = 0> (t)\n"
    "m = ReduceSum <keepdims = 0> (l, twos)",
    "spread": "b = ReduceMax <keepdims = 1> (a)\nc = ReduceMin <keepdims = 1> (a)\nd = Sub (b, c)\nm = Div (a, d)",
}


@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_those_of_the_loss(name: str) -> None:
    body = BODIES[name].replace("x0", "zero")
    if "zero" in body:
        body = "zero = Constant <value = float {0.1}> ()\n" + body
    train = chain.train_graph(_dense(body))
    assert largest_error(train)[0] < 1e-6
    assert chain.check(chain.project(train), mode="host").result == "pass"


def test_an_exported_mish_is_one_operator() -> None:
    assert [node.op for node in chain.imported(_dense(BODIES["mish, written out"])).graph.nodes] == [
        "Gemm",
        "Mish",
        "Gemm",
    ]


def test_a_gradient_is_shared_by_equal_operands() -> None:
    """As torch.maximum and torch.amax have it."""
    train = chain.train_graph(_dense("b = Identity (a)\nr = Neg (b)\ns = Neg (r)\nm = Max (a, s)"))
    twice = chain.train_graph(_dense("m = Identity (a)"))
    x, y = np.ones((1, 6), np.float32), np.zeros(1, np.int32)
    states = []
    for each in (train, twice):
        trainer = Trainer(each)
        trainer.step(x, y)
        states.append(trainer.state["w1"])
    np.testing.assert_array_equal(*states)


TOKENS = (
    "net (int64[1, 5] x) => (float[1, 3] y) { e = Gather (table, x)\nm = ReduceMean <keepdims = 0, axes = [1]> (e)\n"
)


def _embedding(body: str = "y = MatMul (m, w)") -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    table, w = (rng.normal(size=shape).astype(np.float32) for shape in ((7, 4), (4, 3)))
    return parse(TOKENS + body + " }", {"table": table, "w": w, **({"one": np.array([1])} if "one" in body else {})})


def test_rows_of_a_table_are_trained() -> None:
    train = chain.train_graph(_embedding(), loss="mse", learning_rate=0.5)
    assert largest_error(train)[0] < 1e-6
    assert chain.check(chain.project(train), mode="host", steps=4).result == "pass"
    x, trainer = np.array([[0, 3, 3, 6, 3]], np.int32), Trainer(train)
    before = trainer.state["table"].copy()
    trainer.step(x, np.zeros((1, 3), np.float32))
    moved = before - trainer.state["table"]
    assert np.array_equal(np.flatnonzero(np.abs(moved).sum(axis=1)), [0, 3, 6])
    np.testing.assert_allclose(moved[3], 3 * moved[0], rtol=1e-5)


def test_rows_are_trained_in_micro_batches() -> None:
    options = {"batch": 4, "learning_rate": 0.1}
    one, two = (chain.train_graph(_embedding(), micro_batch=size, **options) for size in (1, 2))
    assert chain.check(chain.project(two, one=one), mode="host").result == "pass"


def test_rows_lie_beside_an_integer_network(tmp_path: Path) -> None:
    """The table stays float32; what follows is int8, and the file check reads int64 as the file says."""
    onnx.save(_embedding(), tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "calib.npz", x=rng.integers(0, 7, (16, 5)))
    options = ("--arena", "64KB", "--loss", "cross-entropy", "--verify", "host", "-o", tmp_path / "out")
    for more in ((), ("--quant", "int8", "--head", "int8", "--calib", tmp_path / "calib.npz")):
        outcome = run(tmp_path / "net.onnx", *options, *more).check_success()
        assert outcome.agreed[:2] == (FILE, HERE) and "PASS" in outcome.out
    header = next((tmp_path / "out").glob("*_train.h")).read_text()
    assert "int32_t values[NET_INPUT_ELEMENTS]" in header


MASKS = {
    "equal": "q = Equal (x, none)\nk = Cast <to = 1> (q)",
    "not": "q = Equal (x, none)\nn = Not (q)\nk = Cast <to = 1> (n)",
    "greater": "q = Greater (x, none)\nk = Cast <to = 1> (q)",
    "as numbers": "f = Cast <to = 1> (x)\nq = Greater (f, half)\nk = Cast <to = 1> (q)",
    "where": "q = Less (none, x)\nk = Where (q, full, nothing)",
    "sign": "f = Cast <to = 1> (x)\nk = Sign (f)",
    "of integers": "q = Equal (x, none)\nn = Not (q)\ni = Cast <to = 7> (n)\nj = Clip (x, none, unit)\nl = Mul (i, j)\n"
    "k = Cast <to = 1> (l)",
}
MASKED = """net (int64[1, 5] x) => (float[1, 3] y) {{ {mask}
    c = Cast <to = 7> (k)
    s = CumSum (c, unit)
    p = Mul (s, c)
    e = Gather (table, x)
    o = Gather (positions, p)
    t = Add (e, o)
    u = Unsqueeze (k, minus)
    m = Mul (t, u)
    r = ReduceSum <keepdims = 0> (m, ones)
    y = MatMul (r, w) }}"""
"""Embeddings of tokens and of their positions, which padding (token 0) does not count in."""


@pytest.mark.parametrize("name", MASKS)
def test_tokens_with_a_padding_mask(name: str, tmp_path: Path) -> None:
    rng, text = np.random.default_rng(0), MASKED.format(mask=MASKS[name])
    arrays = {
        **{
            n: rng.normal(size=s).astype(np.float32)
            for n, s in (("table", (7, 4)), ("positions", (6, 4)), ("w", (4, 3)))
        },
        "none": np.int64(0),
        "unit": np.int64(1),
        "minus": np.int64([-1]),
        "ones": np.int64([1]),
        "half": np.float32(0.5),
        "full": np.float32(1),
        "nothing": np.float32(0),
    }
    model = parse(text, {n: a for n, a in arrays.items() if f" {n}," in text or f" {n})" in text or f"({n}," in text})
    train = chain.train_graph(model, loss="cross-entropy", learning_rate=0.1)
    assert {value.name for value in train.graph.state} >= {"table", "positions", "w"}
    assert largest_error(train)[0] < 1e-6
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=rng.integers(0, 3, (8, 5)), y=rng.integers(0, 3, 8))
    options = ("--data", tmp_path / "data.npz", "--verify", "host", "-o", tmp_path / "out")
    done = run(tmp_path / "net.onnx", *options).check_success()
    assert done.agreed == (FILE, HERE, STEP) and "PASS" in done.out
    assert re.search(r"(\d) of \1 tensors within", done.out)


def test_integers_of_the_input_are_computed_with() -> None:
    model = _embedding(
        "i = Add (x, x)\nf = Gather (table, i)\ns = ReduceSum <keepdims = 0> (f, one)\nt = Add (s, m)\n"
        "y = MatMul (t, w)"
    )
    train = chain.train_graph(model, loss="mse")
    assert largest_error(train)[0] < 1e-6
    assert chain.check(chain.project(train), mode="host").result == "pass"


def test_indices_outside_the_table_are_refused(tmp_path: Path) -> None:
    train = chain.train_graph(_embedding(), loss="cross-entropy")
    np.savez(tmp_path / "data.npz", x=np.full((2, 5), 7), y=np.zeros(2, np.int64))
    with pytest.raises(CompileError) as caught:
        load_samples(tmp_path / "data.npz", chain.imported(_embedding()), train)
    assert caught.value.code == "E0105"
