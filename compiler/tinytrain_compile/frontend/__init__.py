"""ONNX model file -> forward Graph. The only importer of onnx."""

from __future__ import annotations

from pathlib import Path

from tinytrain_compile.frontend.file_model import EvaluatorLacksError, FileModel, FileNode
from tinytrain_compile.frontend.guard import read_model
from tinytrain_compile.frontend.importer import HANDLERS, import_model
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.qoperators import QLINEAR_OPS
from tinytrain_compile.frontend.quantisation import QUANTISED_OPS
from tinytrain_compile.frontend.reader import read_proto
from tinytrain_compile.ir.imported import ImportedModel

__all__ = [
    "EvaluatorLacksError",
    "FileModel",
    "FileNode",
    "FrontendOptions",
    "ImportedModel",
    "load_model",
    "supported_operators",
]


def load_model(path: Path, options: FrontendOptions | None = None) -> ImportedModel:
    """Read, check and import a model file.

    Raises CompileError: E02xx for a file or model that cannot be used, E0305 for labels that do not fit their loss,
    E0501 or E0503 with one line per node for what has no IR form.
    """
    options = options or FrontendOptions()
    proto = read_proto(path)
    return import_model(read_model(proto, path.stem, path.parent, options), options)


def supported_operators() -> tuple[str, ...]:
    """Names of all ONNX operators that are imported (further ones are evaluated where their inputs are constant)."""
    return tuple(sorted((*HANDLERS, *QUANTISED_OPS, *QLINEAR_OPS, "Constant", "Shape", "Size")))
