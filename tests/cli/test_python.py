"""Calls from Python: models and samples that are no files, what `help()` says, and errors in one line."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from tinytrain_compile.options.compile_options import OPTIONS
from tinytrain_compile.options.option import GROUPS
from tinytrain_compile.torch_export import arguments_of

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((12, 1, 8, 8)).astype(np.float32), RANDOM.integers(0, 10, 12).astype(np.int32)
QUICK: dict[str, Any] = {"verify": "none", "update": "head"}


class Tensor:
    """As PyTorch's: numpy cannot read one that needs a gradient."""

    def __init__(self, array: np.ndarray[Any, Any], attached: bool = True) -> None:
        self.array, self.attached = array, attached
        self.shape = array.shape

    def detach(self) -> Tensor:
        return Tensor(self.array, False)

    def cpu(self) -> Tensor:
        return self

    def __array__(self, *_args: Any, **_more: Any) -> Any:
        if self.attached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.array


def test_a_model_in_memory_is_that_of_its_file() -> None:
    of_file = tt.compile(DIGITS, **QUICK)
    of_bytes = tt.compile(DIGITS.read_bytes(), name="digits", **QUICK)
    of_proto = tt.compile(onnx.load(DIGITS), name="digits", **QUICK)
    assert of_file.files == of_bytes.files == of_proto.files
    program = SimpleNamespace(model_proto=onnx.load(DIGITS))  # as torch.onnx.export returns it
    assert tt.compile(program, name="digits", **QUICK).files == of_file.files  # pyright: ignore[reportArgumentType]
    assert "model_train.h" in tt.compile(onnx.load(DIGITS), **QUICK).files


@pytest.mark.parametrize(
    "data",
    [
        {"x": X, "y": Y},
        (X, Y),
        [(X[:5], Y[:5]), (X[5:], Y[5:])],
        [[X[:5], Y[:5]], [X[5:], Y[5:]]],
        ({"x": X}, Y),
        ({"x": X[i : i + 4], "y": Y[i : i + 4]} for i in (0, 4, 8)),
        (Tensor(X), Tensor(Y)),
    ],
    ids=["dict", "pair", "batches", "lists", "pair of names", "generator", "tensors"],
)
def test_arrays_are_taken_as_an_npz(data: Any, tmp_path: Path) -> None:
    """They are calibrated with, and learned from, as if they had been saved."""
    np.savez(tmp_path / "calib", x=X, y=Y)
    wanted = tt.compile(DIGITS, quant="int8", calib=tmp_path / "calib.npz", **QUICK)
    found = tt.compile(DIGITS, quant="int8", calib=data, **QUICK)
    names = [name for name in wanted.files if name.endswith((".c", ".h"))]
    assert names and all(found.files[name] == wanted.files[name] for name in names)


def test_x_alone_and_its_batches() -> None:
    found = [tt.compile(DIGITS, quant="int8", calib=calib, **QUICK) for calib in (X, [X[:6], X[6:]], {"x": X})]
    assert found[0].files == found[1].files == found[2].files


def test_finetune_takes_arrays(tmp_path: Path) -> None:
    """As a file of any name: one without .npz was not found again."""
    out = tmp_path / "finetune.toml"
    few: dict[str, Any] = {"epochs": 1, "seeds": 1, "jobs": 1, "clips": (0.0,), "update": "head", "out": out}
    with np.load(DIGITS.with_name("data.npz")) as data:
        arrays = {name: data[name][:60] for name in ("x", "y", "x_test", "y_test")}
    found = tt.finetune(DIGITS.read_bytes(), arrays, **few)
    np.savez(tmp_path / "data", **arrays)
    assert tt.finetune(DIGITS, tmp_path / "data.npz", **few).rate == found.rate
    assert list(tmp_path.iterdir()) == [tmp_path / "data.npz"]
    with pytest.raises(tt.CompileError, match=r"error\[E0105\]: data: 5 samples are too few"):
        tt.finetune(DIGITS.read_bytes(), (X[:5], Y[:5]), out=out)


