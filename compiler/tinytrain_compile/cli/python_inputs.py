"""Models and samples of Python calls that are no files: files of a folder that exists while the call runs."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np

from tinytrain_compile.data.samples import as_array, said
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import MOST_DATA_BYTES
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import OPTIONS
from tinytrain_compile.verify.tools import work_folder


@runtime_checkable
class Proto(Protocol):
    """What an onnx.ModelProto is here; this package imports onnx in its frontend only."""

    def SerializeToString(self) -> bytes:
        """Return the bytes of a model file."""
        ...


Model = str | os.PathLike[str] | bytes | Proto
"""The path of a model file, its bytes, or an onnx.ModelProto."""

ARRAYS = frozenset(name for name, known in OPTIONS.items() if known.metavar == "FILE.npz")
"""Options that take arrays in place of an .npz file."""

_MODEL_NAME = "model"
"""Of a model that is no file, unless name= says another: the prefix of its C names."""
_FOUR = 4
"""Arrays of x, y, x_test and y_test."""
_HOW = "give a path, a dict of arrays by name, (x, y), x alone, or an iterable of such batches (a DataLoader)"


@contextmanager
def as_files(model: Model, options: Mapping[str, Any]) -> Generator[tuple[Path, dict[str, Any]]]:
    """Yield the model and options with a file for everything that has none. CompileError E0101 or E0105."""
    given = dict(options)
    arrays = {name: value for name, value in given.items() if name in ARRAYS and not _is_path(value)}
    arrays = {name: value for name, value in arrays.items() if value is not None}
    if _is_path(model) and not arrays:
        yield checked_path("model", model), given
        return
    made = {name: _named(name, value) for name, value in arrays.items()}  # before there is a folder: of other errors
    with work_folder() as folder:
        path = checked_path("model", model) if _is_path(model) else folder / _file_name(given.get("name"))
        if not _is_path(model):
            path.write_bytes(_bytes(model))
        for name, found in made.items():
            given[name] = folder / name  # as messages call it
            with given[name].open("wb") as stream:
                np.savez(stream, allow_pickle=False, **found)
        yield path, given


def _is_path(value: Any) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(value, (str, os.PathLike))


def _file_name(name: Any) -> str:
    """Return the name of a model's file; whether `name` is one is for the options to say."""
    known = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_]{1,60}", name)
    return f"{name if known else _MODEL_NAME}.onnx"


def checked_path(where: str, value: str | os.PathLike[str]) -> Path:
    """Return a path; CompileError E0101 for a text that cannot be one, which no command line can hold."""
    text = os.fsdecode(value)
    if "\0" in text:
        raise CompileError("E0101", where, "a path cannot hold a zero byte", "give the path of a file or folder")
    return Path(text)


def _bytes(model: Any) -> bytes:
    """Return the bytes of a model that is no path."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", model))
    model = getattr(model, "model_proto", model)  # what torch.onnx.export returns has it
    if not isinstance(model, Proto):
        way = "give the path of a file, its bytes, or an onnx.ModelProto; a PyTorch module: tt.from_torch"
        raise CompileError("E0101", "model", f"{said(model)} is no model", way)
    try:
        return model.SerializeToString()
    except Exception as problem:  # protobuf: of more than 2 GB, or with a required field that is missing
        what = f"cannot be written as a file ({str(problem)[:100]})"
        raise CompileError("E0201", "model", what, "save it with onnx.save, and give the path") from problem


def _named(option: str, value: Any) -> dict[str, Array]:
    """Return arrays by name: those of a dict, x and y of a pair, or all of an iterable of batches in a row."""
    pair = isinstance(value, tuple) and len(cast("tuple[Any, ...]", value)) == 2
    if pair or isinstance(value, Mapping) or hasattr(cast("Any", value), "shape"):
        return _batch(option, cast("Any", value))
    if not isinstance(value, Iterable) or isinstance(value, (bytes, bytearray)):
        raise CompileError("E0105", option, f"{said(value)} holds no arrays", _HOW)
    return _joined(option, _batches(option, cast("Iterable[Any]", value)))


def _batches(option: str, value: Iterable[Any]) -> Iterator[dict[str, Array]]:
    """Yield the batches of an iterable; E0105 for one that goes on beyond what an .npz may hold."""
    size = 0
    for each in value:
        batch = _batch(option, each)
        if not all(array.size for array in batch.values()):  # an endless iterable of these would have no end
            raise CompileError("E0105", option, "has a batch without samples", _HOW)
        size += sum(array.nbytes for array in batch.values())
        if size > MOST_DATA_BYTES:
            what = f"its batches are larger than {MOST_DATA_BYTES >> 20} MB"
            raise CompileError("E0105", option, what, "give fewer of them, as itertools.islice does")
        yield batch


def _joined(option: str, batches: Iterator[dict[str, Array]]) -> dict[str, Array]:
    parts = dict[str, list[Array]]()
    count = 0
    for batch in batches:
        if count and batch.keys() != parts.keys():
            what = f"batch {count + 1} has {', '.join(batch)}, the first has {', '.join(parts)}"
            raise CompileError("E0105", option, what, _HOW)
        for name, array in batch.items():
            parts.setdefault(name, []).append(array)
        count += 1
    if not count:
        raise CompileError("E0105", option, "has no batches", _HOW)
    try:
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except ValueError as problem:  # samples without an axis for them, or of several shapes
        if parts.keys() == {"x"} and len(parts["x"]) == _FOUR:
            what, names = "has four arrays", ", ".join(f'"{name}": {name}' for name in ("x", "y", "x_test", "y_test"))
            raise CompileError("E0105", option, what, f"name them: {{{names}}}") from problem
        shapes = "; ".join(f"{name} {_shapes(arrays)}" for name, arrays in parts.items())
        what = f"its batches do not fit together: {shapes}"
        raise CompileError("E0105", option, what, "give batches with the samples on the first axis") from problem


def _shapes(arrays: Iterable[Array]) -> str:
    found = list(dict.fromkeys(str(array.shape) for array in arrays))
    return ", ".join(found[:3]) + (", ..." if found[3:] else "")


def _batch(option: str, value: Any) -> dict[str, Array]:
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(name): as_array(option, str(name), each) for name, each in items}
    if hasattr(value, "shape"):
        return {"x": as_array(option, "x", value)}
    if isinstance(value, (tuple, list)) and 0 < len(cast("list[Any]", value)) <= 2:
        first, *labels = cast("list[Any]", value)
        found = _batch(option, first) if isinstance(first, Mapping) else {"x": as_array(option, "x", first)}
        return {**found, "y": as_array(option, "y", labels[0])} if labels else found
    raise CompileError("E0105", option, f"{said(value)} is no batch", _HOW)
