"""Options of Python calls: those that the command would have, by the command's own parser."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from numbers import Number
from pathlib import Path
from typing import Any, cast

import click

from tinytrain_compile.cli.command import command
from tinytrain_compile.cli.flags import options_of
from tinytrain_compile.data.arrays import said
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions


def options_from(model: Path | str, options: Mapping[str, Any]) -> CompileOptions:
    """The same options that the command would have; CompileError E0101 for those that it would refuse."""
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
    """A value as it is typed: several behind commas."""
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
