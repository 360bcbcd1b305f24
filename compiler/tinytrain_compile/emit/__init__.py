"""Writes the C project: API, planned call sequence, kernels, weights, build file. Text only; nothing is run here."""

from tinytrain_compile.emit.c_text import c_identifier
from tinytrain_compile.emit.checkpoint import checkpoint_bytes, checkpoint_of
from tinytrain_compile.emit.packages import SOURCES, PackageFacts, package_files
from tinytrain_compile.emit.parts.border import feature_cut
from tinytrain_compile.emit.parts.delta import delta_table
from tinytrain_compile.emit.parts.loop import replay_room, runtime_buffers
from tinytrain_compile.emit.project import EmitOptions, emit_project
from tinytrain_compile.emit.stack import with_stack
from tinytrain_compile.emit.tables import constant_bytes

__all__ = [
    "SOURCES",
    "EmitOptions",
    "PackageFacts",
    "c_identifier",
    "checkpoint_bytes",
    "checkpoint_of",
    "constant_bytes",
    "delta_table",
    "emit_project",
    "feature_cut",
    "package_files",
    "replay_room",
    "runtime_buffers",
    "with_stack",
]
