"""Which initializers are parameters: the rules one by one, what the user says instead, and what cannot be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.imported import ImportedModel

RANDOM = np.random.default_rng(5)
POSITIONS, WIDTH, BINS = 6, 8, 32
ANGLES = np.arange(POSITIONS)[:, None] * 10.0 ** (-np.arange(WIDTH // 2) / 2)
WAVES = np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], axis=1)
DFT = np.cos(2 * np.pi * np.outer(np.arange(BINS), np.arange(WIDTH)) / BINS) * np.hanning(BINS + 1)[:BINS, None]


def mel() -> np.ndarray[Any, Any]:
    """Eight triangles over 32 frequencies."""
    edges = np.linspace(0, BINS - 1, WIDTH + 2)
    bins = np.arange(BINS)[:, None]
    rising, falling = (bins - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - bins) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling))


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape)


def imported(
    folder: Path, body: str, tables: dict[str, Any], x: str = f"{POSITIONS}, {WIDTH}", **options: Any
) -> ImportedModel:
    """A network from x to y whose initializers are these tables."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> net (float[1, {x}] x) => (float[n, m] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    for name, table in tables.items():
        data = np.asarray(table, None if np.asarray(table).dtype.kind == "i" else np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return load_model(path, FrontendOptions(**options))


def decided(model: ImportedModel) -> dict[str, tuple[bool, str]]:
    return {choice.name: (choice.trained, choice.why) for choice in model.choices}


HEAD = " f = Flatten (h) y = MatMul (f, w)"
OUT = {"w": normal(POSITIONS * WIDTH, 3)}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a learned position table": ("h = Add (x, p)", {"p": normal(1, POSITIONS, WIDTH)}, ""),
    "a table of waves": ("h = Add (x, p)", {"p": WAVES[None]}, "sines"),
    "a scaled table of waves, transposed": ("t = Transpose (p) h = Add (x, t)", {"p": 3 * WAVES.T}, "sines"),
    "deviations of the input": ("h = Div (x, p)", {"p": np.abs(normal(WIDTH))}, "preprocessing"),
    "a number behind a mean": ("c = Sub (x, m) h = Div (c, p)", {"m": normal(WIDTH), "p": 2.5}, "preprocessing"),
    "a scale behind an activation": ("r = Relu (x) h = Mul (r, p)", {"p": normal(WIDTH)}, ""),
    "a temperature": ("r = Relu (x) e = Exp (p) h = Mul (r, e)", {"p": 0.5}, ""),
    "an exporter's number": ("r = Relu (x) h = Mul (r, val_3)", {"val_3": 0.7}, "exporter"),
    "epsilon": ("r = Relu (x) a = Add (r, p) h = Sqrt (a)", {"p": 1e-6}, "epsilon"),
    "a mask": ("r = Relu (x) h = Add (r, p)", {"p": np.tril(np.full((POSITIONS, WIDTH), -1e9))}, "mask"),
    "a zero filling": (
        "c = Greater (x, z) h = Where (c, x, zeros_like)",
        {"z": 0.0, "zeros_like": np.zeros((POSITIONS, WIDTH))},
        "zeros",
    ),
    "a token that is zero at first": ("c = Greater (x, z) h = Where (c, x, p)", {"z": 0.0, "p": np.zeros(WIDTH)}, ""),
    "a factor that is zero at first": ("r = Relu (x) m = Mul (p, r) h = Add (m, x)", {"p": 0.0}, ""),
    "a table of straight lines": ("h = Add (x, p)", {"p": np.arange(48.0).reshape(POSITIONS, WIDTH)}, ""),
    "bounds": ("h = Clip (x, , p)", {"p": 1.0}, "a setting of"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule(case: str, tmp_path: Path) -> None:
    body, tables, reason = CASES[case]
    model = imported(tmp_path, body + HEAD, {**tables, **OUT})
    trained, why = decided(model)[list(tables)[-1]]
    assert trained == (not reason)
    assert reason in why, why
    assert (list(tables)[-1] in {value.name for value in model.graph.parameters}) == (not reason)


@pytest.mark.parametrize(
    ("table", "reason"),
    [(mel(), "filter bank"), (DFT, "Fourier"), (normal(BINS, WIDTH), "read"), (np.eye(BINS, WIDTH), "read")],
)
def test_matrices_of_signal_processing(table: Any, reason: str, tmp_path: Path) -> None:
    model = imported(tmp_path, "h = MatMul (x, p)" + HEAD, {"p": table, **OUT}, f"{POSITIONS}, {BINS}")
    trained, why = decided(model)["p"]
    assert reason in why
    assert trained == (reason == "read")


def test_the_scale_of_attention(tmp_path: Path) -> None:
    body = "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) d = Mul (s, p) a = Softmax (d) h = MatMul (a, x)"
    assert decided(imported(tmp_path, body + HEAD, {"p": WIDTH**-0.5, **OUT}))["p"][0] is False
    assert decided(imported(tmp_path, body + HEAD, {"p": 0.4, **OUT}))["p"][0] is True


def test_a_fixed_scale_and_shift_behind_a_dense_layer(tmp_path: Path) -> None:
    body = "f = Flatten (x) g = Gemm (f, w, b) m = Mul (g, k) a = Add (m, c) y = Relu (a)"
    tables = {"b": normal(3), "k": normal(3), "c": normal(3), **OUT}
    found = decided(imported(tmp_path, body, tables))
    assert [found[name][0] for name in ("w", "b", "k", "c")] == [True, True, False, False]
    alone = "f = Flatten (x) g = Gemm (f, w, b) m = Mul (g, k) y = Relu (m)"
    assert decided(imported(tmp_path, alone, {k: v for k, v in tables.items() if k != "c"}))["k"][0]


def test_outputs_of_constant_nodes_are_none(tmp_path: Path) -> None:
    body = "p = Constant <value_floats = [1.0, 2.0]> () q = Concat <axis = 0> (p, p, p, p) h = Add (x, q)" + HEAD
    model = imported(tmp_path, body, OUT)
    assert [value.name for value in model.graph.parameters] == ["w"]
    named = imported(tmp_path, body, OUT, trainable=("p",))
    assert decided(named)["p"] == (True, "--trainable")


SCALED = "r = Relu (x) h = Mul (r, p)" + HEAD


def test_what_the_user_says_counts(tmp_path: Path) -> None:
    tables = {"p": normal(WIDTH), **OUT}
    model = imported(tmp_path, SCALED, tables, frozen=("p*",))
    assert [value.name for value in model.graph.parameters] == ["w"]
    waves = imported(tmp_path, "h = Add (x, p)" + HEAD, {"p": WAVES[None], **OUT}, trainable=("p",))
    assert {value.name for value in waves.graph.parameters} == {"p", "w"}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"trainable": ("nobody",)}, "E0101.*no floating-point initializer"),
        ({"frozen": ("nobody.*",)}, "E0101.*no floating-point initializer"),
        ({"trainable": ("p",), "frozen": ("*",)}, "E0113.*named by --trainable and by --frozen"),
    ],
)
def test_a_contradiction_is_an_error(options: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=what):
        imported(tmp_path, SCALED, {"p": normal(WIDTH), **OUT}, **options)


