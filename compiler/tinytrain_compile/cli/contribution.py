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

_HELP = """Measure the gain of training each layer of MODEL (ONNX or .tflite), in short runs on your samples on this
machine.

It writes the table that a compilation reads with --update auto --gains. If you interrupt it, the same command
continues.

Example: tinytrain-compile contribution model.onnx --data own.npz -o gains.csv
"""
_TEXTS = {
    "data": "Required: your samples x, y. 30 % of them, at most 256, are held back to measure losses.",
    "learning_rate": "Base of the rates: each layer is trained at 1/4, 1, 4 and 16 times it, and the best counts.",
    "seed": "Seed that draws the samples held back, and the orders of the others.",
}
"""Help of options that serve the measurement here."""


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[
        model_argument(),
        out_option("gains.csv", "File for the table of gains."),
        *options_for(ContributionEffort),
        jobs_option(),
        *options_for(CompileOptions, without=frozenset(OPTIONS) - OF_THE_MODEL, texts=_TEXTS),
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
