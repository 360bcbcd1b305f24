"""Inputs of integers that a Cast makes floating-point numbers of: pixels of a byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

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
    "wraps": ("uint8", "s = Add (x, x)\nr = Cast <to = 1> (s)", "(Add) computes with its integers"),
    "narrower": ("int32", "s = Cast <to = 2> (x)\nr = Cast <to = 1> (s)", "(Cast) makes uint8 of its numbers"),
    "truth": ("uint8", "s = Cast <to = 9> (x)\nr = Cast <to = 1> (s)", "(Cast) makes bool of its numbers"),
    "bool": ("bool", "r = Cast <to = 1> (x)", "its type is bool"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_integers_that_are_computed_with(name: str, tmp_path: Path) -> None:
    kind, lines, what = REFUSED[name]
    text = f"net ({kind}[1, 4] x) => (float[1, 4] y) {{ {lines}\ny = MatMul (r, w) }}"
    with pytest.raises(CompileError) as caught:
        load_model(write(parse(text, {"w": np.ones((4, 4), np.float32)}), tmp_path))
    assert caught.value.code == "E0221" and what in str(caught.value)
