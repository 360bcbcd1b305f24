"""Back to LiteRT: the .tflite file that was imported, with other numbers in the constants that were trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.protobuf import read_bytes
from tinytrain_compile.frontend.written.result import WrittenFile
from tinytrain_compile.ir.imported import FileNumbers, ImportedModel, StoredTensor
from tinytrain_compile.ir.types import Array


def written_tflite(path: Path, model: ImportedModel, learned: Mapping[str, Array]) -> WrittenFile:
    """Return the file with these real numbers, in the scales that it has. Raises E0112 as `written_file`."""
    from tinytrain_compile.frontend.tflite.rewrite import with_constants

    if model.fresh:
        what = "--classes has made a layer of another size, and the tensors behind it have sizes in the file"
        raise CompileError("E0112", path.name, what, "export a float model as ONNX, or keep the number of classes")
    sources = {source.tensor.name: source.tensor for source in model.sources.values()}
    arrays, held, notes = dict[str, Array](), dict[str, Array](), list[str]()
    for name, numbers in learned.items():
        held[name], lost = _within(sources[name], numbers)
        if lost:
            what = f"{lost} number{'s are' if lost > 1 else ' is'}"
            notes.append(f"{name}: {what} beyond its scale in the file, and written as the largest of it")
        _add(arrays, sources[name], held[name])
    for name, copy in model.copies.items():
        if copy.source in learned:
            arrays[name] = copy.of(held[copy.source])
    return WrittenFile(with_constants(path.name, read_bytes(path), arrays), b"", tuple(notes), held)


def _add(arrays: dict[str, Array], tensor: FileNumbers, numbers: Array) -> None:
    name = tensor.name if tensor.stored is None else tensor.stored.name
    if name in arrays:
        what = "the file holds once what the device has learned as several weights"
        raise CompileError("E0112", f"weight {name}", what, "write it once for each layer")
    arrays[name] = numbers.astype(tensor.kind) if tensor.stored is None else tensor.stored.integers(numbers)


def _within(tensor: FileNumbers, numbers: Array) -> tuple[Array, int]:
    """Return the numbers with those beyond the file's scale at its ends, and how many these are."""
    if tensor.stored is None:
        return numbers, 0
    low, high = _ends(tensor.stored)
    count = numbers / tensor.stored.scale
    outside = (np.rint(count) < low) | (np.rint(count) > high)
    outside &= numbers != tensor.initial  # -128 of the file stays
    ends = (np.clip(count, low, high) * tensor.stored.scale).astype(np.float32)
    return np.where(outside, ends, numbers), int(outside.sum())


def _ends(stored: StoredTensor) -> tuple[Array, Array]:
    """Return the smallest and largest integers, less their zero point: int8 weights are -127 to 127 by the format."""
    limits = np.iinfo(stored.kind)
    low = limits.min + 1 if stored.kind == "int8" else limits.min
    return low - stored.zero, limits.max - stored.zero
