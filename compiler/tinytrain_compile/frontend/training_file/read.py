"""Files that say more than a forward model: read as the forward model with its loss, and how that is trained.

Two forms (docs/adr/0026-training-graphs.md): training information in the model (TrainingInfoProto), and graphs that
have gradient nodes, as the training artifacts of ONNX Runtime, a folder, and Deeploy's files.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.foreign import foreign_folder, is_tflite
from tinytrain_compile.frontend.file.protobuf import is_gradient_graph, parse_proto, read_bytes
from tinytrain_compile.ir.imported import FileTraining

TRAINING_MODEL = "training_model.onnx"


def read_training_file(
    path: Path, weights: Path | None = None, max_window: int | None = None
) -> tuple[onnx.ModelProto, FileTraining | None]:
    """Return the model of a file or folder, up to its loss, and what the file says about training; None: nothing.

    weights: an .npz with weights that the file leaves open; max_window: frames of a .tflite file with state, None: any.
    Errors: those of read_proto and of frontend/tflite, E0201 and E0213 for a folder of something else; E0231 for a training graph that cannot be taken over; E0105 for weights.
    """
    file = model_file(path)
    if file != path and not file.exists():
        raise foreign_folder(path)
    path, data = file, read_bytes(file)
    proto = _from_tflite(file, data, max_window) if is_tflite(data) else parse_proto(file, data)
    if is_gradient_graph(proto):
        from tinytrain_compile.frontend.training_file.gradient_graph import read_gradient_graph

        return read_gradient_graph(proto, path, weights)
    if weights is not None:
        what = "is for graphs with gradient nodes, whose weights are inputs"
        raise CompileError("E0113", "--weights", what, "leave it out")
    if proto.training_info:
        from tinytrain_compile.frontend.training_file.info import read_training_info

        return read_training_info(proto, path.parent)
    return proto, None


def _from_tflite(path: Path, data: bytes, max_window: int | None) -> onnx.ModelProto:
    from tinytrain_compile.frontend.tflite import translated

    return translated(path.name, data, max_window)


def model_file(path: Path) -> Path:
    """Return the file that is read for a path, which may be a folder of training artifacts."""
    return path / TRAINING_MODEL if os.path.isdir(path) else path
