"""`tinytrain-compile export`: its options, and what it says at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinytrain_compile.cli.options import (
    SETTINGS,
    GroupedCommand,
    GroupedOption,
    file_option,
    model_argument,
    project_options,
    terminal_options,
)

_HELP = """Write the weights that a device has trained back into MODEL. The rest of the file stays the same.

Example: tinytrain-compile export model.onnx --checkpoint device.bin --project out -o trained.onnx
"""


def _own_options() -> list[click.Parameter]:
    file, known = file_option, project_options()
    return [
        file("Checkpoint, written by m_save or by save() of a twin.", "--checkpoint", required=True, metavar="FILE"),
        known["project"],
        file(
            "File to write, of the same format. Default: trained.onnx or trained.tflite.",
            "-o",
            "--out",
            metavar="FILE",
        ),
        known["calib"],
        file(
            "Samples on which to compare the file with the device: x_test and y_test, else x and y. Some int8 builds "
            "with --activations subspace need the samples of that build here; the error asks for them.",
            "--data",
            metavar="FILE.npz",
        ),
        known["weights"],
        GroupedOption("common", "--force", is_flag=True, help="Overwrite the file of -o if it exists."),
    ]


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[model_argument(), *_own_options(), *terminal_options()],
    context_settings=SETTINGS,
)
def export(**flags: Any) -> None:
    """Parse, write, print."""
    from tinytrain_compile.cli.python_options import options_from
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.driver.checks.project import read_project
    from tinytrain_compile.learn.export import Place
    from tinytrain_compile.learn.export import export as write

    out: Path = flags["out"] or Path(f"trained{'.tflite' if flags['model'].suffix == '.tflite' else '.onnx'}")
    files = {name: flags[name] for name in ("calib", "data", "weights")}
    options, scheme = read_project(flags["project"], files)
    terminal = Terminal(flags["color"], flags["verbose"])
    try:
        place = Place(out, flags["force"])
        done = write(options_from(flags["model"], options), scheme, flags["checkpoint"], place, terminal.progress)
    finally:
        terminal.clear()
    terminal.exported(done, out)
