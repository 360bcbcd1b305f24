"""Files that are not ONNX models: their kind, and how its framework exports ONNX, for errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from tinytrain_compile.errors import CompileError

_KERAS = (
    'import tf2onnx, keras; m = keras.models.load_model("{file}"); '
    'tf2onnx.convert.from_keras(keras.Model(m.inputs, m.outputs), output_path="{onnx}")'
)
"""A model of inputs and outputs: tf2onnx does not take a Sequential of Keras 3."""
_TORCH = 'torch.onnx.export(net.eval(), (x[:1],), "{onnx}", dynamo=True, optimize=False)'
_WAYS = {
    "torch": (
        "is a PyTorch file",
        f"export the module in Python, x being an input: {_TORCH} (docs/pytorch-to-board.md)",
    ),
    "safetensors": (
        "holds weights without their network",
        'load them in PyTorch with net.load_state_dict(safetensors.torch.load_file("{file}")), '
        f"then export: {_TORCH}",
    ),
    "keras": ("is a Keras model", f"export it in Python: {_KERAS}"),
    "tflite": ("is a LiteRT (TFLite) model", "use it where a model is read, or exported to"),
    "no tflite": ("is named like a LiteRT (TFLite) model and is none", "copy or convert the model again"),
    "saved model": (
        "is a TensorFlow SavedModel",
        "convert it: python -m tf2onnx.convert --saved-model {folder} --output {onnx}",
    ),
    "graph": (
        "is a TensorFlow graph",
        "convert it: python -m tf2onnx.convert --graphdef {file} --inputs INPUT:0 --outputs OUTPUT:0 --output {onnx}",
    ),
    "pickle": (
        "is a Python pickle",
        "load it in the framework that wrote it and export it to ONNX (torch.onnx.export, skl2onnx.to_onnx)",
    ),
    "compiled": ("is a model that another tool has compiled", "give the .onnx file that it was made from"),
    "data": ("holds samples, not a model", "give the model first: tinytrain-compile model.onnx --data {file}"),
    "external": ("holds weights, not a model", "give the model beside it: {folder}/{stem}"),
    "gzip": ("is compressed", "unpack it first: gunzip {file}"),
    "archive": ("is an archive, not a model", "unpack it first, then give the .onnx file in it"),
    "lfs": ("is a git-lfs pointer, not the file itself", "fetch the file: git lfs pull"),
    "page": ("is a web page, not the file itself", "download the file itself, for example with its raw link"),
    "empty": ("is empty", "export or copy the model again"),
    "array": ("is a C array of a model, not the model itself", "give the .tflite or .onnx file that it was made from"),
    "text": ("is text, not an ONNX file", "give a binary .onnx file; text of ONNX: onnx.parser.parse_model, onnx.save"),
}
"""Kind of file -> (what it is, what to do)."""
_C_ARRAY = re.compile(rb"\bchar\s+\w+\s*\[[^\]]*\]")
"""A declaration as `xxd -i` and TensorFlow's tools write it."""
_HEAD = 4096
"""Bytes at the start of a file in which its comments end and its array begins."""
_ENDINGS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".pt2", ".ptl"), "torch"),
    ".safetensors": "safetensors",
    **dict.fromkeys((".keras", ".h5", ".hdf5"), "keras"),
    **dict.fromkeys((".tflite", ".lite"), "no tflite"),
    ".pb": "graph",
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "pickle"),
    **dict.fromkeys((".ort", ".engine", ".trt", ".pte", ".mlmodel", ".bin", ".xml"), "compiled"),
    **dict.fromkeys((".npz", ".npy", ".csv"), "data"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".bz2", ".xz", ".7z", ".zst"), "archive"),
}

TFLITE = b"TFL3"
"""Bytes 4 to 8 of a model of LiteRT, which is read, too (frontend/tflite)."""
_STARTS: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda start: not start, "empty"),
    (lambda start: start.startswith(b"version https://git-lfs"), "lfs"),
    (lambda start: start.lstrip()[:1] == b"<", "page"),
    (lambda start: start[4:8] == TFLITE, "tflite"),
    (lambda start: start.startswith(b"\x89HDF"), "keras"),
    (lambda start: start.startswith(b"\x1f\x8b"), "gzip"),
)
"""Whether a file begins like a kind. These are sure, and so count more than its name."""
_EXTERNAL = (".data", ".onnx_data", ".weights")
"""Endings of files of weights beside NAME.onnx: NAME.onnx.data."""
_MAGIC = ((b"\x80", "pickle"), (b"PK", "torch"), (b"\x93NUMPY", "data"))
"""First bytes that count if the name says nothing."""
_SAVED_MODEL = "saved_model.pb"
_LISTED = 3
"""Models of a folder that an error lists."""


def is_tflite(path: Path) -> bool:
    """Tell whether a file that can be read is a .tflite file."""
    with path.open("rb") as file:
        return file.read(8)[4:] == TFLITE


def foreign(path: Path, data: bytes) -> tuple[str, str] | None:
    """Return what a file is and how to make an ONNX model of it; None if nothing tells."""
    start = data[:64]
    if path.suffix in _EXTERNAL and path.with_suffix("").is_file():
        return _said("external", path)
    kind = next((kind for begins, kind in _STARTS if begins(start)), "")
    kind = kind or ("saved model" if path.name == _SAVED_MODEL else _ENDINGS.get(path.suffix.lower(), ""))
    kind = kind or next((known for magic, known in _MAGIC if start.startswith(magic)), "")
    if not kind and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        kind = "array" if _C_ARRAY.search(data[:_HEAD]) else "text"
    return _said(kind, path) if kind else None


def foreign_folder(folder: Path) -> CompileError:
    """Return the error for a folder without training artifacts: E0213 for a model of TensorFlow, else E0201."""
    if (folder / _SAVED_MODEL).is_file():
        return CompileError("E0213", str(folder), *_said("saved model", folder / _SAVED_MODEL))
    there = sorted(islice(folder.glob("*.onnx"), _LISTED))
    way = f"give the file: {' or '.join(map(str, there))}" if there else "give an .onnx file"
    return CompileError("E0201", str(folder), "is a folder, not a model", way)


def _said(kind: str, path: Path) -> tuple[str, str]:
    what, way = _WAYS[kind]
    name = path.parent.name if kind == "saved model" else path.stem
    return what, way.format(file=path.name, folder=path.parent, stem=path.stem, onnx=f"{name or 'model'}.onnx")
