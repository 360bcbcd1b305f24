"""`tinytrain-compile finetune`: its options, what it says at the end, and the files that it writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tinytrain_compile.cli.config import long_name, to_folder
from tinytrain_compile.cli.options import (
    SETTINGS,
    GroupedCommand,
    GroupedOption,
    compile_options,
    config_option,
    jobs_option,
    model_argument,
    options_of,
    out_option,
    terminal_options,
)
from tinytrain_compile.ir.learning import MOST_WARM_UP, SCHEDULES
from tinytrain_compile.ir.runtime_parts import MAX_SAMPLES
from tinytrain_compile.options.compile_options import OPTIONS
from tinytrain_compile.options.option import parse_norm

_HELP = """Try training MODEL (ONNX) on your samples on this machine: which learning rate, for how long, what it gains.

Every training runs the generated C, so results are the device's. --data has x and y; x_test, y_test to judge by; x_old,
y_old of what the network knew before. Writes FILE.toml, which a compilation reads by --config, and FILE.html with
curves. Interrupted, it goes on where it was when it is called again.

Example: tinytrain-compile finetune model.onnx --data own.npz --arena 64KB
"""
_WITHOUT = frozenset(
    name for name, known in OPTIONS.items() if known.group in ("verification", "output") and name != "seed"
) | {"out", "epochs", "warm_up", "pareto", "lock"}
"""Options of a compilation about what nothing is made of here: output, verification."""


def _compared() -> list[click.Parameter]:
    """Return what trainings differ in, besides their rates."""
    return [
        GroupedOption(
            "common",
            "--batches",
            type=str,
            metavar="N,N..",
            help="Batches to compare. Default: that of --batch alone.",
        ),
        GroupedOption(
            "common",
            "--clips",
            type=str,
            metavar="X,X..",
            default="0,1",
            show_default=True,
            help="Norms to clip gradients to; 0: none. Without effect beside --clip-norm.",
        ),
        GroupedOption(
            "common",
            "--per-layer",
            is_flag=True,
            help="For each norm of --clips, also that of each layer alone.",
        ),
        GroupedOption(
            "common",
            "--warm-ups",
            type=str,
            metavar="X,X..",
            default="0",
            show_default=True,
            help="Shares of the updates, up to 0.5, in which the rate grows first; 0: none.",
        ),
        GroupedOption(
            "common",
            "--averages",
            type=str,
            metavar="N,N..",
            default="0",
            show_default=True,
            help="Ends of epochs whose mean the device keeps (--runtime average); 0: the last state.",
        ),
    ]


def _own_options() -> list[click.Parameter]:
    count = click.IntRange(1, 1_000_000)
    return [
        out_option("finetune.toml", "What is recommended."),
        GroupedOption("common", "--epochs", type=count, default=30, show_default=True, help="Of a training, at most."),
        GroupedOption(
            "common", "--seeds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Trainings of a mean."
        ),
        *_compared(),
        GroupedOption(
            "common",
            "--replay",
            type=click.IntRange(0, 1_000_000),
            default=100,
            show_default=True,
            help="Old samples (x_old) that the device could keep at most; 20 are tried first.",
        ),
        GroupedOption(
            "common",
            "--schedule",
            type=click.Choice(SCHEDULES),
            default="cosine",
            show_default=True,
            help="What the rate does in a training: fall to 0 along a cosine, or stay.",
        ),
        jobs_option(),
    ]


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[
        model_argument(),
        *_own_options(),
        *compile_options(without=_WITHOUT),
        config_option(_WITHOUT),
        *terminal_options(),
    ],
    context_settings=SETTINGS,
)
def finetune(**flags: Any) -> None:
    """Parse, try, write, print."""
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.learn.finetune import finetune, write_finding
    from tinytrain_compile.learn.rate_search import Effort

    sizes = (flags.pop("epochs"), flags.pop("seeds"), flags.pop("replay"))
    batches, clips = _batches(flags.pop("batches")), _clips(flags.pop("clips"))
    how = (flags.pop("jobs"), flags.pop("schedule"), flags.pop("per_layer"), _warm_ups(flags.pop("warm_ups")))
    effort = Effort(*sizes, batches, clips, *how, _averages(flags.pop("averages")))
    out: Path = flags.pop("out")
    given = _given(out.parent)
    options = options_of(flags)
    terminal = Terminal(flags["color"], flags["verbose"])
    try:
        finding = finetune(options, effort, out, terminal.progress, keep=True)
    finally:
        terminal.clear()
    written = write_finding(finding, options, given, out)
    terminal.finding(finding, written)


def _batches(text: str | None) -> tuple[int, ...]:
    """Parse "1,8" into numbers, each once; none without a text."""
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 1 << 20 for part in parts) or len(parts) > 8:
        raise click.BadParameter(f"{text!r} is not up to eight numbers with commas, as 1,8", param_hint="--batches")
    return tuple(dict.fromkeys(map(int, parts)))


def _clips(text: str) -> tuple[float, ...]:
    """Parse "0,1" into numbers, each once; 0 first, since what is equal goes to the first."""
    found = list[float]()
    for part in text.split(","):
        zero = part.strip() in ("0", "0.0")
        found.append(0.0 if zero else parse_norm(part.strip(), "--clips"))
    return tuple(sorted(set(found)))


def _warm_ups(text: str) -> tuple[float, ...]:
    """Parse "0,0.1" into numbers, each once; the smallest first, since what is equal goes to the first."""
    parts = [part.strip() for part in text.split(",")]
    found = [float(part) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", part, re.ASCII) else -1.0 for part in parts]
    if not all(0 <= share <= MOST_WARM_UP for share in found):
        what = f"{text!r} is not shares up to {MOST_WARM_UP} with commas, as 0,0.1"
        raise click.BadParameter(what, param_hint="--warm-ups")
    return tuple(sorted(set(found)))


def _averages(text: str) -> tuple[int, ...]:
    """Parse "0,4" into numbers, each once; the smallest first, since what is equal goes to the first."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) <= MAX_SAMPLES for part in parts) or len(parts) > 8:
        raise click.BadParameter(f"{text!r} is not up to eight numbers with commas, as 0,4", param_hint="--averages")
    return tuple(sorted(set(map(int, parts))))


def _given(folder: Path) -> dict[str, Any]:
    """Return options of a compilation that were given, long name -> value.

    Paths as a file in this folder names them.
    """
    context = click.get_current_context()
    found = dict[str, Any]()
    for item in context.command.params:
        name = item.name or ""
        given = context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if given and name in OPTIONS and name not in _WITHOUT:
            value = to_folder(item, context.params[name], folder)
            found[long_name(name)] = value if isinstance(value, (bool, int, float, list)) else str(value)
    return found
