"""The twin: to the byte what the board computes, through arrays as the model file has them."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from testing.places import ROOT
from testing.runs import run_steps
from tests.e2e.marks import needs_qemu
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.data.samples import samples_of
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.contribution import measure
from tinytrain_compile.options.effort import ContributionEffort
from tinytrain_compile.target.loader import load_target

DIGITS = ROOT / "examples" / "digits"
STEPS = 200


def samples(count: int = 200) -> tuple[Array, Array]:
    with np.load(DIGITS / "data.npz") as data:
        chosen = np.arange(count) % len(data["x"])
        return data["x"][chosen], data["y"][chosen]


def digits(**options: Any) -> tt.Compiled:
    return tt.compile(DIGITS / "digits.onnx", verify="none", **options)


def int8(**options: Any) -> tt.Compiled:
    return digits(quant="int8", calib=DIGITS / "calib.npz", **options)


@needs_qemu
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (digits, {"update": "all"}),
        (int8, {"update": "all", "optimizer": "momentum"}),
        (digits, {"update": "last:2", "batch": 4, "optimizer": "adam"}),
        (int8, {"update": "last:3", "batch": 4}),
        (digits, {"update": "all", "batch": 8, "micro_batch": 4}),
    ],
    ids=["fp32", "int8", "fp32 batch", "int8 batch", "micro-batch"],
)
def test_twin_and_board_are_equal(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    compiled: tt.Compiled = make(**options)
    project = compiled.project
    with compiled.twin() as twin:
        x, y = samples(STEPS * twin.batch)
        found = samples_of("test", x, y, project.model, project.summary.train)
        board = run_steps(
            project.bundle, load_target("cortex-m7"), found, STEPS, 0.004, twin.batch, tmp_path, mode="qemu"
        )
        for step in range(STEPS):
            chosen = slice(step * twin.batch, (step + 1) * twin.batch)
            twin.train_step(x[chosen], y[chosen], lr=0.004)
        for name, array in twin.instance.state().items():
            assert array.tobytes() == np.asarray(board.states[-1][name]).tobytes(), name


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "in threads"])
def test_twins_do_not_disturb_each_other(at_once: bool) -> None:
    """Each trains at a rate of its own, one after the other in every step, or all at once: as it does alone."""
    x, y = samples(STEPS)
    compiled = int8(update="all")
    rates = [0.002 * (1 + number) for number in range(8)]
    twins = [compiled.twin() for _ in rates]

    def train(twin: tt.Twin, rate: float, steps: range) -> None:
        for i in steps:
            twin.train_step(x[i : i + 1], y[i : i + 1], lr=rate)

    if at_once:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(train, twins, rates, [range(STEPS)] * 8))
    else:
        for i in range(STEPS):
            for twin, rate in zip(twins, rates, strict=True):
                train(twin, rate, range(i, i + 1))
    wanted = set[bytes]()
    for twin, rate in zip(twins, rates, strict=True):
        with compiled.twin() as alone:
            train(alone, rate, range(STEPS))
            assert alone.instance.save() == twin.instance.save()
            wanted.add(twin.instance.save())
    assert len(wanted) == 8


def test_a_checkpoint_goes_from_one_build_to_the_other_and_back(tmp_path: Path) -> None:
    x, y = samples(60)
    small, large = digits(update="last:2", arena="24KB"), digits(update="last:2", arena="64KB", target="cortex-m4")
    with small.twin() as one, large.twin() as other:
        before = one.evaluate(x, y)
        for i in range(len(x)):
            one.train_step(x[i : i + 1], y[i : i + 1])
        one.save(tmp_path / "device.bin")
        other.load(tmp_path / "device.bin")
        assert np.array_equal(one.predict(x), other.predict(x))
        after = other.evaluate(x, y)
        assert after["loss"] < before["loss"] and after["accuracy"] > before["accuracy"]
        other.reset()
        assert other.evaluate(x, y) == before
        (tmp_path / "device.bin").write_bytes(b"no checkpoint")
        with pytest.raises(tt.CompileError, match=r"not a checkpoint|too early") as caught:
            other.load(tmp_path / "device.bin")
        assert caught.value.code == "E0105"


def test_outputs_are_those_of_the_file() -> None:
    """By onnxruntime, which shares no code with us."""
    import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

    x, _ = samples(20)
    session: Any = onnxruntime.InferenceSession(str(DIGITS / "digits.onnx"))
    name = session.get_inputs()[0].name
    wanted = np.concatenate([session.run(None, {name: each[None]})[0] for each in x])
    with digits(update="head").twin() as twin:
        found = twin.predict(x)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_loss_is_what_training_reports() -> None:
    x, y = samples(30)
    with digits(update="head").twin() as twin:
        reported = [twin.train_step(x[i : i + 1], y[i : i + 1], lr=0.0) for i in range(30)]
        assert twin.evaluate(x, y)["loss"] == pytest.approx(np.mean(reported), rel=1e-5)


def test_rows_of_an_image_are_given_one_by_one(tmp_path: Path) -> None:
    """A build for rows computes the bytes of the one that takes whole images."""
    x, y = samples(20)
    np.savez(tmp_path / "calib.npz", x=x, y=y)
    options: dict[str, Any] = {"update": "last:2", "calib": tmp_path / "calib.npz", "quant": "int8"}
    lines = digits(input_lines=True, **options)
    with lines.twin() as one, digits(**options).twin() as other:
        assert lines.project.bundle.interface.input_rows
        for i in range(20):
            assert one.train_step(x[i : i + 1], y[i : i + 1]) == other.train_step(x[i : i + 1], y[i : i + 1])
        assert np.array_equal(one.predict(x), other.predict(x))


def test_what_cannot_be_is_said() -> None:
    compiled = digits(update="head")
    x, y = samples(4)
    with compiled.twin() as twin:
        with pytest.raises(
            tt.CompileError, match=r"x is float32 of shape \(1, 8, 8\), .* \(samples, 1, 8, 8\); .* x = x\[None\]"
        ) as caught:
            twin.predict(x[0])
        assert caught.value.code == "E0105"
        with pytest.raises(tt.CompileError, match="4 samples, an update takes 1"):
            twin.train_step(x, y)
        with pytest.raises(tt.CompileError):
            twin.train_step(x[:1], np.asarray([17]))
        with pytest.raises(tt.CompileError, match="learning rate"):
            twin.train_step(x[:1], y[:1], lr=-1.0)
    with pytest.raises(tt.CompileError, match="closed"):
        twin.predict(x)
    with pytest.raises(tt.CompileError, match=r"updates=: .* did you mean update=\?"):
        digits(updates="all")
    with pytest.raises(tt.CompileError, match="a dry run makes no project"):
        digits(dry_run=True)


def test_save_writes_the_output_folder(tmp_path: Path) -> None:
    compiled = digits(update="head", arena="24KB")
    assert "digits_train.c" in compiled.save(tmp_path / "out")
    assert compiled.report["memory"]["arena_bytes"] <= 24 * 1024
    (tmp_path / "out" / "digits_train.c").write_text("mine")
    with pytest.raises(tt.CompileError) as caught:
        compiled.save(tmp_path / "out")
    assert caught.value.code == "E0104"


def test_layout_of_the_file(tmp_path: Path) -> None:
    """Values per pixel come back with channels in front, as the file has them."""
    net = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 2, 4, 4] x) => (float[1, 3, 4, 4] y) { y = Conv (x, w) }""")
    weight = np.random.default_rng(0).normal(size=(3, 2, 1, 1)).astype(np.float32)
    net.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    (tmp_path / "net.onnx").write_bytes(net.SerializeToString())
    x = np.random.default_rng(1).normal(size=(5, 2, 4, 4)).astype(np.float32)
    with tt.compile(tmp_path / "net.onnx", update="all", loss="mse", verify="none").twin() as twin:
        wanted = np.einsum("oi,nihw->nohw", weight[..., 0, 0], x)
        np.testing.assert_allclose(twin.predict(x), wanted, rtol=1e-5, atol=1e-6)
        assert twin.evaluate(x, wanted) == {"loss": pytest.approx(0.0, abs=1e-9)}


