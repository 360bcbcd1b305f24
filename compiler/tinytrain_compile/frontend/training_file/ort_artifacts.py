"""The training artifacts of ONNX Runtime: training_model.onnx, and beside it optimizer_model.onnx and a checkpoint.

The forward pass, its loss and its gradients are one graph, whose weights are inputs. What leads to the loss is the
model; gradients are made anew.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import MOST_DATA_BYTES, open_file, read_file
from tinytrain_compile.frontend.file.reader import read_proto
from tinytrain_compile.frontend.training_file.ort_checkpoint import checkpoint_tensors
from tinytrain_compile.frontend.training_file.proto import number_of, refused, up_to
from tinytrain_compile.ir.imported import FileTraining
from tinytrain_compile.ir.types import Array

MICROSOFT = "com.microsoft"
OPTIMIZER_MODEL, CHECKPOINT = "optimizer_model.onnx", "checkpoint"
_ACCUMULATOR = "InPlaceAccumulatorV2"
_BUFFER = "_grad.accumulation.buffer"


def is_artifact(proto: onnx.ModelProto) -> bool:
    """Whether a model is the training graph that ONNX Runtime makes: gradients end in accumulators."""
    return any(node.op_type == _ACCUMULATOR and node.domain == MICROSOFT for node in proto.graph.node)


def read_artifacts(proto: onnx.ModelProto, path: Path, weights: Path | None) -> tuple[onnx.ModelProto, FileTraining]:
    """The model up to its loss with its weights, and how it is trained. E0231, E0105."""
    graph = proto.graph
    accumulators = [node for node in graph.node if node.op_type == _ACCUMULATOR and node.domain == MICROSOFT]
    buffers = [next(iter(node.input), "") for node in accumulators]
    trained = tuple(name.removesuffix(_BUFFER) for name in buffers if name.endswith(_BUFFER))
    inputs = {value.name: value for value in graph.input}
    if len(trained) != len(buffers) or any(name not in inputs for name in trained):
        raise refused(path.name, "its accumulators do not say which weights they are of")
    known, source = _weights(path, weights)
    missing = [name for name in trained if name not in known]
    if missing:
        what = f"{source} has no weight {missing[0]}"
        raise refused(path.name, what, "give --weights FILE.npz with all weights, or the checkpoint beside the model")
    tensors = [_tensor(name, known[name], inputs[name]) for name in inputs if name in known]
    names = {tensor.name for tensor in tensors}
    left = [value for value in graph.input if value.name not in names]
    made = up_to(proto, list(graph.node), left, [*graph.initializer, *tensors], graph.output[:1])
    if len(made.graph.input) > 2:
        names = ", ".join(value.name for value in made.graph.input)
        what = f"{source} leaves open which of its inputs are weights: {names}"
        raise refused(path.name, what, "give --weights FILE.npz with all weights, frozen ones too")
    return made, _training(path, trained)


def _tensor(name: str, array: Array, declared: onnx.ValueInfoProto) -> onnx.TensorProto:
    dims = [d.dim_value for d in declared.type.tensor_type.shape.dim]
    if list(array.shape) != dims:
        raise refused(f"weight {name}", f"its values have shape {list(array.shape)}, the model wants {dims}")
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _weights(path: Path, weights: Path | None) -> tuple[Mapping[str, Array], str]:
    """Weights by name, of --weights or of the checkpoint, and where they are from."""
    if weights is not None:
        return _npz(weights), weights.name
    checkpoint = path.parent / CHECKPOINT
    if not checkpoint.is_file():
        return {}, "no checkpoint is beside the model, which"
    try:
        return checkpoint_tensors(read_file(checkpoint)), CHECKPOINT
    except (OSError, ValueError) as problem:
        try_ = "copy it again, or give --weights FILE.npz"
        raise CompileError("E0105", CHECKPOINT, f"cannot be read ({problem})", try_) from problem


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


def _training(path: Path, trained: tuple[str, ...]) -> FileTraining:
    """The optimizer: of its own model, where that is beside; else that of the options."""
    place = path.parent / OPTIMIZER_MODEL
    if not place.is_file():
        return FileTraining(4, trained, "", {}, None, {}, ("training: no optimizer_model.onnx, the options say how",))
    nodes = [node for node in read_proto(place).graph.node if node.domain == MICROSOFT]
    kinds = {node.op_type for node in nodes}
    if kinds == {"SGDOptimizerV2"}:
        return FileTraining(4, trained, "sgd", {}, None, {}, ())
    if kinds != {"AdamWOptimizer"} or len(nodes) != 1:
        raise refused(OPTIMIZER_MODEL, f"it has {', '.join(sorted(kinds)) or 'no optimizer'}", "use SGD or AdamW")
    return FileTraining(4, trained, "adamw", _adamw(nodes[0]), None, {}, ())


def _adamw(node: onnx.NodeProto) -> dict[str, Any]:
    """adam_mode 0 is PyTorch's AdamW; 1 is that of transformers: epsilon beside sqrt(v) itself, decay at the end."""
    if number_of(node, "correct_bias", 1) != 1:
        raise refused(OPTIMIZER_MODEL, "correct_bias is 0", "use the corrected form")
    mode = int(number_of(node, "adam_mode", 0))
    if mode not in (0, 1):
        raise refused(OPTIMIZER_MODEL, f"adam_mode {mode} is unknown", "use 0 or 1")
    return {
        "betas": (number_of(node, "alpha", 0.9), number_of(node, "beta", 0.999)),
        "epsilon": number_of(node, "epsilon", 1e-8),
        "weight_decay": number_of(node, "weight_decay", 0.01),
        "raw_epsilon": mode == 1,
        "decay_after": mode == 1,
    }
