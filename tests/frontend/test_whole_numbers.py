"""Inputs of integers that a Cast makes floating-point numbers of: pixels of a byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tests.e2e.file_level import agreement
from tests.frontend.models import parse, run_imported, write
from tests.frontend.nets import Net
from tinytrain_compile.driver.file_check import check as file_check
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model


def camera(kind: str, *lines: str) -> onnx.ModelProto:
    """A network whose first lines make x [1, 6, 5, 3] of this type to `real` of this shape."""
    net = Net(f"{kind}[1, 6, 5, 3] x", "float[1, 4] y")
    net.table("k255", 255.0, np.float32)
    for line in lines:
        net.add(line)
    net.add("scaled = Div (real, k255)")
    net.add("image = Transpose <perm = [0, 3, 1, 2]> (scaled)")
    net.conv("c", "image", (4, 3, 3, 3), "strides = [2, 2]")
    net.add("r = Relu (c)")
    net.add("f = Flatten (r)")
    net.dense("y", "f", 16, 4)
    return net.model()


WAYS = {
    "uint8": ("real = Cast <to = 1> (x)",),
    "int8": (
        "t = Transpose <perm = [0, 2, 1, 3]> (x)",
        "u = Transpose <perm = [0, 2, 1, 3]> (t)",
        "real = Cast <to = 1> (u)",
    ),
    "int32": ("wide = Cast <to = 7> (x)", "real = Cast <to = 1> (wide)"),
    "uint16": ("real = Cast <to = 11> (x)",),
}


@pytest.mark.parametrize("kind", WAYS)
def test_equals_onnxruntime_on_the_integers(kind: str, tmp_path: Path) -> None:
    model = camera(kind, *WAYS[kind])
    if kind == "uint16":  # onnxruntime wants the rest in the type of the Cast
        next(node for node in model.graph.node if node.op_type == "Cast").attribute[0].i = 1
    path = write(model, tmp_path)
    imported = load_model(path)
    assert imported.graph.inputs[0].dtype == "float32"
    assert f"input x is {kind} in the file" in imported.graph.notes[0]
    x = np.random.default_rng(0).integers(0, 128, (1, 6, 5, 3)).astype(kind)
    expected = onnxruntime.InferenceSession(path.read_bytes()).run(["y"], {"x": x})[0]
    np.testing.assert_allclose(run_imported(imported, x.astype(np.float32))[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("quant", ["fp32", "int8"])
@pytest.mark.parametrize("kind", WAYS)
def test_the_check_runs_the_file_on_its_integers(
    kind: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, low = write(camera(kind, *WAYS[kind]), tmp_path), -128 if kind in ("int8", "int32") else 0
    x = np.random.default_rng(0).integers(low, low + 256, (8, 6, 5, 3)).astype(np.int32)
    np.savez(tmp_path / "calib.npz", x=x)
    seen = list[np.ndarray]()
    run = file_check.FileModel.run

    def watched(self: object, node: object, values: dict[str, np.ndarray], *more: object) -> object:
        seen.append(values["x"])
        return run(self, node, values, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(file_check.FileModel, "run", watched)
    found = agreement(path, quant=quant, **({"calib": tmp_path / "calib.npz"} if quant == "int8" else {}))
    assert found.whole and found.tensors >= 5
    assert {array.dtype.name for array in seen} == {kind}
    assert min(int(array.min()) for array in seen) < low + 20 and max(int(array.max()) for array in seen) > low + 200


def test_numbers_that_the_file_cannot_take(tmp_path: Path) -> None:
    path = write(camera("uint8", *WAYS["uint8"]), tmp_path)
    for bad in (0.5, -1, 256):
        np.savez(tmp_path / "data.npz", x=np.full((2, 6, 5, 3), bad), y=np.zeros(2, np.int32))
        with pytest.raises(CompileError) as caught:
            agreement(path, data=tmp_path / "data.npz")
        assert caught.value.code == "E0105" and "integers from 0 to 255" in str(caught.value)


REFUSED = {
    "wraps": ("uint8", "s = Add (x, x)\nr = Cast <to = 1> (s)", "E0221", "(Add) computes with its integers"),
    "narrower": ("int32", "s = Cast <to = 2> (x)\nr = Cast <to = 1> (s)", "E0501", "Cast, to"),
    "string": ("string", "r = Cast <to = 1> (x)", "E0221", "its type is string"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_integers_that_are_computed_with(name: str, tmp_path: Path) -> None:
    kind, lines, code, what = REFUSED[name]
    text = f"net ({kind}[1, 4] x) => (float[1, 4] y) {{ {lines}\ny = MatMul (r, w) }}"
    with pytest.raises(CompileError) as caught:
        load_model(write(parse(text, {"w": np.ones((4, 4), np.float32)}), tmp_path))
    assert caught.value.code == code and what in str(caught.value)


COMPUTED = {
    "truth of a byte": ("uint8", "s = Cast <to = 9> (x)\nr = Cast <to = 1> (s)"),
    "truth": ("bool", "n = Not (x)\nr = Cast <to = 1> (n)"),
    "compared": ("int8", "s = Greater (x, x2)\nr = Cast <to = 1> (s)"),
    "arithmetic": ("int64", "s = Add (x, x2)\nt = Mul (s, s)\nu = Sub (t, x)\nr = Cast <to = 1> (u)"),
    "largest": ("int32", "s = Max (x, x2)\nt = Abs (s)\nu = Neg (t)\nr = Cast <to = 1> (u)"),
    "bounded": ("int64", "s = Clip (x, zero, two)\nr = Cast <to = 1> (s)"),
    "counted": ("int64", "s = ReduceSum (x, one)\nt = CumSum (x, one0)\nu = Add (s, t)\nr = Cast <to = 1> (u)"),
    "any": ("bool", "s = ReduceMax <axes = [1]> (x)\nt = Or (s, x)\nr = Cast <to = 1> (t)"),
    "alike": ("int32", "f = Cast <to = 1> (x)\ns = CastLike (f, x)\nr = CastLike (s, f)"),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_integers_and_truth_values_are_computed_with(name: str, tmp_path: Path) -> None:
    kind, lines = COMPUTED[name]
    text = f"net ({kind}[1, 4] x) => (float[1, 5] y) {{ {lines}\ny = MatMul (r, w) }}"
    x2 = np.array([[1, -2, 0, 3]]).astype("bool" if kind == "bool" else kind)
    whole = {"one": np.int64([1]), "one0": np.int64(1), "zero": np.int64(0), "two": np.int64(2)}
    weights = {"w": np.float32(np.arange(20).reshape(4, 5) / 8), "x2": x2, **whole}
    path = write(parse(text, {n: a for n, a in weights.items() if f"{n})" in text or f"{n}," in text}), tmp_path)
    imported = load_model(path)
    assert imported.whole is not None
    for seed in range(3):
        x = np.random.default_rng(seed).integers(*((0, 2) if kind in ("bool", "uint8") else (-3, 4)), (1, 4))
        expected = ReferenceEvaluator(str(path)).run(None, {"x": x.astype(x2.dtype)})[0]
        np.testing.assert_allclose(run_imported(imported, x.astype(np.float32))[0], expected, rtol=0, atol=1e-5)
    assert agreement(path).whole
