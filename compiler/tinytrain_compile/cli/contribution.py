"""`tinytrain-compile contribution`: its options, and what it says at the end."""

from __future__ import annotations

from typing import Any

import click

from tinytrain_compile.cli.options import (
    SETTINGS,
    GroupedCommand,
    GroupedOption,
    compile_options,
    jobs_option,
    model_argument,
    options_of,
    out_option,
    terminal_options,
)
from tinytrain_compile.options.compile_options import OF_THE_MODEL, OPTIONS

_HELP = """Measure what training each layer of MODEL (ONNX) is worth, by short runs on this machine on your samples.

Writes the table that --update auto --gains reads. Interrupted, it goes on where it was when it is called again.

Example: tinytrain-compile contribution model.onnx --data own.npz -o gains.csv
"""


def _own_options() -> list[click.Parameter]:
    number = click.IntRange(1, 1_000_000)
    return [
        out_option("gains.csv", "The table."),
        GroupedOption("common", "--updates", type=number, default=100, show_default=True, help="Of every run."),
        GroupedOption("common", "--orders", type=number, default=2, show_default=True, help="Of samples, for a mean."),
        GroupedOption(
            "common",
            "--groups",
            type=number,
            default=1,
            show_default=True,
            help="Groups of channels of a weight's axis, each measured; 1: whole.",
        ),
        jobs_option(),
    ]


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[
        model_argument(),
        *_own_options(),
        *compile_options(without=frozenset(OPTIONS) - OF_THE_MODEL),
        *terminal_options(),
    ],
    context_settings=SETTINGS,
)
def contribution(**flags: Any) -> None:
    """Parse, measure, print."""
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.learn.contribution import Effort, measure

    out, groups = flags.pop("out"), flags.pop("groups")
    effort = Effort(flags.pop("updates"), flags.pop("orders"), flags.pop("jobs"), groups)
    options = options_of(flags)
    terminal = Terminal(flags["color"], flags["verbose"])
    try:
        found = measure(options, effort, out, terminal.progress)
    finally:
        terminal.clear()
    terminal.gains(found, out)
