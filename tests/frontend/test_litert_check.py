"""LiteRT as the judge of a .tflite file, as a compilation asks it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.frontend import tflite_nets as nets
from tests.frontend.test_tflite import CASES, wake_word
from tinytrain_compile import compilation
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.file_check import litert, litert_file
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.tflite import layers
from tinytrain_compile.ir.summary import LiteRtAgreement
from tinytrain_compile.options.compile_options import CompileOptions


class _DoneError(Exception):
    def __init__(self, found: LiteRtAgreement | None) -> None:
        super().__init__()
        self.found = found


def judged(path: Path, **options: Any) -> LiteRtAgreement:
    """What LiteRT says in a compilation with these options, without the stages behind it."""

    def check(*arguments: Any) -> None:
        raise _DoneError(litert.check_litert(*arguments))

    settings = {"update": "last:1", "verify": "host", "out": path.parent / "out", **options}
    with (
        mock.patch.object(pipeline, "check_file", return_value=None),
        mock.patch.object(pipeline, "check_litert", check),
        pytest.raises(_DoneError) as done,
    ):
        compilation.compile_model(CompileOptions(path, **settings))
    assert done.value.found is not None
    return done.value.found


def written(name: str, folder: Path, kind: str) -> Path:
    recipe, shape = CASES[name], nets.SHAPES[name]
    ranges = None if kind == "float32" else nets.measured(recipe, shape)
    path = folder / "net.tflite"
    path.write_bytes(nets.written(recipe, ranges, **({} if kind == "float32" else {"io": kind})))
    return path


@pytest.mark.parametrize("kind", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("name", ["conv stride 2", "depthwise multiplier", "dense of an image", "residual", "softmax"])
def test_every_kind_of_file_agrees(name: str, kind: str, tmp_path: Path) -> None:
    found = judged(written(name, tmp_path, kind))
    assert not found.skipped and found.tensors >= 2
    if kind == "float32":
        assert found.steps is None and found.output <= 1e-5
    else:
        assert found.steps is not None and found.steps <= (0 if name in nets.EXACT else 1)


@pytest.mark.parametrize(("update", "head"), [("head", "int8"), ("all", "fp32")])
def test_a_stream_agrees(update: str, head: str, tmp_path: Path) -> None:
    """With integers up to the end and nothing that rounds for a mask, the device gives the bytes of the file."""
    path = tmp_path / "okay_nabu.tflite"
    path.write_bytes(wake_word("okay_nabu").read_bytes())
    found = judged(path, update=update, head=head)
    assert (found.steps, found.equal_bytes, found.step) == (0.0, 1.0, 1 / 256)
    assert found.tensors >= 30
    assert found.output == 0.0 if (update, head) == ("head", "int8") else found.output <= 6 / 256


def test_a_translation_with_an_error_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding on the wrong side: the model file that is checked otherwise has the same error."""
    right = layers.same_pads
    monkeypatch.setattr(layers, "same_pads", lambda *given: tuple(reversed(right(*given))))
    path = written("conv stride 2", tmp_path, "int8")
    with pytest.raises(CompileError) as caught:
        compilation.compile_model(CompileOptions(path, out=tmp_path / "out", update="last:1", verify="host"))
    assert caught.value.code == "E0605" and "LiteRT" in caught.value.what


def test_without_litert_the_check_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written("dense", tmp_path, "int8")
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    assert "pip install ai-edge-litert" in judged(path).skipped


@pytest.mark.parametrize(
    ("program", "said"),
    [("import os; os.abort()", "signal 6"), ("import sys; sys.exit('tensor 3 is odd')", "tensor 3 is odd")],
)
def test_what_ends_litert_does_not_end_the_compiler(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,500 mutants one ended LiteRT 2.3.0 by a signal."""
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(litert_file, "litert", SimpleNamespace(__file__=str(tmp_path / "program.py")))
    assert said in judged(written("dense", tmp_path, "int8")).skipped
