"""The options of the command for click, by group for --help, and CompileOptions of what was typed, checked."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from tinytrain_compile.cli.refusals import refusal
from tinytrain_compile.driver.checks.combinations import check_options
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import with_pages
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.options.effort import ContributionEffort, FinetuneEffort
from tinytrain_compile.options.option import GROUPS, Group, Option, options_in

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Effort = TypeVar("Effort", ContributionEffort, FinetuneEffort)


class GroupedOption(click.Option):
    """One that knows its group in --help."""

    def __init__(self, group: Group, *flags: str, **settings: Any) -> None:
        super().__init__(flags, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose --help shows its options by group; click's own --help is in the last one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. CompileError E0101 for what cannot be read."""
        typed = tuple(args)  # reading takes them out of the list
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as problem:
            raise refusal(problem, self, typed) from problem

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for every group."""
        for group, title in GROUPS.items():
            rows = [row for item in self.options_of(ctx, group) if (row := item.get_help_record(ctx)) is not None]
            if not rows:
                continue
            with formatter.section(title):
                formatter.write_dl(rows)

    def options_of(self, ctx: click.Context, group: Group) -> list[click.Option]:
        """Return the options of a group."""
        options = [item for item in self.get_params(ctx) if isinstance(item, click.Option)]
        return [item for item in options if (item.group if isinstance(item, GroupedOption) else "output") == group]


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Of every command."""


def model_argument() -> click.Parameter:
    """Return the argument for the file that a command is about."""
    return click.Argument(["model"], type=click.Path(readable=False, path_type=Path))


def file_option(help_: str, *flags: str, **more: Any) -> click.Parameter:
    """Make an option that names a file or a folder."""
    path: Any = click.Path(readable=False, path_type=Path)
    return GroupedOption("common", *flags, type=path, help=help_, **more)


def project_options() -> dict[str, click.Parameter]:
    """Make the options that name a project and the files that its build read, by name."""
    folder: dict[str, Any] = {"default": Path("out"), "show_default": True, "metavar": "DIR"}
    calib = "Calibration file of that build. Needed if it had --calib."
    weights = "Weights of a training graph. Needed if that build had --weights."
    return {
        "project": file_option("Output folder of the build that runs on the device.", "--project", **folder),
        "calib": file_option(calib, "--calib", metavar="FILE.npz"),
        "weights": file_option(weights, "--weights", metavar="FILE.npz"),
    }


def options_for(
    kind: type[DataclassInstance], without: Container[str] = (), texts: Mapping[str, str] | None = None
) -> list[click.Parameter]:
    """Make an option of each field of a dataclass that declares one but some, with its name, type and default.

    texts: help of options that mean something else in this command.
    """
    hints, defaults = get_type_hints(kind), {item.name: item.default for item in fields(kind)}
    own = texts or {}
    chosen = (
        (name, replace(known, help=own.get(name, known.help)))
        for name, known in options_in(kind).items()
        if name not in without
    )
    return [_option(name, hints[name], defaults[name], known) for name, known in chosen]


def _option(name: str, hint: Any, default: Any, known: Option) -> GroupedOption:
    settings: dict[str, Any] = {"help": with_pages(known.help), "metavar": known.metavar}
    if hint is bool:
        settings["is_flag"] = True
    elif known.repeated:
        settings |= {"multiple": True, "type": _type(hint, known)}
    elif known.read is not None:  # a text; the field's own default stays where there is none
        settings |= {"type": str, **({"default": known.shown, "show_default": True} if known.shown else {})}
    else:
        settings |= {"type": _type(hint, known), "default": default, "show_default": default not in (None, "")}
    return GroupedOption(known.group, name, *known.flags, **settings)


def _type(hint: Any, known: Option) -> Any:
    """Return what click reads for a field of this type."""
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return _type(parts[0], known) if len(parts) == 1 else str
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        return _type(get_args(hint)[0], known)
    if hint is Path:
        return click.Path(readable=False, path_type=Path)
    if hint is int and known.limits is not None:
        return click.IntRange(*known.limits)
    return hint if hint in (int, float) else str


