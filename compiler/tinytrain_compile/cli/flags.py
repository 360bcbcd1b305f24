"""From the flags of the command line to CompileOptions, checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from tinytrain_compile.driver.checks.combinations import check_options
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions


def _given() -> frozenset[str]:
    """Names of the options that the command line or --config sets."""
    context, given = click.get_current_context(), (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    return frozenset(name for name in OPTIONS if context.get_parameter_source(name) in given)


def options_of(flags: dict[str, Any]) -> CompileOptions:
    """The options that these flags ask for; CompileError E0101 for values and combinations that cannot be."""
    model: Path = flags["model"]
    named = model.resolve() if model.name in ("", "..") else model  # a folder of artifacts may be the one we are in
    values: dict[str, Any] = {"model": named}
    for name, known in OPTIONS.items():
        if name not in flags:  # another command than a compilation: the default
            continue
        value = flags[name]
        if known.check is not None:
            known.check(value, known.flag)
        if known.read is None:
            values[name] = value
        elif value not in (None, ()):  # else the default, which no text makes
            values[name] = known.read(value, known.flag)
    text = values.pop("micro_batch", None)  # what it may be depends on others
    options = CompileOptions(**values, given=_given())
    check_options(options)
    return replace(options, micro_batch=_micro_batch(text, options.batch, options.accumulate))


def _micro_batch(text: str | None, batch: int, accumulate: str) -> int | Literal["auto"] | None:
    """How many samples a call takes; E0101 for what --batch and --accumulate do not allow."""
    if text is None or text == "auto":
        return text
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if size < 1 or batch % size:
        what = f"{text!r} does not divide --batch {batch}" if size else f"{text!r} is no number of samples"
        sizes = [str(n) for n in range(1, batch + 1) if batch % n == 0][:12] if batch <= 1 << 12 else ["1"]
        raise CompileError("E0101", "--micro-batch", what, f"use {', '.join(sizes)} or auto")
    if size > 1 and accumulate == "inplace":
        what = "with --accumulate inplace each sample is a step of its own"
        raise CompileError("E0101", "--micro-batch", what, "leave one of the two out")
    return size