def test_a_loss_that_is_nodes_of_the_file(tmp_path: Path) -> None:
    """Only the C knows it: it is what steps at rate 0 report, and the state stays."""
    net = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 3] x, float[1, 2] t) => (float loss)
        { y = Gemm <transB = 1> (x, w) d = Sub (y, t) a = Abs (d) loss = ReduceMean <keepdims = 0> (a) }""")
    weight = np.asarray([[1, 2, 3], [-1, 0, 1]], np.float32)
    net.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    (tmp_path / "net.onnx").write_bytes(net.SerializeToString())
    x, t = (np.random.default_rng(3).normal(size=(20, size)).astype(np.float32) for size in (3, 2))
    wanted = float(np.abs(x @ weight.T - t).mean())
    with tt.compile(tmp_path / "net.onnx", update="all", optimizer="adam", verify="none").twin() as twin:
        assert twin.evaluate(x, t) == {"loss": pytest.approx(wanted, rel=1e-5)}
        first = twin.train_step(x[:1], t[:1], lr=0.01)
        assert first == pytest.approx(float(np.abs(x[0] @ weight.T - t[0]).mean()), rel=1e-5)
    np.savez(tmp_path / "own.npz", x=x, y=t)
    measured = measure(
        options_from(tmp_path / "net.onnx", {"data": tmp_path / "own.npz", "lr": 0.1}),
        ContributionEffort(updates=30, orders=1, jobs=1),
        tmp_path / "gains.csv",
        lambda _what, _share: None,
    ).gains
    assert [gain.part for gain in measured] == ["weight"] and measured[0].gain > 0.1 * wanted


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("s = Sigmoid (g) y = Reshape (s, shape)", "bce"),
        ("y = Reshape (g, shape)", "bce"),
        ("s = Softmax (g) y = Reshape (s, shape)", "cross-entropy"),
        ("y = LogSoftmax (g)", "cross-entropy"),
    ],
)
def test_what_outputs_are_is_seen_behind_what_moves_them(text: str, loss: str, tmp_path: Path) -> None:
    """Scores, probabilities or their logarithms: the loss is that of a step at rate 0, and accuracy is right."""
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 2] x) => (float[1, 2] y) {{ g = MatMul (x, w) {text} }}""")
    weights = {"w": np.eye(2, dtype=np.float32), "shape": np.asarray([1, 2], np.int64)}
    net.graph.initializer.extend([onnx.numpy_helper.from_array(array, name) for name, array in weights.items()])
    (tmp_path / "net.onnx").write_bytes(net.SerializeToString())
    x = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)
    y = (x > 0).astype(np.float32) if loss == "bce" else x.argmax(axis=1)
    with tt.compile(tmp_path / "net.onnx", update="all", loss=loss, verify="none").twin() as twin:
        found = twin.evaluate(x, y)
        assert found["accuracy"] == 1.0
        slots = twin.as_slots(x, y)
        assert found["loss"] == pytest.approx(float(twin.instance.losses(*slots).mean()), rel=1e-4)


