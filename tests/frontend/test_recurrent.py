"""LSTM, GRU and RNN: forward as onnxruntime computes it, training as that of the file itself."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.frontend.file_training import check_training, import_file
from tests.frontend.models import check_against_onnxruntime, judged_by_the_file, ops_of, parse, run_imported, write
from tests.frontend.recurrent import Cell, model_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel

USED = {"LSTM": ("Y", "h", "c", "Yhc", "hc"), "GRU": ("Y", "h", "Yh"), "RNN": ("Y", "h", "Yh")}
DIRECTIONS = ("forward", "reverse", "bidirectional")


def grid() -> list[Cell]:
    """Every direction, layout and kind of first state; the outputs that are read take turns."""
    cells: list[Cell] = []
    for op, resets in (("LSTM", (0,)), ("GRU", (0, 1)), ("RNN", (0,))):
        turn = itertools.cycle(USED[op])
        for direction, layout, states, reset in itertools.product(
            DIRECTIONS, (0, 1), ("", "zeros", "given", "computed"), resets
        ):
            cells.append(Cell(op, direction, layout, reset, states, next(turn), seed=len(cells)))
    return cells


def named(cell: Cell) -> str:
    parts = (cell.op, cell.direction, cell.layout, cell.reset_last, cell.states or "none", cell.used)
    return "-".join(map(str, parts))


def as_onnxruntime(cell: Cell, folder: Path, **attrs: object) -> ImportedModel:
    """Import a cell, and compare its scores with onnxruntime's, and every tensor with onnx.reference's."""
    model = model_of(cell, **attrs)
    imported = import_file(model, folder)
    x = np.random.default_rng(1).standard_normal(imported.input_shape).astype(np.float32)
    judge = model_of(cell, plain_layout=True, **attrs)
    (expected,) = onnxruntime.InferenceSession(judge.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(run_imported(imported, x)[0], expected, rtol=0, atol=2e-6)
    judged_by_the_file(write(model, folder), imported, x)
    return imported


@pytest.mark.parametrize("cell", grid(), ids=named)
def test_forward_is_that_of_onnxruntime(cell: Cell, tmp_path: Path) -> None:
    as_onnxruntime(cell, tmp_path)


@pytest.mark.parametrize("cell", grid(), ids=named)
def test_training_is_that_of_the_file(cell: Cell, tmp_path: Path) -> None:
    """Losses of steps with gradients by central differences, in float64: W, R, B and given states are trained."""
    model = model_of(cell)
    zeros = [t.name for t in model.graph.initializer if t.name.endswith("_zero")]
    check_training(model, import_file(model, tmp_path), frozen=zeros, steps=3)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_without_bias_and_of_one_step(op: str, direction: str, tmp_path: Path) -> None:
    for cell in (Cell(op, direction, bias=False, reset_last=1), Cell(op, direction, steps=1, states="given")):
        as_onnxruntime(cell, tmp_path)
        model = model_of(cell)
        check_training(model, import_file(model, tmp_path), steps=2)


@pytest.mark.parametrize(
    ("cell", "attrs"),
    [
        (Cell("RNN", activations=("Relu",)), {}),
        (Cell("RNN", "bidirectional", activations=("Tanh", "Relu")), {}),
        (Cell("LSTM", activations=("HardSigmoid", "Tanh", "Relu")), {}),
        (
            Cell("LSTM", activations=("HardSigmoid", "Tanh", "Tanh")),
            {"activation_alpha": [0.3], "activation_beta": [0.4]},
        ),
        (Cell("GRU", reset_last=1, activations=("sigmoid", "LeakyRelu")), {"activation_alpha": [0.1]}),
    ],
    ids=str,
)
def test_activations(cell: Cell, attrs: dict[str, object], tmp_path: Path) -> None:
    as_onnxruntime(cell, tmp_path, **attrs)


def test_full_lengths_and_peepholes_of_zeros(tmp_path: Path) -> None:
    as_onnxruntime(Cell("LSTM", lengths=(4,)), tmp_path)
    model = model_of(Cell("LSTM", states="given"))
    model.graph.node[1].input.append("P")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 6), np.float32), "P"))
    check_training(model, import_file(model, tmp_path), frozen=("P",), steps=2)


@pytest.mark.parametrize(
    ("cell", "attrs", "reason"),
    [
        (Cell("LSTM", lengths=(3,)), {}, "sequence_lens: not all are 4, the whole length"),
        (Cell("LSTM"), {"clip": 2.0}, "clip: the clip of the gates' sums"),
        (Cell("LSTM"), {"input_forget": 1}, "input_forget: gates i and f are coupled"),
        (Cell("GRU", activations=("Sigmoid", "Softsign")), {}, "activations: Softsign is not known here"),
        (Cell("RNN", steps=300), {}, "300 steps in 1 direction(s) would be written out, 256 are the most"),
        (Cell("RNN", direction="bidirectional", steps=150), {}, "150 steps in 2 direction(s)"),
    ],
    ids=str,
)
def test_what_is_refused_and_why(cell: Cell, attrs: dict[str, object], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as error:
        import_file(model_of(cell, **attrs), tmp_path)
    assert error.value.code == "E0501"
    assert reason in error.value.details[0]


def test_peepholes_are_refused(tmp_path: Path) -> None:
    model = model_of(Cell("LSTM", states="given"))
    model.graph.node[1].input.append("P")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 6), np.float32), "P"))
    with pytest.raises(CompileError) as error:
        import_file(model, tmp_path)
    assert "P: peepholes are not computed" in error.value.details[0]


@pytest.mark.parametrize(("name", "shape"), [("W", (1, 8, 4)), ("R", (1, 7, 2)), ("B", (1, 15)), ("h0", (2, 1, 2))])
def test_shapes_that_do_not_fit(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = model_of(Cell("LSTM", states="given"))
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.ones(shape, np.float32), name))
    with pytest.raises(CompileError) as error:
        import_file(model, tmp_path)
    assert (error.value.code, error.value.where) == ("E0212", "node LSTM_Y (LSTM)")


def parameters(model: onnx.ModelProto, folder: Path, **options: object) -> list[str]:
    return sorted(value.name for value in import_file(model, folder, **options).graph.parameters)


def test_names_of_parameters(tmp_path: Path) -> None:
    cell = Cell("GRU", states="given", reset_last=1)
    one = ["B.Rb", "B.Wb", "R", "W", "bias", "h0", "head"]
    assert parameters(model_of(cell), tmp_path) == one
    both = parameters(model_of(replace(cell, direction="bidirectional")), tmp_path)
    assert both == sorted([*one, *(f"{name}.reverse" for name in one[:4]), "h0.reverse"])
    first = parameters(model_of(replace(cell, reset_last=0)), tmp_path)
    assert first == ["B.Rb", "B.Wb", "R.h", "R.zr", "W", "bias", "h0", "head"]


def set_weight(model: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))


def test_a_second_bias_of_zeros_is_trained_where_the_framework_has_one(tmp_path: Path) -> None:
    """tf2onnx fills the operator's second bias with zeros, since Keras' layer has none; PyTorch's has two."""
    model = model_of(Cell("LSTM"))
    set_weight(model, "B", np.concatenate([np.ones(8), np.zeros(8)])[None])
    assert "B.Rb" not in parameters(model, tmp_path)
    assert "B.Rb" in parameters(model, tmp_path, trainable=("B",))
    model.producer_name = "pytorch"
    assert "B.Rb" in parameters(model, tmp_path)
    gru = model_of(Cell("GRU", reset_last=1))
    set_weight(gru, "B", np.concatenate([np.ones(6), np.zeros(6)])[None])
    assert "B.Rb" in parameters(gru, tmp_path), "there the two are not only added to each other"


