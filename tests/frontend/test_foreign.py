"""Files of other frameworks are told how they become ONNX."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("net.pt", b"PK\x03\x04", 'torch.onnx.export(net.eval(), (x[:1],), "net.onnx", dynamo=True'),
        ("net.pth", b"\x80\x02", "torch.onnx.export"),
        ("net.safetensors", b"\x08\0\0\0\0\0\0\0{}", "safetensors.torch.load_file"),
        ("net.keras", b"PK\x03\x04", "tf2onnx.convert.from_keras"),
        ("weights", b"\x89HDF\r\n\x1a\n", "tf2onnx.convert.from_keras"),
        ("net.tflite", b"\x08\x01", "is named like a LiteRT (TFLite) model and is none"),
        ("net.pb", b"\x08\x01", "--graphdef net.pb"),
        ("net.pkl", b"\x80\x04", "is a Python pickle"),
        ("own.npz", b"PK\x03\x04", "tinytrain-compile model.onnx --data own.npz"),
        ("net.onnx", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("net.onnx", b"<!DOCTYPE html>", "is a web page"),
        ("net.onnx", b"", "is empty"),
        ("net.onnx.gz", b"\x1f\x8b\x08\0", "is compressed; unpack it first: gunzip net.onnx.gz"),
        ("net.zip", b"PK\x03\x04", "is an archive, not a model; unpack it first"),
        ("net.onnx", b"ir_version: 8", "is text"),
    ],
)
def test_the_export_call_is_told(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CompileError, match="E0213") as problem:
        load_model(tmp_path / name, FrontendOptions())
    assert said in str(problem.value)


def test_weights_beside_a_model(tmp_path: Path) -> None:
    for name in ("net.onnx", "net.onnx.data"):
        (tmp_path / name).write_bytes(b"\x08\x01")
    with pytest.raises(
        CompileError, match=r"E0213.*holds weights, not a model; give the model beside it: .*net\.onnx$"
    ):
        load_model(tmp_path / "net.onnx.data", FrontendOptions())


def test_a_folder_of_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(CompileError, match=r"E0213.*--saved-model .*net --output net\.onnx"):
        load_model(tmp_path / "net", FrontendOptions())
    with pytest.raises(CompileError, match=r"E0201.*there is no such file"):
        load_model(tmp_path / "net" / "net.onnx", FrontendOptions())


def test_another_folder_is_called_one_and_its_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"E0201.*is a folder, not a model; give an \.onnx file"):
        load_model(tmp_path, FrontendOptions())
    (tmp_path / "net.onnx").write_bytes(b"")
    with pytest.raises(CompileError, match=r"E0201.*is a folder, not a model; give the file: .*net\.onnx$"):
        load_model(tmp_path, FrontendOptions())


def test_a_model_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may read everything: opening fails as it does for others."""
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(CompileError, match=r"E0201.*\(no permission to read it\); allow it: chmod u\+r .*net\.onnx$"):
        load_model(path, FrontendOptions())