def test_a_batch_with_a_number_that_is_none_changes_nothing() -> None:
    x, y = samples(8)
    broken = x[:4].copy()
    broken[2] = np.finfo(np.float32).max
    with digits(update="all", batch=4).twin() as twin, digits(update="all", batch=4).twin() as other:
        with pytest.raises(tt.CompileError) as caught:
            twin.train_step(broken, y[:4])
        assert caught.value.code == "E0603"
        assert twin.train_step(x[4:], y[4:]) == other.train_step(x[4:], y[4:])
        assert twin.instance.save() == other.instance.save()


def test_lists_are_several_values() -> None:
    assert options_from("m.onnx", {"update": ["conv1", "classifier"]}).update == "conv1,classifier"
    assert options_from("m.onnx", {"frozen": ["a", "b"]}).frozen == ("a", "b")
    assert options_from("m.onnx", {"betas": [0.8, 0.99], "optimizer": "adam"}).betas == (0.8, 0.99)
    assert options_from("m.onnx", {"input_shape": {"x": (1, 3, 8)}}).input_shapes == {"x": (1, 3, 8)}
    with pytest.raises(tt.CompileError):
        options_from("m.onnx", {"list_targets": True})


# ---- weights by the file's names -------------------------------------------------------------------------------------


def taught(twin: tt.Twin, rate: float = 0.02) -> None:
    x, y = samples(60)
    for i in range(0, len(x) - twin.batch + 1, twin.batch):
        twin.train_step(x[i : i + twin.batch], y[i : i + twin.batch], lr=rate)


def trained(twin: tt.Twin) -> dict[str, Array]:
    """The parameters as they lie in memory."""
    return {
        name: array
        for name, array in twin.state_dict(raw=True).items()
        if name.partition(".")[0].endswith(("_w", "_b"))
    }


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (digits, {"update": "all"}),
        (digits, {"update": DIGITS / "scheme.toml"}),
        (int8, {"update": "all", "weight_store": "q8.8"}),
        (int8, {"update": "last:2", "weight_store": "sr8", "head": "int8"}),
    ],
    ids=["fp32", "slices", "q8.8", "sr8"],
)
def test_weights_go_from_one_twin_to_the_other(make: Any, options: dict[str, Any]) -> None:
    compiled: tt.Compiled = make(**options)
    initial = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(DIGITS / "digits.onnx").graph.initializer}
    with compiled.twin() as one, compiled.twin() as other:
        first = one.state_dict()
        assert all(np.array_equal(array, initial[name]) for name, array in first.items())
        taught(one)
        weights = one.state_dict()
        assert all(array.shape == initial[name].shape for name, array in weights.items())
        assert any(not np.array_equal(weights[name], first[name]) for name in weights)
        other.load_state_dict(weights)
        held = trained(other)
        assert held and all(np.array_equal(array, held[name]) for name, array in trained(one).items())
        one.load_state_dict(first)
        other.reset()
        assert all(np.array_equal(array, trained(other)[name]) for name, array in trained(one).items())


