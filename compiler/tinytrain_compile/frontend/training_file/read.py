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
    path: Path, weights: Path | None = None, max_window: int | None = ANY_WINDOW, output: str = ""
) -> tuple[onnx.ModelProto, FileTraining | None]:
    """Return the model of a file or folder, up to its loss, and what the file says about training; None: nothing.

    weights: an .npz with weights that the file leaves open. max_window: frames to which a file with state may be
    unrolled; None: as many as by default. output: the one that counts, of several. Errors: those of read_proto, of
    frontend/tflite and of frontend/rings, E0201 and E0213 for a folder of something else; E0231 for a training graph
    that cannot be taken over; E0105 for weights.
    """
    file = model_file(path)
    if file != path and not file.exists():
        raise foreign_folder(path)
    path, data = file, read_bytes(file)
    if data[4:8] == TFLITE:
        from tinytrain_compile.frontend.tflite import translated

        proto = translated(path.name, data, max_window)
    else:
        proto = _without_state(parse_proto(path, data), path, max_window, output)
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


def _without_state(proto: onnx.ModelProto, path: Path, max_window: int | None, output: str) -> onnx.ModelProto:
    """Return the file of a window for one with explicit state, any other as it is; E0113 for a window of that."""
    window = None
    if _may_have_state(proto):
        from tinytrain_compile.frontend.rings.onnx_window import in_one_window

        window = in_one_window(proto, path.parent, path.name, max_window, output)
    if window is None and max_window:
        raise CompileError("E0113", "--max-window", "is for files with state", "leave it out")
    return proto if window is None else window.proto


def _may_have_state(proto: onnx.ModelProto) -> bool:
    """Tell whether a forward model has several inputs and several outputs."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    several = len(inputs) > 1 and len(proto.graph.output) > 1
    return several and not proto.training_info and not is_gradient_graph(proto)


def model_file(path: Path) -> Path:
    """Return the file that is read for a path, which may be a folder of training artifacts."""
    return path / TRAINING_MODEL if os.path.isdir(path) else path
