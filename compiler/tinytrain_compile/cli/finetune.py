"""`tinytrain-compile finetune`: its options, what it says at the end, and the files that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tinytrain_compile.cli.config import long_name, to_folder
from tinytrain_compile.cli.options import (
    SETTINGS,
    GroupedCommand,
    config_option,
    effort_of,
    jobs_option,
    model_argument,
    options_for,
    options_of,
    out_option,
    terminal_options,
)
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.options.effort import FinetuneEffort

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


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[
        model_argument(),
        out_option("finetune.toml", "What is recommended."),
        *options_for(FinetuneEffort),
        jobs_option(),
        *options_for(CompileOptions, without=_WITHOUT),
        config_option(_WITHOUT),
        *terminal_options(),
    ],
    context_settings=SETTINGS,
)
def finetune(**flags: Any) -> None:
    """Parse, try, write, print."""
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.learn.finetune import finetune, write_finding

    effort = effort_of(FinetuneEffort, flags)
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