class _Learning:
    """A tensor of PyTorch that learns: numpy gets it only detached."""

    def __init__(self, array: Array) -> None:
        self.detach = lambda: self
        self.cpu = lambda: array

    def __array__(self, *_: Any) -> Array:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


def test_one_sample_without_its_axis_and_weights_that_learn() -> None:
    x, y = samples(1)
    with digits(update="head").twin() as twin:
        with pytest.raises(
            tt.CompileError, match=r"y has shape \(\); add an axis for the samples: y = np.array\(\[y\]\)"
        ):
            twin.train_step(x, y[0])
        weights = twin.state_dict()
        twin.load_state_dict({name: _Learning(array + 1) for name, array in weights.items()})  # pyright: ignore
        assert all(np.array_equal(array, weights[name] + 1) for name, array in twin.state_dict().items())


def test_weights_that_do_not_fit_are_refused() -> None:
    with int8(update="last:2", head="int8").twin() as twin:
        weights, before = twin.state_dict(), twin.instance.save()
        name = "classifier_w"
        wrong: list[tuple[str, dict[str, Array]]] = [
            ("is missing", {other: array for other, array in weights.items() if other != name}),
            ("is no weight", {**weights, "conv1_w": np.zeros((8, 1, 3, 3), np.float32)}),
            ("has shape .* as state_dict does: transpose it", {**weights, name: weights[name].T}),
            ("has shape .* as state_dict does$", {**weights, name: weights[name][1:]}),
            ("holds NaN or infinity", {**weights, name: np.full_like(weights[name], np.nan)}),
            ("E0105", {**weights, name: weights[name] + 1e3}),
        ]
        with pytest.raises(tt.CompileError, match="weights: str is no dict of arrays; give what state_dict returned"):
            twin.load_state_dict("state.npz")  # pyright: ignore[reportArgumentType]
        for said, each in wrong:
            with pytest.raises(tt.CompileError, match=said) as caught:
                twin.load_state_dict(each)
            assert caught.value.code == "E0105"
            assert twin.instance.save() == before
    with digits(update=DIGITS / "scheme.toml").twin() as twin:
        weights = twin.state_dict()
        moved = {name: array + 1 for name, array in weights.items()}
        with pytest.raises(tt.CompileError, match="does not train"):
            twin.load_state_dict(moved)


def test_a_checkpoint_that_does_not_fit_says_why(tmp_path: Path) -> None:
    """Another --calib makes other scales of the same tensors; another --update makes other tensors."""
    with np.load(DIGITS / "calib.npz") as calib:
        x = calib["x"]
    flags = {"quant": "int8", "update": "last:1", "head": "int8", "verify": "none"}
    kept = tmp_path / "kept.bin"
    tt.compile(DIGITS / "digits.onnx", calib=x, **flags).twin().save(kept)
    twin = tt.compile(DIGITS / "digits.onnx", calib=3 * x, **flags).twin()
    with pytest.raises(tt.CompileError, match=r"E0105.*another build: its tensors have the same sizes.*--calib"):
        twin.load(kept)
    with pytest.raises(tt.CompileError, match=r"E0105.*this build .* B; use the model file, --update"):
        tt.compile(DIGITS / "digits.onnx", update="last:1", verify="none").twin().load(kept)
    twin.save(kept)
    whole = kept.read_bytes()
    damaged = whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]
    for content, said in (
        (damaged, "checksum"),
        (whole[:-9], "ends after"),
        (b"PK", "not a checkpoint"),
        (b"\x08\x0a\x12\x07pytorch", "is a model, not a checkpoint"),
        (b"PK\x03\x04", "is an .npz, not a checkpoint; .* twin.load_state_dict"),
        (b"\xff" * 4096, "not written: every byte is 0xFF; read it where m_save wrote"),
        (b":10010000214601360121470136007EFE09D2190140\n", "text of a hex file; convert it: objcopy"),
        (whole.hex(" ", 4).encode(), "is text of hex digits; .*bytes.fromhex"),
        (base64.b64encode(whole), "is text in base64; .*base64 -d"),
        (b"", "empty"),
    ):
        kept.write_bytes(content)
        with pytest.raises(tt.CompileError, match=said):
            twin.load(kept)
