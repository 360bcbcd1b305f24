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

_HELP = """Train MODEL (ONNX or .tflite) on your samples on this machine, and recommend a learning rate, epochs and
other options.

It runs the generated C, so the results are those of the device. It writes FILE.toml, which a compilation reads with
--config, and FILE.html with the curves. If you interrupt it, the same command continues.

Example: tinytrain-compile finetune model.onnx --data own.npz --arena 64KB
"""
_WITHOUT = frozenset(
    name for name, known in OPTIONS.items() if known.group in ("verification", "output") and name != "seed"
) | {"out", "epochs", "warm_up", "pareto", "lock"}
"""Options of a compilation that finetune does not have: it writes and verifies no project."""
_TEXTS = {
    "data": "Required: your samples x, y. Optional: x_test, y_test to judge the result, and x_old, y_old to measure "
    "forgetting (docs/finetune.md).",
    "learning_rate": "Centre of the search, which starts with rates from 1/32 of it to 32 times it.",
    "batch": "Samples per update, unless --batches compares several.",
    "clip_norm": "Scale down each gradient whose norm exceeds NORM (docs/clipping.md). [default: compare --clips]",
    "seed": "First seed of the runs; it also draws the test samples if the file has none.",
}
"""Help of options that serve the search here."""


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[
        model_argument(),
        out_option("finetune.toml", "File for the recommended options; the curves go to FILE.html beside it."),
        *options_for(FinetuneEffort),
        jobs_option(),
        *options_for(CompileOptions, without=_WITHOUT, texts=_TEXTS),
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
    terminal.finding(finding, written, options.model)


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