def test_a_first_state_of_zeros_is_not_trained(tmp_path: Path) -> None:
    model = model_of(Cell("LSTM", states="given"))
    set_weight(model, "h0", np.zeros((1, 1, 2)))
    found = parameters(model, tmp_path)
    assert "h0" not in found and "c0" in found
    assert "h0" in parameters(model, tmp_path, trainable=("h0",))
    assert "c0" not in parameters(model, tmp_path, frozen=("c0",))


def test_the_last_step_is_read_without_the_sequence(tmp_path: Path) -> None:
    text = """net (float[1, 4, 3] x) => (float[1, 2] y) {
        t = Transpose <perm = [1, 0, 2]> (x) Y = LSTM <hidden_size = 2> (t, W, R)
        s = Squeeze (Y, one) b = Transpose <perm = [1, 0, 2]> (s) y = Gather <axis = 1> (b, last) }"""
    random = np.random.default_rng(0)
    weights = {"W": random.standard_normal((1, 8, 3)), "R": random.standard_normal((1, 8, 2))}
    tables = {"one": np.array([1]), "last": np.array(-1)}
    model = parse(text, {name: data.astype(np.float32) for name, data in weights.items()} | tables)
    assert "Concat" not in ops_of(check_against_onnxruntime(model, tmp_path))


RANDOM = np.random.default_rng(11)


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


