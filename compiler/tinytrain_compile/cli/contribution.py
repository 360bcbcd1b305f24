"""`tinytrain-compile contribution`: its options, and what it says at the end."""

from __future__ import annotations

from typing import Any

import click

from tinytrain_compile.cli.options import (
    SETTINGS,
    GroupedCommand,
    effort_of,
    jobs_option,
    model_argument,
    options_for,
    options_of,
    out_option,
    terminal_options,
)
from tinytrain_compile.options.compile_options import OF_THE_MODEL, OPTIONS, CompileOptions
from tinytrain_compile.options.effort import ContributionEffort

_HELP = """Measure what training each layer of MODEL (ONNX) is worth, by short runs on this machine on your samples.

Writes the table that --update auto --gains reads. Interrupted, it goes on where it was when it is called again.

Example: tinytrain-compile contribution model.onnx --data own.npz -o gains.csv
"""


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[
        model_argument(),
        out_option("gains.csv", "The table."),
        *options_for(ContributionEffort),
        jobs_option(),
        *options_for(CompileOptions, without=frozenset(OPTIONS) - OF_THE_MODEL),
        *terminal_options(),
    ],
    context_settings=SETTINGS,
)
def contribution(**flags: Any) -> None:
    """Parse, measure, print."""
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.learn.contribution import measure

    out, effort = flags.pop("out"), effort_of(ContributionEffort, flags)
    options = options_of(flags)
    terminal = Terminal(flags["color"], flags["verbose"])
    try:
        found = measure(options, effort, out, terminal.progress)
    finally:
        terminal.clear()
    terminal.gains(found, out)
