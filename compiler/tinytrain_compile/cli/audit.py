"""`tinytrain-compile audit`: its options, and what it says at the end."""

from __future__ import annotations

from typing import Any

import click

from tinytrain_compile.cli.options import (
    SETTINGS,
    GroupedCommand,
    file_option,
    model_argument,
    project_options,
    terminal_options,
)

_HELP = """Repeat on this machine the updates that a device has recorded (--runtime journal), and compare the result
with the checkpoint of the device. If they differ, name the first record that does not fit.

Example: tinytrain-compile audit model.onnx --journal device.jnl --samples own.npz --checkpoint device.bin
"""


def _own_options() -> list[click.Parameter]:
    file, known = file_option, project_options()
    return [
        file("Records of the device, one after the other.", "--journal", required=True, metavar="FILE"),
        file(
            "All samples and labels that the device may have had: x and y.",
            "--samples",
            required=True,
            metavar="FILE.npz",
        ),
        file("Checkpoint of the device after the last record.", "--checkpoint", required=True, metavar="FILE"),
        file(
            "Checkpoint before the first record. [default: the state after m_init]", "--from", "before", metavar="FILE"
        ),
        file("Key of the device: 32 bytes, or 64 hexadecimal digits.", "--key", metavar="FILE"),
        known["project"],
        known["calib"],
        file("Samples of that build. Needed if it had --activations subspace.", "--data", metavar="FILE.npz"),
        known["weights"],
    ]


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[model_argument(), *_own_options(), *terminal_options()],
    context_settings=SETTINGS,
)
def audit(**flags: Any) -> None:
    """Parse, repeat, print."""
    from tinytrain_compile.cli.python_options import options_from
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.driver.checks.project import read_project
    from tinytrain_compile.learn.audit import Evidence
    from tinytrain_compile.learn.audit import audit as repeat

    options, scheme = read_project(flags["project"], {name: flags[name] for name in ("calib", "data", "weights")})
    names = ("journal", "samples", "checkpoint", "before", "key")
    terminal = Terminal(flags["color"], flags["verbose"])
    try:
        evidence = Evidence(**{name: flags[name] for name in names})
        done = repeat(options_from(flags["model"], options), scheme, evidence, terminal.progress)
    finally:
        terminal.clear()
    terminal.audited(done, evidence)
