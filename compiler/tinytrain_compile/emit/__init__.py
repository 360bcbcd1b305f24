"""Writes the C project: API, planned call sequence, kernels, weights, build file. Text only; nothing is run here."""

from tinytrain_compile.emit.c_text import c_identifier
from tinytrain_compile.emit.checkpoint import checkpoint_bytes, checkpoint_of
from tinytrain_compile.emit.packages import SOURCES, PackageFacts, package_files
from tinytrain_compile.emit.part import Part
from tinytrain_compile.emit.project import EmitOptions, emit_project, with_stack
from tinytrain_compile.emit.tables import constant_bytes

__all__ = [
    "SOURCES",
    "EmitOptions",
    "PackageFacts",
    "Part",
    "c_identifier",
    "checkpoint_bytes",
    "checkpoint_of",
    "constant_bytes",
    "emit_project",
    "package_files",
    "with_stack",
]