SAVED = np.zeros(9)
REFUSED: list[tuple[str, str, Callable[[], Any]]] = [
    ("E0101", "model: ndarray of shape (9,) is no model", lambda: tt.compile(SAVED)),  # pyright: ignore[reportArgumentType]
    ("E0213", "model.onnx: is text, not an ONNX file", lambda: tt.compile(b"hello")),
    ("E0201", "none.onnx: cannot read the model", lambda: tt.compile("none.onnx")),
    ("E0201", "cannot read the model (File name too long)", lambda: tt.compile("x" * 5000)),
    (
        "E0101",
        "out=: compile writes no folder; leave it out; then compiled.save(folder)",
        lambda: tt.compile(DIGITS, out="out"),
    ),
    ("E0101", "force=: compile writes no folder", lambda: tt.compile(DIGITS, force=True)),
    ("E0101", "zero byte", lambda: tt.compile("a\0b")),
    ("E0101", "zero byte", lambda: tt.compile(DIGITS, target="a\0b")),
    ("E0101", "--arena: ndarray of shape (9,) is no value", lambda: tt.compile(DIGITS, arena=SAVED)),  # pyright: ignore[reportArgumentType]
    ("E0101", "--plans: ndarray of shape (9,) is no value", lambda: tt.compile(DIGITS, plans=[1, SAVED])),
    ("E0101", "--name: '../x' is no C name", lambda: tt.compile(DIGITS.read_bytes(), name="../x")),
    ("E0101", "only answers a question", lambda: tt.compile(DIGITS, help=True)),
    ("E0105", "data: int holds no arrays", lambda: tt.compile(DIGITS, data=5, **QUICK)),
    ("E0105", "data: has no batches", lambda: tt.compile(DIGITS, data=[], **QUICK)),
    ("E0105", "data: its batches do not fit together: x (12, 1, 8, 8), (12,)", lambda: tt.compile(DIGITS, data=[X, Y])),
    ("E0105", "batch 2 has x, the first has x, y", lambda: tt.compile(DIGITS, data=[(X, Y), X])),
    ("E0105", "y is ndarray of shape (12,) of <U1", lambda: tt.compile(DIGITS, data=(X, np.array(["a"] * 12)))),
    (
        "E0105",
        "the model takes (samples, 1, 8, 8); resize",
        lambda: tt.compile(DIGITS, data=(X[..., 1:], Y)),
    ),
    ("E0105", "data: has no array y; it holds x; give dict(x=x, y=...)", lambda: tt.compile(DIGITS, data=X)),
    ("E0105", "calib: x holds NaN", lambda: tt.compile(DIGITS, quant="int8", calib=X * np.nan)),
]


@pytest.mark.parametrize(("code", "text", "call"), REFUSED, ids=[text[:40] for _, text, _ in REFUSED])
def test_every_error_is_one_line_with_an_id(
    code: str, text: str, call: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(tt.CompileError) as caught:
        call()
    assert caught.value.code == code
    assert text in str(caught.value) and "array(" not in str(caught.value) and "[[" not in str(caught.value)
    assert len(str(caught.value)) < 600 and capsys.readouterr() == ("", "")


def test_a_call_of_the_twin_is_told_where_it_is() -> None:
    compiled = tt.compile(DIGITS, **QUICK)
    with pytest.raises(
        AttributeError, match=r"no attribute 'train_step'; a twin has it: compiled\.twin\(\)\.train_step"
    ):
        compiled.train_step(X, Y)
    with pytest.raises(AttributeError, match=r"no attribute 'steps'$"):
        assert compiled.steps


def test_an_endless_iterable_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinytrain_compile.cli.python_inputs.MOST_DATA_BYTES", 1 << 20)

    def endless() -> Any:
        while True:
            yield X, Y

    with pytest.raises(tt.CompileError, match="larger than 1 MB"):
        tt.compile(DIGITS, data=endless())


def test_an_endless_iterable_of_nothing_ends() -> None:
    nothing = itertools.repeat((np.zeros((0, 1, 8, 8), np.float32), np.zeros(0, np.int32)))
    with pytest.raises(tt.CompileError, match="has a batch without samples"):
        tt.compile(DIGITS, data=nothing)


def test_files_that_a_twin_cannot_reach(tmp_path: Path) -> None:
    compiled = tt.compile(DIGITS, **QUICK)
    with compiled.twin() as twin:
        for path in (tmp_path / "none" / "a", tmp_path, "a\0b"):
            with pytest.raises(tt.CompileError, match="E0104"):
                twin.save(path)
            with pytest.raises(tt.CompileError, match="E0105"):
                twin.load(path)
        with pytest.raises(tt.CompileError, match="E0105"):
            twin.predict([[1, 2], [3]])  # pyright: ignore[reportArgumentType]
    for path in ("a\0b", "x" * 5000):
        with pytest.raises(tt.CompileError, match=r"E0101|E0104"):
            compiled.save(path)


def test_public_names_are_listed() -> None:
    assert dir(tt) == sorted(tt.__all__)
    assert {"compile", "from_torch", "finetune", "CompileError"} <= set(dir(tt))


def test_help_has_every_option_of_the_command() -> None:
    """Made of the declarations, and each is what the call takes."""
    text = inspect.getdoc(tt.compile) or ""
    left_out = {"--out", "--force", "--dry-run", "--dump-after"}
    for known in OPTIONS.values():
        name = known.flag.removeprefix("--").replace("-", "_")
        assert bool(re.search(rf"^  {name}: ", text, re.MULTILINE)) == (known.flag not in left_out), known.flag
    assert all(title in text for title in GROUPS.values())
    assert "quant: 'auto' | 'fp32' | 'int8' = 'auto'" in text and "lr: float = 0.01" in text
    assert "data: path of an .npz, arrays or batches = None" in text and "smallest arena" in text
    assert 'tt.compile("model.onnx", arena="64KB"' in text
    assert max(map(len, text.splitlines())) <= 120


def test_from_torch_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(tt.CompileError, match=r"torch cannot be imported .*pip install 'tinytrain-compile\[torch\]'"):
        tt.from_torch(object(), X)


class _Net:
    def forward(self, x: Any) -> Any:
        return x


def test_a_batch_of_a_loader_is_no_example() -> None:
    """Without PyTorch: its tensors are numpy's here."""
    torch = SimpleNamespace(Tensor=np.ndarray, as_tensor=float)
    for batch in ([X, Y], (X, Y)):
        with pytest.raises(tt.CompileError, match=r"_Net.forward\(x\) does not take 2 inputs.* of a batch x, y only x"):
            arguments_of(torch, _Net(), batch)
    assert [each.shape for each in arguments_of(torch, _Net(), [X])] == [X[:1].shape]
    with pytest.raises(tt.CompileError, match=r"E0101.*no tensor: float\(\) argument .*; give a tensor"):
        arguments_of(torch, _Net(), {"x": X})


def _module(torch: Any) -> Any:
    """A module with everything that an exporter would fold: weight normalisation, a BatchNormalization, a Dropout."""
    nn = torch.nn
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 8, 3))
    return nn.Sequential(normed, nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 4))


