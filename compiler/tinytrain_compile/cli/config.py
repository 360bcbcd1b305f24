"""--config: options of a compilation from a TOML file, by their long names; the command line goes before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import click

from tinytrain_compile.cli.refusals import near_option
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import TableKind, parse_document, read_text
from tinytrain_compile.options.compile_options import OPTIONS, REMOVED

_KIND = TableKind("E0101", "E0101", "write options by their long names: lr = 0.03", "a TOML file of options")


def read_settings(path: Path, command: click.Command, without: Container[str]) -> dict[str, Any]:
    """Read parameter -> value; paths in the file are relative to its folder. E0101 for a key that is no option.

    without: options of a compilation that the command does not have; a file may say them.
    """
    where = f"--config {path.name}"
    text = read_text(path, lambda what: _KIND.error(where, what), lambda what: _KIND.missing(where, what))
    table = parse_document(text, where, _KIND)
    options = [item for item in command.params if isinstance(item, click.Option)]
    own = [item for item in options if item.name in OPTIONS and item.name not in without]
    known = {long_name(item.name or ""): item for item in own}
    elsewhere = {long_name(name) for name in OPTIONS if name in without}
    found = dict[str, Any]()
    for key, value in table.items():
        if key in elsewhere:
            continue
        item = known.get(key)
        if f"--{key}" in REMOVED:
            raise CompileError("E0101", where, f"key {key!r} {REMOVED[f'--{key}']}", "delete that line")
        if item is None and isinstance(value, dict):
            raise CompileError("E0101", where, f"[{key}] is a table", "write options at the top, without a table")
        if item is None:
            near = near_option(key, known)
            way = f"did you mean {near}?" if near else "docs/options.md lists all options"
            raise CompileError("E0101", where, f"key {key!r} is not an option of this command", way)
        wanted = _wanted(item)
        each = value if isinstance(value, list) and item.multiple else [value]  # pyright: ignore[reportUnknownVariableType]
        if not all(type(one) in _TYPES[wanted] for one in each):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            raise CompileError("E0101", where, f"key {key!r} is {_said(value)}", f"give {wanted}")
        value = each if item.multiple else value  # pyright: ignore[reportUnknownVariableType]
        found[item.name or ""] = from_folder(item, value, path.parent)
    return found


_TYPES: dict[str, tuple[type, ...]] = {
    "true or false": (bool,),
    "a whole number": (int,),
    "a number": (int, float),
    "a text": (str, int, float),
}
"""What an option may be in a file: sizes and the like are texts, and may be numbers there too."""


def _wanted(item: click.Option) -> str:
    if item.is_flag:
        return "true or false"
    if isinstance(item.type, click.types.IntParamType):
        return "a whole number"
    return "a number" if isinstance(item.type, click.types.FloatParamType) else "a text"


def _said(value: Any) -> str:
    return "a table" if isinstance(value, Mapping) else f"{value!r}"


def long_name(name: str) -> str:
    """Return the name of an option's field, as a file says it."""
    return OPTIONS[name].flag.removeprefix("--")


def from_folder(item: click.Parameter, value: Any, folder: Path) -> Any:
    """Return relative paths of a file in this folder as they are from here."""
    return _each(item, value, lambda path: str(folder / path))


def to_folder(item: click.Parameter, value: Any, folder: Path) -> Any:
    """Return relative paths from here as a file in this folder names them."""
    return _each(item, value, lambda path: path if os.path.isabs(path) else os.path.relpath(path, folder))


def _each(item: click.Parameter, value: Any, change: Callable[[str], str]) -> Any:
    """Change the paths of an option that names files: by its type, or because the value ends as one does."""
    if isinstance(value, (list, tuple)):
        return [_each(item, one, change) for one in value]  # pyright: ignore[reportUnknownVariableType]
    is_file = isinstance(item.type, click.Path) or (item.name in ("update", "target") and str(value).endswith(".toml"))
    return change(str(value)) if is_file else value