def out_option(name: str, text: str) -> click.Parameter:
    """Make the option for the file that a subcommand writes; name: its default."""
    return GroupedOption(
        "common",
        "-o",
        "--out",
        type=click.Path(readable=False, path_type=Path),
        default=Path(name),
        show_default=True,
        help=text,
    )


def jobs_option() -> click.Parameter:
    """Make the option for how many processes train at the same time."""

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
        help="Processes that train at the same time; -1: one for each core.",
    )


def config_option(without: Container[str] = ()) -> click.Parameter:
    """Make the option whose file sets defaults of all others.

    without: options of a compilation that the command does not have; a file may say them.
    """

    def take(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
        if path is not None:
            from tinytrain_compile.cli.config import read_settings

            context.default_map = read_settings(path, context.command, without)

    return GroupedOption(
        "output",
        "--config",
        type=click.Path(readable=False, path_type=Path),
        metavar="FILE.toml",
        is_eager=True,
        expose_value=False,
        callback=take,
        help="Read options from a file, such as finetune.toml of `finetune`. Options on the command line override it.",
    )


def terminal_options() -> list[click.Parameter]:
    """Make the options that only the terminal knows."""
    choice = click.Choice(["auto", "always", "never"])
    return [
        GroupedOption(
            "output",
            "--color",
            type=choice,
            default="auto",
            show_default=True,
            help="Colour of the output; auto: on a terminal only.",
        ),
        GroupedOption(
            "output",
            "-v",
            "--verbose",
            is_flag=True,
            help="Also list layers and steps, and show the traceback of an internal error.",
        ),
    ]


def asking(flag: str, answer: Callable[[Any], list[str]], **settings: Any) -> click.Parameter:
    """Make an option that answers with lines; nothing else is done then."""

    def show(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value and not context.resilient_parsing:
            for line in answer(value):
                click.echo(with_pages(line))
            context.exit()

    return GroupedOption("output", flag, is_eager=True, expose_value=False, callback=show, **settings)


def _given() -> frozenset[str]:
    """Return names of the options that the command line or --config sets."""
    context, given = click.get_current_context(), (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    return frozenset(name for name in OPTIONS if context.get_parameter_source(name) in given)


def options_of(flags: dict[str, Any]) -> CompileOptions:
    """Return the options that these flags ask for; CompileError E0101 or E0113."""
    model: Path = flags["model"]
    named = model.resolve() if model.name in ("", "..") else model  # a folder of artifacts may be the one we are in
    values: dict[str, Any] = {"model": named, **_values(OPTIONS, flags)}
    text = values.pop("micro_batch", None)  # what it may be depends on others
    options = CompileOptions(**values, given=_given())
    options = replace(options, micro_batch=_micro_batch(text, options.batch, options.accumulate))
    check_options(options)
    return options


def effort_of(kind: type[Effort], flags: dict[str, Any]) -> Effort:
    """Take the flags of a command's own options out of all; return the effort that they ask for."""
    known = options_in(kind)
    return kind(jobs=flags.pop("jobs"), **_values(known, {name: flags.pop(name) for name in known}))


def _values(options: Mapping[str, Option], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of these options; where a command does not have one, or no text makes it, none."""
    values = dict[str, Any]()
    for name, known in options.items():
        value = flags.get(name)
        if name in flags and known.check is not None:
            known.check(value, known.flag)
        if known.read is not None and value not in (None, ()):
            values[name] = known.read(value, known.flag)
        elif known.read is None and name in flags:
            values[name] = value
    return values


def _micro_batch(text: str | None, batch: int, accumulate: str) -> int | Literal["auto"] | None:
    """Return how many samples a call takes; E0101 for what --batch does not allow, E0113 with --accumulate inplace."""
    if text is None or text == "auto":
        return text
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if size < 1 or batch % size:
        what = f"{text!r} does not divide --batch {batch}" if size else f"{text!r} is no number of samples"
        sizes = [str(n) for n in range(1, batch + 1) if batch % n == 0][:12] if batch <= 1 << 12 else ["1"]
        raise CompileError("E0101", "--micro-batch", what, f"use {', '.join(sizes)} or auto")
    if size > 1 and accumulate == "inplace":
        what = "with --accumulate inplace each sample is a step of its own"
        raise CompileError("E0113", "--micro-batch", what, "leave one of the two out")
    return size
