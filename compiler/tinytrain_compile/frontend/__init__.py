"""ONNX model file -> forward Graph. The only importer of onnx."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from tinytrain_compile.frontend.evaluator.function import FileFunction, Rounded
from tinytrain_compile.frontend.evaluator.model import EvaluatorLacksError, FileModel, FileNode
from tinytrain_compile.frontend.file.control_flow import without_control_flow
from tinytrain_compile.frontend.file.fixed_batch import at_batch_1
from tinytrain_compile.frontend.file.forms import OPSET, at_opset_13, in_float32, with_output
from tinytrain_compile.frontend.file.guard import parse_model
from tinytrain_compile.frontend.file.model import OnnxModel
from tinytrain_compile.frontend.file.quantisation import QUANTISED_OPS
from tinytrain_compile.frontend.file.scaler import without_scalers
from tinytrain_compile.frontend.importer import HANDLERS, import_model
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.quantised.qoperators import QLINEAR_OPS, in_qdq_form
from tinytrain_compile.frontend.training_file.read import model_file, read_training_file
from tinytrain_compile.ir.imported import ImportedModel

__all__ = [
    "EvaluatorLacksError",
    "FileFunction",
    "FileModel",
    "FileNode",
    "FrontendOptions",
    "ImportedModel",
    "Rounded",
    "load_model",
    "supported_operators",
]


def load_model(path: Path, options: FrontendOptions | None = None) -> ImportedModel:
    """Read, check and import a model file.

    A folder is one of training artifacts of ONNX Runtime. Raises CompileError: E02xx for a file or model that cannot be
    used, E0305 for labels that do not fit their loss,
    E0501 or E0503 with one line per node for what has no IR form.
    """
    options = options or FrontendOptions()
    proto, training = read_training_file(path, options.weights)
    return import_model(_read(proto, model_file(path), options, path.stem), options, training)


def _read(proto: onnx.ModelProto, path: Path, options: FrontendOptions, name: str) -> OnnxModel:
    """The model in the form that is imported, with a note on whatever had to be brought to it."""
    model = parse_model(with_output(proto, options.output), name, path.parent, options)
    if model.opset < OPSET:
        note = f"opset {model.opset}: read as onnx's version converter writes it for opset {OPSET}"
        model = parse_model(at_opset_13(model), name, path.parent, replace(options, input_shapes={}))
        model = replace(model, notes=(note,))
    model = without_scalers(in_float32(without_control_flow(model, path.parent)))
    return model if options.any_batch else at_batch_1(in_qdq_form(model))


def supported_operators() -> tuple[str, ...]:
    """Names of all ONNX operators that are imported (further ones are evaluated where their inputs are constant)."""
    return tuple(sorted((*HANDLERS, *QUANTISED_OPS, *QLINEAR_OPS, "Constant", "Shape", "Size")))
