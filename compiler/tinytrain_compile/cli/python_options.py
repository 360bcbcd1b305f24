"""Options of Python calls: those that the command has, by the command's own parser, and how `help()` shows them."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import MISSING, fields
from numbers import Number
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import click

from tinytrain_compile.cli.command import command
from tinytrain_compile.cli.config import long_name
from tinytrain_compile.cli.options import options_of
from tinytrain_compile.cli.python_inputs import ARRAYS
from tinytrain_compile.cli.refusals import long_names, near_option
from tinytrain_compile.data.samples import said
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import OPTIONS, REMOVED, CompileOptions
from tinytrain_compile.options.option import GROUPS, Option


def options_from(model: Path | str, options: Mapping[str, Any]) -> CompileOptions:
    """Return the options that the command would have; CompileError E0101 for those that it would refuse."""
    _check_names(options)
    _check_switches(options)
    try:
        with (
            redirect_stdout(io.StringIO()),
            command.make_context("tinytrain-compile", [*_arguments(options), "--", str(model)]) as context,
        ):
            return options_of(context.params)
    except click.exceptions.Exit as problem:
        raise CompileError("E0101", "options", "one of them only answers a question", "leave it out") from problem
    except click.ClickException as problem:
        raise CompileError("E0101", "options", problem.format_message().rstrip("."), "see docs/options.md") from problem


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise E0101 for an argument that is not an option, with the nearest one as Python calls it."""
    known = ["help", *long_names(command)]
    for name in options:
        plain = name.replace("_", "-")
        if plain not in known and f"--{plain}" not in REMOVED:
            near = near_option(plain, known).replace("-", "_")
            way = f"did you mean {near}=?" if near else "help(tt.compile) lists all options"
            raise CompileError("E0101", f"{name}=", "compile has no such option", way)


def _check_switches(options: Mapping[str, Any]) -> None:
    """Raise E0101 for True or False as the value of an option that is no switch, with the values that it has."""
    parameters = {flag: one for one in command.params for flag in one.opts}
    for name, value in options.items():
        one = parameters.get(f"--{name.replace('_', '-')}")
        if not isinstance(value, bool) or one is None or getattr(one, "is_flag", False):
            continue
        choices = [str(choice) for choice in getattr(one.type, "choices", ())]
        off = next((choice for choice in ("off", "none", "never") if choice in choices), "")
        way = f"choose one of {', '.join(choices)}" if choices else "leave it out, or give a value"
        way = f'{name}="{off}" turns it off' if off and not value else way
        raise CompileError("E0101", f"{name}=", f"{value} is no value of this option", way)


def _arguments(options: Mapping[str, Any]) -> Iterator[str]:
    repeated = {known.flag for known in OPTIONS.values() if known.repeated}
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif isinstance(value, Mapping):
            pairs = cast("Mapping[Any, Any]", value).items()
            yield from (text for key, each in pairs for text in (flag, f"{key}={_joined(flag, each)}"))
        elif isinstance(value, (list, tuple)) and flag in repeated:
            yield from (text for each in cast("list[Any]", value) for text in (flag, _typed(flag, each)))
        elif value is not None and value is not False:
            yield from (flag, _joined(flag, value))


def _joined(flag: str, value: Any) -> str:
    """Return a value as it is typed: several behind commas."""
    if isinstance(value, (list, tuple)):
        return ",".join(_typed(flag, each) for each in cast("list[Any]", value))
    return _typed(flag, value)


def _typed(flag: str, value: Any) -> str:
    """Return a text, path or number as it is typed; E0101 for anything else, whose text may be long."""
    if isinstance(value, (str, os.PathLike, Number)):
        text = os.fsdecode(cast("Any", value)) if isinstance(value, os.PathLike) else str(value)
        if "\0" not in text:
            return text
        raise CompileError("E0101", flag, "a value cannot hold a zero byte", "leave it out")
    raise CompileError("E0101", flag, f"{said(value)} is no value of an option", "give a text, a number or a path")


_WIDTH = 100
"""Columns of the text: help() indents it by four in a terminal of more than 100."""
_NOT_OF_PYTHON = frozenset(("out", "force", "dry_run", "dump_after"))
"""Options of a folder that is written, and of runs without a project."""


def options_help() -> str:
    """Return every option of a compilation: its name in Python, what it may be, its default and what it does."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    hints, defaults = (
        get_type_hints(CompileOptions),
        {item.name: _default(item) for item in fields(CompileOptions) if item.name in OPTIONS},
    )
    for group, title in GROUPS.items():
        chosen = {name: known for name, known in OPTIONS.items() if known.group == group and name not in _NOT_OF_PYTHON}
        if chosen:
            yield f"{title}:"
        for name, known in chosen.items():
            yield f"  {long_name(name).replace('-', '_')}: {_kind(hints[name], name, known)}{defaults[name]}"
            yield from textwrap.wrap(known.help, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _default(item: Any) -> str:
    """Return ` = ` and a field's default; nothing for an object that no text makes."""
    default = item.default_factory() if item.default is MISSING else item.default
    plain = default is None or isinstance(default, (str, int, float, tuple, dict))
    return f" = {default!r}" if plain else ""


def _kind(hint: Any, name: str, known: Option) -> str:
    """Say what an option may be in a call."""
    if name in ARRAYS:
        return "path of an .npz, arrays or batches"
    if known.repeated:
        return f"dict or list of {known.metavar}" if "=" in (known.metavar or "") else f"list of {known.metavar}"
    if known.read is not None and hint is not str:  # a text, or what is typed like it
        return f"{known.metavar} as text, number or list"
    return _named(hint)


def _named(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(_named(part) for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is Literal:
        return " | ".join(repr(each) for each in get_args(hint))
    if hint is Path:
        return "path"
    return str(hint.__name__)