def test_a_module_of_pytorch_trains_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module = _module(torch).train()
    x, y = torch.randn(5, 3, 8), torch.randint(0, 4, (5,))
    compiled = tt.from_torch(module, x, verify="none", arena="64KB", data=(x, y), update="all", lr=0.05)
    assert module.training and module[0].training
    assert compiled.project.summary.model == "Sequential.onnx"
    module.eval()
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    with compiled.twin() as twin:
        for i in range(5):
            loss = torch.nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert twin.train_step(x[i : i + 1], y[i : i + 1]) == pytest.approx(loss.item(), rel=1e-4)
        learned, wanted = twin.state_dict(), dict(module.named_parameters())
    assert learned.keys() == wanted.keys()
    for name, parameter in wanted.items():
        assert learned[name] == pytest.approx(parameter.detach().numpy(), rel=1e-4, abs=1e-5), name


def test_dropout_of_a_module_is_kept_if_asked() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module = _module(torch).train()
    for dropout in ("off", "on"):
        compiled = tt.from_torch(module, torch.randn(1, 3, 8), verify="none", dropout=dropout)
        ops = {node.op for node in compiled.project.summary.train.graph.nodes}
        assert ("RandomDropout" in ops) == (dropout == "on") and module[3].training


def test_what_pytorch_cannot_export_is_one_line() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    with pytest.raises(tt.CompileError, match=r"E0101.*PyTorch cannot export Sequential: .*; torch.onnx.export"):
        tt.from_torch(_module(torch), torch.randn(1, 5, 8))
    with pytest.raises(tt.CompileError, match=r"list is no torch.nn.Module"):
        tt.from_torch([], torch.randn(1, 5, 8))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("verify", False, 'verify="none" turns it off'),
        ("stream", False, 'stream="off" turns it off'),
        ("verify", True, "choose one of qemu, host, none"),
        ("arena", False, "leave it out, or give a value"),
    ],
)
def test_true_and_false_are_for_switches(option: str, value: bool, said: str) -> None:
    with pytest.raises(tt.CompileError, match=re.escape(f"{option}=: {value} is no value of this option; {said}")):
        tt.compile(DIGITS, **{**QUICK, option: value})
    assert tt.compile(DIGITS, **QUICK, count=False).files
