"""Models of several data inputs, from the file to the board: each has a slot of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tests.frontend.models import parse, write
from tinytrain_compile.errors import CompileError

RATE, COUNT = 0.05, 24
TEXT = """two (float[1, 1, 8, 8] image, float[1, 3] meta, int64[1, 2] ids) => (float[1, 4] y) {
  c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (image, w1, b1) r = Relu (c) f = Flatten (r)
  m = Gemm <transB = 1> (meta, w2, b2) t = Gather (table, ids) e = Flatten (t)
  j = Concat <axis = 1> (f, m, e) y = Gemm <transB = 1> (j, w3, b3)
}"""
SHAPES = {"w1": (4, 1, 3, 3), "b1": (4,), "w2": (5, 3), "b2": (5,), "table": (7, 2), "w3": (4, 73), "b3": (4,)}
PAIR = "pair (float[1, 5] left, float[1, 5] right) => (float[1, 1] y) { a = Gemm <transB = 1> (left, w, b) "
PAIR += "c = Gemm <transB = 1> (right, w, b) d = Sub (a, c) s = Mul (d, d) y = Gemm <transB = 1> (s, v, u) }"
PAIR_SHAPES = {"w": (6, 5), "b": (6,), "v": (1, 6), "u": (1,)}


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def samples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    image, meta = rng.normal(size=(COUNT, 1, 8, 8)), rng.normal(0, 20, (COUNT, 3))
    return {"image": image, "meta": meta, "ids": rng.integers(0, 7, (COUNT, 2)), "y": rng.integers(0, 4, COUNT)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", **samples())
    return write(parse(TEXT, weights(SHAPES)), tmp_path, "two.onnx")


@needs_qemu
@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_the_board_trains_on_all_inputs(quant: str, model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    more = ("--quant", "int8", "--calib", data) if quant == "int8" else ("--verify", "host")
    found = run(model, "--update", "all", "--batch", "2", "--data", data, "--lr", "0.001", "-o", tmp_path / "o", *more)
    text = found.check_success().out
    board = "C in QEMU mps2-an500 vs this machine"
    assert "PASS" in text and "derivative" in text and (board in found.agreed) == (quant == "int8")
    header = (tmp_path / "o" / "two_train.h").read_text()
    assert "#define TWO_INPUTS 3" in header
    assert "two_input_2_t *two_input_2(two_t *m);" in header and "two_input_3_t *two_input_3(two_t *m);" in header
    assert "int32_t values[TWO_INPUT_3_ELEMENTS];" in header
    if quant == "int8":  # meta is twenty times as large: it has a scale of its own
        lines = [line for line in header.splitlines() if line.startswith("#define TWO_INPUT_") and "SCALE " in line]
        scales = [line.split()[-1].rstrip("f") for line in lines]
        assert len(scales) == 2 and max(map(float, scales)) > 10 * min(map(float, scales))


def test_two_towers_train_like_a_plain_implementation_in_float64(tmp_path: Path) -> None:
    """Shared weights, a squared distance, mean squared error; gradients by hand."""
    path, rng = write(parse(PAIR, weights(PAIR_SHAPES)), tmp_path, "pair.onnx"), np.random.default_rng(7)
    left, right, y = rng.normal(size=(6, 5)), rng.normal(size=(6, 5)), rng.normal(size=(6, 1))
    w, b, v, u = (array.astype(np.float64) for array in weights(PAIR_SHAPES).values())
    compiled = tt.compile(path, update="all", loss="mse", lr=RATE, batch=2, verify="none")
    with compiled.twin() as twin:
        for at in range(0, 6, 2):
            part = slice(at, at + 2)
            d = (left[part] - right[part]) @ w.T
            error = (d**2) @ v.T + u - y[part]
            loss = twin.train_step({"left": left[part], "right": right[part]}, y[part])
            assert loss == pytest.approx(float(np.mean(error**2)), rel=1e-5)
            g = 2 * error / 2  # mean over the batch
            gd = (g @ v) * 2 * d
            v, u = v - RATE * g.T @ d**2, u - RATE * g.sum(axis=0)
            w = w - RATE * gd.T @ (left[part] - right[part])
        found = twin.state_dict()
        for name, wanted in {"w": w, "b": b, "v": v, "u": u}.items():
            np.testing.assert_allclose(found[name].reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-6, err_msg=name)
        expected = (((left - right) @ w.T) ** 2) @ v.T + u
        np.testing.assert_allclose(twin.predict({"left": left, "right": right}), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "value"),
    [("features", "on"), ("plans", (9000, 90000)), ("runtime", "replay=4"), ("micro_batch", 2), ("input_lines", True)],
)
def test_options_about_the_one_input_are_refused(option: str, value: object, model: Path) -> None:
    more: dict[str, object] = {"update": "last:1"}
    more |= {"batch": 4} if option in ("micro_batch", "plans") else {}
    more |= {"quant": "int8", "calib": model.with_name("data.npz")} if option == "input_lines" else {}
    with pytest.raises(CompileError, match=r"E0113.*one data input, and this one has 3: image, meta, ids"):
        tt.compile(model, **{"verify": "none", option: value, **more})  # type: ignore[arg-type]


def test_what_samples_lack_is_named(model: Path, tmp_path: Path) -> None:
    known = samples()
    for change, what in (
        ({"meta": None}, "meta"),
        (
            {"meta": known["meta"][:, :2]},
            r"meta is float64 of shape \(samples, 2\), .*; add the missing column",
        ),
        ({"meta": known["meta"][:5]}, "24 of image, 5 of meta, 24 of ids"),
        ({"ids": known["ids"] + 5}, "ids has other numbers than 0 to 6"),
    ):
        arrays = {name: array for name, array in {**known, **change}.items() if array is not None}
        np.savez(tmp_path / "wrong.npz", **arrays)
        with pytest.raises(CompileError, match=f"E0105.*{what}"):
            tt.compile(model, data=tmp_path / "wrong.npz", verify="none")


def test_the_only_input_may_have_its_own_name_in_samples(tmp_path: Path) -> None:
    text = "one (float[1, 5] pixels) => (float[1, 6] y) { y = Gemm <transB = 1> (pixels, w, b) }"
    path = write(parse(text, {name: weights(PAIR_SHAPES)[name] for name in ("w", "b")}), tmp_path)
    rng = np.random.default_rng(1)
    for name in ("x", "pixels"):
        np.savez(tmp_path / f"{name}.npz", **{name: rng.normal(size=(8, 5)), "y": rng.integers(0, 6, 8)})
        assert tt.compile(path, data=tmp_path / f"{name}.npz", verify="none").files


@needs_qemu
def test_a_loss_without_labels_needs_no_labels_on_the_board(tmp_path: Path) -> None:
    text = "h = Gemm <transB = 1> (x, w, b) k = Gemm (h, w) e = Sub (k, x) s = Mul (e, e) "
    text = f"ae (float[1, 5] x) => (float loss) {{ {text} loss = ReduceMean <keepdims = 0> (s) }}"
    path = write(parse(text, {name: weights(PAIR_SHAPES)[name] for name in ("w", "b")}), tmp_path, "ae.onnx")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(2).normal(size=(8, 5)))
    found = run(path, "--update", "all", "--data", tmp_path / "data.npz", "-o", tmp_path / "o").check_success()
    assert "it needs no labels" in " ".join(found.out.split())
    assert "C in QEMU mps2-an500 vs this machine" in found.agreed
    assert "pass NULL" in (tmp_path / "o" / "ae_train.h").read_text()


def test_finetune_names_the_inputs_it_cannot_train(model: Path, tmp_path: Path) -> None:
    found = run("finetune", model, "--data", tmp_path / "data.npz", "-o", tmp_path / "f.toml")
    found.check_error("E0113", 2)
    assert "this one has 3: image, meta, ids" in found.err
