"""Files that say more than a forward model: read as the forward model with its loss, and how that is trained.

Two forms (docs/adr/0026-training-graphs.md): training information in the model (TrainingInfoProto), and graphs that
have gradient nodes, as the training artifacts of ONNX Runtime, a folder, and Deeploy's files.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.foreign import TFLITE, foreign_folder
from tinytrain_compile.frontend.file.protobuf import is_gradient_graph, parse_proto, read_bytes
from tinytrain_compile.ir.imported import FileTraining

TRAINING_MODEL = "training_model.onnx"
ANY_WINDOW = 0
"""--max-window for a file that has been read before."""


def read_training_file(
    path: Path, weights: Path | None = None, max_window: int | None = ANY_WINDOW
) -> tuple[onnx.ModelProto, FileTraining | None]:
    """Return the model of a file or folder, up to its loss, and what the file says about training; None: nothing.

    weights: an .npz with weights that the file leaves open. max_window: frames to which a .tflite file with state may
    be unrolled; None: as many as by default. Errors: those of read_proto and of frontend/tflite, E0201 and E0213 for a
    folder of something else; E0231 for a training graph that cannot be taken over; E0105 for weights.
    """
    file = model_file(path)
    if file != path and not file.exists():
        raise foreign_folder(path)
    path, data = file, read_bytes(file)
    if data[4:8] == TFLITE:
        from tinytrain_compile.frontend.tflite import translated

        proto = translated(path.name, data, max_window)
    elif max_window:
        raise CompileError("E0113", "--max-window", "is for .tflite files with state", "leave it out")
    else:
        proto = parse_proto(path, data)
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


def model_file(path: Path) -> Path:
    """Return the file that is read for a path, which may be a folder of training artifacts."""
    return path / TRAINING_MODEL if os.path.isdir(path) else path
