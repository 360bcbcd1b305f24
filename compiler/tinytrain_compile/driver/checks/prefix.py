"""The prefix of all C names and files of a project."""

from __future__ import annotations

from tinytrain_compile.emit import c_identifier
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import CompileOptions


def prefix_of(options: CompileOptions) -> str:
    """--name, or what the model's file is called; CompileError E0101 for a name that C or a library has already."""
    if options.name and c_identifier(options.name) != options.name:
        what = f"{options.name!r} cannot stand in front of C names"
        raise CompileError("E0101", "--name", what, f"for example {c_identifier(options.name)}")
    return options.name or c_identifier(options.model.stem)