SHARED = weights(W=(1, 8, 2), R=(1, 8, 2), B=(1, 16), head=(2, 3))
SHARED |= weights(V=(1, 2, 2), U=(1, 2, 2), W3=(1, 6, 2), R3=(1, 6, 2))
TIED = {
    "two nodes, one cell": "a = LSTM <hidden_size = 2> (t, W, R, B) s = Squeeze (a, one)"
    "p, h = LSTM <hidden_size = 2> (s, W, R, B)",
    "a part elsewhere": "a = LSTM <hidden_size = 2> (t, W, R, B) s = Squeeze (a, one) M = Slice (W, zero, two, one)"
    "N = Reshape (M, square) m = MatMul (s, N) p, h = RNN <hidden_size = 2> (m, V, U)",
    "gates of one kernel": "q, g = GRU <hidden_size = 2> (t, W3, R3) Z = Slice (R3, zero, two, one)"
    "p, r = RNN <hidden_size = 2> (t, V, Z) h = Add (g, r)",
}


@pytest.mark.parametrize("name", TIED)
def test_weights_that_others_read_too(name: str, tmp_path: Path) -> None:
    text = f"""net (float[1, 4, 2] x) => (float[1, 3] y) {{
        t = Transpose <perm = [1, 0, 2]> (x) {TIED[name]} f = Reshape (h, row) y = MatMul (f, head) }}"""
    tables = {"one": [1], "zero": [0], "two": [2], "square": [2, 2], "row": [1, 2]}
    model = parse(text, SHARED | {key: np.array(values) for key, values in tables.items()})
    read = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    check_training(model, import_file(model, tmp_path), steps=3)


def unrolled_gru(steps: int = 3) -> onnx.ModelProto:
    """A GRU of Keras with unroll=True, as tf2onnx writes it: gates z, r, h; both biases in one weight."""
    lines = ["h0 = Expand (zero, state)", "b0, b1 = Split <axis = 0> (bias, ones)"]
    lines += [f"c{i} = Squeeze (b{i}, first)" for i in (0, 1)]
    for t in range(steps):
        lines += [
            f"s{t} = Slice (x, at{t}, at{t + 1}, one)",
            f"x{t} = Squeeze (s{t}, one)",
            f"i{t} = MatMul (x{t}, kernel)",
            f"p{t} = Add (i{t}, c0)",
            f"m{t} = MatMul (h{t}, recurrent)",
            f"q{t} = Add (m{t}, c1)",
            f"pz{t}, pr{t}, ph{t} = Split <axis = 1> (p{t}, thirds)",
            f"qz{t}, qr{t}, qh{t} = Split <axis = 1> (q{t}, thirds)",
            f"az{t} = Add (pz{t}, qz{t})",
            f"z{t} = Sigmoid (az{t})",
            f"ar{t} = Add (pr{t}, qr{t})",
            f"r{t} = Sigmoid (ar{t})",
            f"k{t} = Mul (r{t}, qh{t})",
            f"ah{t} = Add (ph{t}, k{t})",
            f"n{t} = Tanh (ah{t})",
            f"u{t} = Mul (z{t}, h{t})",
            f"v{t} = Sub (unit, z{t})",
            f"w{t} = Mul (v{t}, n{t})",
            f"h{t + 1} = Add (u{t}, w{t})",
        ]
    text = f"net (float[1, {steps}, 3] x) => (float[1, 3] y) {{ {' '.join(lines)} y = MatMul (h{steps}, dense) }}"
    tables = {"state": [1, 2], "ones": [1, 1], "first": [0], "one": [1], "thirds": [2, 2, 2]}
    tables |= {f"at{t}": [t] for t in range(steps + 1)}
    numbers = {"zero": np.float32(0), "unit": np.float32(1)}
    random = weights(kernel=(3, 6), recurrent=(2, 6), bias=(2, 6), dense=(2, 3))
    model = parse(text, random | numbers | {name: np.array(values) for name, values in tables.items()})
    for tensor in model.graph.initializer:  # names that an exporter makes up
        if tensor.name in numbers:
            tensor.name = f"cell/{tensor.name}/Const:0"
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name in numbers:
                node.input[index] = f"cell/{name}/Const:0"
    return model


def test_an_unrolled_cell_of_keras(tmp_path: Path) -> None:
    model = unrolled_gru()
    imported = import_file(model, tmp_path)
    assert sum(value.elements for value in imported.graph.parameters) == 18 + 12 + 12 + 6
    check_training(model, imported, frozen=("cell/zero/Const:0", "cell/unit/Const:0"))
