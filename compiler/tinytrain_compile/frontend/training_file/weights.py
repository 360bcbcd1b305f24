"""Weights of a training graph, which are inputs there: an .npz by names or by positions, or a checkpoint."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import MOST_DATA_BYTES, open_file, read_file
from tinytrain_compile.frontend.training_file.ort_checkpoint import checkpoint_tensors
from tinytrain_compile.frontend.training_file.proto import refused
from tinytrain_compile.ir.types import Array

CHECKPOINT = "checkpoint"
_POSITION = re.compile(r"arr_0*(\d+)")
"""Of an array that numpy.savez was given without a name: the N-th input, accumulators not counted."""
_BESIDE = re.compile(r"mb\d+_arr_\d+|meta_\w+")
"""What Deeploy keeps in the same file: samples of further micro-batches, and counts."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Arrays by input. source: what messages call the file; called: how it calls the array of an input."""

    arrays: Mapping[str, Array]
    source: str
    called: Mapping[str, str]

    def tensor(self, declared: onnx.ValueInfoProto) -> onnx.TensorProto:
        """Return the initializer in place of an input. E0231 for another shape or kind of numbers."""
        array, name = self.arrays[declared.name], declared.name
        dims = [d.dim_value for d in declared.type.tensor_type.shape.dim]
        where = f"weight {name}" if self.called[name] == name else f"weight {name} ({self.called[name]})"
        if list(array.shape) != dims:
            raise refused(where, f"its values have shape {list(array.shape)}, the model wants {dims}", _GIVE)
        kind = declared.type.tensor_type.elem_type
        known = kind in helper.get_all_tensor_dtypes()
        wanted = np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if known else np.dtype(np.void)
        if array.dtype.kind != wanted.kind:
            raise refused(where, f"its values are {array.dtype}, the model wants {wanted}", _GIVE)
        with np.errstate(over="ignore"):  # infinity is reported with the other numbers
            return numpy_helper.from_array(np.array(array, wanted, order="C"), name)


_GIVE = "give --weights FILE.npz of this model"


def find_weights(path: Path, file: Path | None, inputs: Sequence[str], data: int) -> Weights:
    """Read --weights, or else the checkpoint beside the model.

    inputs: names of the model's inputs, without its accumulators; the first `data` of them are no weights.
    Raises E0105 for a file that cannot be read, E0231 for arrays that no input takes.
    """
    if file is not None:
        return _of_npz(_npz(file), file.name, inputs, data)
    checkpoint = path.parent / CHECKPOINT
    if not checkpoint.is_file():
        return Weights({}, "no checkpoint is beside the model, which", {})
    try:
        found = checkpoint_tensors(read_file(checkpoint))
    except (OSError, ValueError) as problem:
        try_ = "copy it again, or give --weights FILE.npz"
        raise CompileError("E0105", CHECKPOINT, f"cannot be read ({problem})", try_) from problem
    return Weights(found, CHECKPOINT, {name: name for name in found})


def _of_npz(found: Mapping[str, Array], source: str, inputs: Sequence[str], data: int) -> Weights:
    """Read arrays of an .npz by what they are called, or else by their numbers."""
    known = set(inputs)
    if known.isdisjoint(found) and any(_POSITION.fullmatch(name) for name in found):
        numbers = {name: int(match[1]) for name in found if (match := _POSITION.fullmatch(name))}
        extra = [
            name for name in found if numbers.get(name, 0 if _BESIDE.fullmatch(name) else len(inputs)) >= len(inputs)
        ]
        called = {inputs[number]: name for name, number in numbers.items() if data <= number < len(inputs)}
    else:
        extra = [name for name in found if name not in known]
        called = {name: name for name in found}
    if extra:
        what = f"{source} holds {extra[0]}, and the model has no such input"
        raise refused(f"weight {extra[0]}", what, f"its inputs are: {_some(inputs)}")
    return Weights({name: found[key] for name, key in called.items()}, source, called)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _npz(path: Path) -> Mapping[str, Array]:
    try:
        found: dict[str, Array] = {}
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            for item in archive.infolist():
                if item.file_size > MOST_DATA_BYTES:
                    raise ValueError(f"{item.filename} is too large")
                with archive.open(item) as data:
                    array = np.asarray(np.lib.format.read_array(data, allow_pickle=False))
                found[item.filename.removesuffix(".npy")] = array
        return found
    except Exception as problem:  # a damaged or hostile file breaks zipfile and numpy in many ways
        reason = getattr(problem, "strerror", None) or problem
        raise CompileError("E0105", path.name, f"cannot be read ({reason})", "give an .npz of weights") from problem
