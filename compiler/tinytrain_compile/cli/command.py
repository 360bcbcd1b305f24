"""The command line: options in, the report block or one error line out. Holds no compiler logic."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tinytrain_compile import __version__
from tinytrain_compile.cli.options import (
    SETTINGS,
    GroupedCommand,
    asking,
    config_option,
    model_argument,
    options_for,
    options_of,
    terminal_options,
)
from tinytrain_compile.cli.process import UnreadError, guarded_output, interrupted
from tinytrain_compile.cli.refusals import COMMANDS, check_command
from tinytrain_compile.errors import ERRORS, EXIT_INPUT, EXIT_INTERNAL, CompileError
from tinytrain_compile.files.output_folder import WRITTEN
from tinytrain_compile.files.resources import with_pages
from tinytrain_compile.near import hint
from tinytrain_compile.options.compile_options import CompileOptions

_HELP = """Compile MODEL (ONNX or .tflite) to C11 that trains it on a microcontroller in one static arena, and verify
it in QEMU.

Example: tinytrain-compile model.onnx --arena 256KB --target cortex-m7

Other commands, each with its own --help:

\b
  finetune MODEL --data FILE.npz      try training on this machine first
  contribution MODEL --data FILE.npz  measure the gain of training each layer
  export MODEL --checkpoint FILE      write trained weights back into the model
  audit MODEL --journal FILE ...      repeat the updates that a device has recorded

If your model file is named like a command, write ./ before its name.
"""


def _targets() -> list[str]:
    from tinytrain_compile.ir.summary import NOT_ON_CORE
    from tinytrain_compile.target.loader import list_boards, list_targets, load_target

    def line(name: str) -> str:
        target = load_target(name)
        return f"{name:16} {target.summary}{f' ({NOT_ON_CORE})' if target.why_unverified else ''}"

    return [*map(line, list_targets()), "", "Boards:", *map(line, list_boards())]


def _ops() -> list[str]:
    from tinytrain_compile.frontend import supported_operators
    from tinytrain_compile.report.reference import ops_text

    onnx_ops = ", ".join(supported_operators())
    return [f"ONNX operators: {onnx_ops}", "", *ops_text()]


def _explain(code: str) -> list[str]:
    code = f"E{code:0>4}" if code.isdigit() else code
    kind = ERRORS.get(code.upper())
    if kind is None:
        raise CompileError("E0101", "--explain", f"there is no error {code!r}", hint(code, ERRORS, "docs/errors.md"))
    return [f"{code.upper()}: {kind.title} (exit code {kind.exit_code})", "", kind.explanation]


_ANSWERS = (
    asking("--list-targets", lambda _: _targets(), is_flag=True, help="List cores and boards, and exit."),
    asking("--list-ops", lambda _: _ops(), is_flag=True, help="List supported operators, and exit."),
    asking("--explain", _explain, metavar="E0203", help="Explain the error with this id, and exit."),
)


@click.command(
    cls=GroupedCommand,
    help=_HELP,
    params=[
        model_argument(),
        *options_for(CompileOptions),
        config_option(),
        *terminal_options(),
        *_ANSWERS,
    ],
    context_settings=SETTINGS,
)
@click.version_option(__version__)
def command(**flags: Any) -> None:
    """Parse, compile and print: the function of the click command."""
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.compilation import compile_model

    options = options_of(flags)
    terminal = Terminal(flags["color"], flags["verbose"])
    try:
        result = compile_model(options, terminal.progress)
    finally:
        terminal.clear()
    if result.summary is None:
        click.echo(result.dump.rstrip("\n"))
        return
    try:
        terminal.success(result, options)
    except KeyboardInterrupt as problem:
        problem.args = () if options.dry_run else (WRITTEN,)
        raise


def main() -> None:
    """Run the command; every error is one line on stderr and its exit code (`--explain`)."""
    try:
        with guarded_output(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries: what matters to the user is an error or a note
            _run()
    except UnreadError:
        return
    except CompileError as error:
        _complain(str(error), *_details(error))
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _complain(f"error[E0101]: command line: {error.format_message().rstrip('.')}; see tinytrain-compile --help")
        sys.exit(EXIT_INPUT)
    except (click.Abort, KeyboardInterrupt) as problem:
        sys.exit(interrupted(problem))
    except Exception as error:
        if "-v" in sys.argv or "--verbose" in sys.argv:
            traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        _complain(f"error[E0901]: internal: {type(error).__name__}: {text}; please report this with the model (see -v)")
        sys.exit(EXIT_INTERNAL)


def _run() -> None:
    """Parse and run. Not by click's own `main`, which ends the process where a pipe is closed."""
    chosen, name, arguments = _command(sys.argv[1:])
    try:
        with chosen.make_context(name, arguments) as context:
            chosen.invoke(context)
    except click.exceptions.Exit as ended:
        if ended.exit_code:
            sys.exit(ended.exit_code)
    except BrokenPipeError as problem:
        raise UnreadError from problem


def _command(arguments: list[str]) -> tuple[click.Command, str, list[str]]:
    """Split arguments into the command that is named first (`compile` if none is), how it is called, and the rest."""
    name = arguments[0] if arguments else ""
    if name in COMMANDS:  # imported when it is asked for: --help of a compilation has no use for it
        module = import_module(f"tinytrain_compile.cli.{name}")
        return getattr(module, name), f"tinytrain-compile {name}", arguments[1:]
    if re.fullmatch("[a-z][a-z-]*", name) and name != "compile" and not Path(name).exists():
        check_command(name, arguments[1:])
    return command, "tinytrain-compile", arguments[1:] if arguments[:1] == ["compile"] else arguments


def _details(error: CompileError) -> list[str]:
    """Return what stands below an error, in lines as wide as the terminal at most."""
    if not error.details:
        return []
    from tinytrain_compile.cli.terminal import terminal_width
    from tinytrain_compile.report.layout import fitted

    return [piece for line in error.details for piece in fitted(line, terminal_width())]


def _complain(*lines: str) -> None:
    with suppress(OSError, ValueError):  # nobody can be told
        for line in lines:
            click.echo(with_pages(line), err=True)


if __name__ == "__main__":
    main()