def test_a_setting_cannot_be_trained(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no gradient reaches high"):
        imported(tmp_path, "h = Clip (x, , high)" + HEAD, {"high": 1.0, **OUT}, trainable=("high",))


def test_equal_values_are_tied_until_told_apart(tmp_path: Path) -> None:
    body = "r = Relu (x) q = Identity (p) g = Mul (r, p) k = Relu (g) h = Mul (k, q)" + HEAD
    tied = imported(tmp_path, body, {"p": np.ones(WIDTH), **OUT})
    assert {value.name for value in tied.graph.parameters} == {"p", "w"}
    assert any("trained tied" in note and "p, q (--untie)" in note for note in tied.graph.notes)
    apart = imported(tmp_path, body, {"p": np.ones(WIDTH), **OUT}, untie=True)
    assert {value.name for value in apart.graph.parameters} == {"p", "q", "w"}
    assert not any("tied" in note for note in apart.graph.notes)


def test_tables_that_rules_leave_out_have_a_reason(tmp_path: Path) -> None:
    model = imported(tmp_path, "h = Add (x, p)" + HEAD, {"p": WAVES[None], **OUT})
    assert decided(model)["p"] == (False, "a table of sines and cosines")


@pytest.mark.parametrize("op", ["Identity", "Add"])
def test_long_chains_end(op: str, tmp_path: Path) -> None:
    """Readers behind views, and what is done to the input, are followed without a call for every node."""
    count = 3000
    if op == "Identity":
        chain = " ".join(f"p{i + 1} = Identity (p{i})" for i in range(count)) + f" h = Mul (x, p{count})"
        model = imported(tmp_path, "x2 = Relu (x) " + chain.replace("(x,", "(x2,") + HEAD, {"p0": normal(WIDTH), **OUT})
        assert decided(model)["p0"][0]
    else:
        chain = "x0 = Identity (x) " + " ".join(f"x{i + 1} = Add (x{i}, p)" for i in range(count))
        model = imported(tmp_path, f"{chain} h = Relu (x{count})" + HEAD, {"p": normal(WIDTH), **OUT})
        assert decided(model)["p"] == (False, "preprocessing of the input")


def test_names_that_the_file_has_already_are_not_taken(tmp_path: Path) -> None:
    """The shape of a copy is a constant of ours; the file's own of that name has another purpose."""
    body = "r = Relu (x) g = Mul (r, p) s = Reshape (g, linear_1_shape) k = Add (s, linear_1) h = Relu (k)"
    p = normal(WIDTH)
    tables = {"p": p, "linear_1": p.reshape(1, 1, WIDTH), "linear_1_shape": np.array([1, POSITIONS, WIDTH]), **OUT}
    imported(tmp_path, body + HEAD, tables)
    path = tmp_path / "net.onnx"
    path.write_bytes(path.read_bytes().replace(b"linear_1_shape", b"linear_1.shape"))
    assert {value.name for value in load_model(path).graph.parameters} == {"p", "w"}


def test_a_weight_behind_an_operator_without_gradient_is_frozen_by_name(tmp_path: Path) -> None:
    """The complaint names the option that trains the rest: the operator can be evaluated at compile time."""
    tables = {
        "at": np.arange(WIDTH)[None] % POSITIONS,
        "part": normal(1, WIDTH),
        "whole": normal(POSITIONS, WIDTH),
        **OUT,
    }
    body = "t = ScatterElements (whole, at, part) h = Add (x, t)" + HEAD
    with pytest.raises(CompileError) as caught:
        imported(tmp_path, body, tables)
    assert "whole, part, which is trained" in caught.value.details[0]
    assert caught.value.details[0].endswith("--frozen whole --frozen part")
    found = decided(imported(tmp_path, body, tables, frozen=("whole", "part")))
    assert {name: trained for name, (trained, _) in found.items()} == {"whole": False, "part": False, "w": True}


def test_an_open_bound_of_a_clip_is_no_root_of_a_number(tmp_path: Path) -> None:
    """PyTorch's exporter writes infinity as an initializer of its own numbering."""
    model = imported(tmp_path, "h = Clip (x, low, c)" + HEAD, {"low": 0.0, "c": np.inf, **OUT})
    assert decided(model)["c"] == (False, decided(model)["low"][1])
    path = tmp_path / "net.onnx"
    proto = onnx.load(path)
    proto.producer_name = "pytorch"
    proto.graph.node[0].input[2] = next(t for t in proto.graph.initializer if t.name == "c").name = "onnx::Clip_41"
    path.write_bytes(proto.SerializeToString())
    assert [value.name for value in load_model(path).graph.parameters] == ["w"]
