"""The options of the command for click: those of a compilation, and the terminal's own; --help shows them by group."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from tinytrain_compile.files.resources import with_pages
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.options.option import GROUPS, Group, Option

_WITHOUT_TILES = (
    "was removed in 0.2.0, since it saved 0.09 % of the instructions in float32 and 0 % in int8; leave it out"
)
REMOVED = {"--tune": _WITHOUT_TILES, "--tiles": _WITHOUT_TILES}
"""Options of earlier versions: a command line, a file of --config or a call from Python may still name them."""


class GroupedOption(click.Option):
    """One that knows its group in --help."""

    def __init__(self, group: Group, *flags: str, **settings: Any) -> None:
        super().__init__(flags, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose --help shows its options by group; click's own --help is in the last one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; an option that was removed is reported as such."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as problem:
            if problem.option_name not in REMOVED:
                raise
            raise click.UsageError(f"{problem.option_name} {REMOVED[problem.option_name]}", ctx) from problem

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for every group."""
        for group, title in GROUPS.items():
            rows = [row for item in self.options_of(ctx, group) if (row := item.get_help_record(ctx)) is not None]
            if not rows:
                continue
            with formatter.section(title):
                formatter.write_dl(rows)

    def options_of(self, ctx: click.Context, group: Group) -> list[click.Option]:
        """The options of a group."""
        options = [item for item in self.get_params(ctx) if isinstance(item, click.Option)]
        return [item for item in options if (item.group if isinstance(item, GroupedOption) else "output") == group]


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Of every command."""


def model_argument() -> click.Parameter:
    """The file that a command is about."""
    return click.Argument(["model"], type=click.Path(path_type=Path))


def compile_options(without: Container[str] = ()) -> list[click.Parameter]:
    """An option for every one of CompileOptions, with the name, type and default of its field, but for some."""
    hints, defaults = get_type_hints(CompileOptions), {item.name: item.default for item in fields(CompileOptions)}
    chosen = ((name, known) for name, known in OPTIONS.items() if name not in without)
    return [_compile_option(name, hints[name], defaults[name], known) for name, known in chosen]


def _compile_option(name: str, hint: Any, default: Any, known: Option) -> GroupedOption:
    settings: dict[str, Any] = {"help": with_pages(known.help), "metavar": known.metavar}
    if hint is bool:
        settings["is_flag"] = True
    elif known.repeated:
        settings |= {"multiple": True, "type": _type(hint, known)}
    elif known.read is not None:  # a text; the field's own default stays where there is none
        settings["type"] = str
    else:
        settings |= {"type": _type(hint, known), "default": default, "show_default": default not in (None, "")}
    return GroupedOption(known.group, name, *known.flags, **settings)


def _type(hint: Any, known: Option) -> Any:
    """What click reads for a field of this type."""
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return _type(parts[0], known) if len(parts) == 1 else str
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        return _type(get_args(hint)[0], known)
    if hint is Path:
        return click.Path(path_type=Path)
    if hint is int and known.limits is not None:
        return click.IntRange(*known.limits)
    return hint if hint in (int, float) else str


def out_option(name: str, text: str) -> click.Parameter:
    """The file that a subcommand writes; name: where nothing is said."""
    return GroupedOption(
        "common",
        "-o",
        "--out",
        type=click.Path(path_type=Path),
        default=Path(name),
        show_default=True,
        help=text,
    )


def jobs_option() -> click.Parameter:
    """How many processes train at the same time."""

    def check(_context: click.Context, _parameter: click.Parameter, value: int) -> int:
        if value == 0:
            raise click.BadParameter("0 processes do nothing; give a number, or -1 for as many as there are cores")
        return value

    return GroupedOption(
        "common",
        "--jobs",
        type=click.IntRange(-1, 4096),
        default=-1,
        show_default=True,
        callback=check,
        help="Processes; -1: all.",
    )


def terminal_options() -> list[click.Parameter]:
    """What only the terminal knows."""
    choice = click.Choice(["auto", "always", "never"])
    return [
        GroupedOption("output", "--color", type=choice, default="auto", show_default=True, help="Of the report."),
        GroupedOption(
            "output",
            "-v",
            "--verbose",
            is_flag=True,
            help="Also list layers and steps; show a traceback on internal errors.",
        ),
    ]


def asking(flag: str, answer: Callable[[Any], list[str]], **settings: Any) -> click.Parameter:
    """An option that answers with lines, and nothing else is done."""

    def show(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value and not context.resilient_parsing:
            for line in answer(value):
                click.echo(with_pages(line))
            context.exit()

    return GroupedOption("output", flag, is_eager=True, expose_value=False, callback=show, **settings)
