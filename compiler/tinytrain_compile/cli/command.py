"""The command line: options in, the report block or one error line out. Holds no compiler logic."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from tinytrain_compile import __version__
from tinytrain_compile.cli.flags import options_of
from tinytrain_compile.cli.start import interrupted
from tinytrain_compile.cli.streams import UnreadError, guarded_output
from tinytrain_compile.errors import ERRORS, EXIT_INPUT, EXIT_INTERNAL, CompileError
from tinytrain_compile.files.output_folder import WRITTEN
from tinytrain_compile.files.resources import with_pages

_HELP = """Turn MODEL (ONNX) into C11 that trains it on a microcontroller, in one static arena, and check it under QEMU.

Example: tinytrain-compile model.onnx --arena 256KB --target cortex-m7
"""


def _say(lines: list[str]) -> None:
    for line in lines:
        click.echo(with_pages(line))


def _listing(make: Callable[[], list[str]]) -> Callable[[click.Context, click.Parameter, bool], None]:
    def show(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            _say(make())
            context.exit()

    return show


def _targets() -> list[str]:
    from tinytrain_compile.target import list_targets, load_target

    return [f"{name:16} {load_target(name).summary}" for name in list_targets()]


def _ops() -> list[str]:
    from tinytrain_compile.frontend import supported_operators
    from tinytrain_compile.report import ops_text

    onnx_ops = ", ".join(supported_operators())
    return [f"ONNX operators: {onnx_ops}", "", *ops_text()]


def _explain(context: click.Context, _parameter: click.Parameter, code: str | None) -> None:
    if code is None or context.resilient_parsing:
        return
    kind = ERRORS.get(code.upper())
    if kind is None:
        raise click.UsageError(f"unknown error {code!r}; known: {', '.join(ERRORS)}")
    _say([f"{code.upper()}: {kind.title} (exit code {kind.exit_code})", "", kind.explanation])
    context.exit()


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default=Path("out"), show_default=True, help="Output folder."
)
@click.option(
    "--force", is_flag=True, help="Overwrite files in -o of the same names that tinytrain-compile did not write there."
)
@click.option("--arena", metavar="SIZE", help="RAM for everything that changes: 256KB, 256KiB or 262144.")
@click.option(
    "--memory",
    metavar="NAME=SIZE",
    multiple=True,
    help="A further memory of the target, for what does not fit into --arena.",
)
@click.option(
    "--target", metavar="NAME|FILE", default="cortex-m7", show_default=True, help="Core (--list-targets) or TOML."
)
@click.option(
    "--loss",
    type=click.Choice(["cross-entropy", "mse", "bce"]),
    help="Default: bce behind a Sigmoid, else cross-entropy for (batch, classes).",
)
@click.option(
    "--label", metavar="NAME", default="", help="Input that holds the labels, for a model that ends in its loss."
)
@click.option("--optimizer", type=click.Choice(["sgd", "momentum", "adam", "adamw"]), default="sgd", show_default=True)
@click.option("--lr", type=float, default=0.01, show_default=True, help="Learning rate; also settable at run time.")
@click.option("--momentum", type=float, default=0.9, show_default=True, help="For --optimizer momentum.")
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option(
    "--update",
    metavar="WHAT",
    default="auto",
    show_default=True,
    help="What is trained: auto (deepest last:N that fits), all, bias, head, last:N, GLOB,... or a scheme file.",
)
@click.option(
    "--batch",
    type=int,
    default=1,
    show_default=True,
    help="Samples per update.",
)
@click.option(
    "--micro-batch",
    metavar="N|auto",
    help="Samples that one call trains on, of --batch [default: 1]; auto: as many as --arena holds.",
)
@click.option(
    "--accumulate",
    type=click.Choice(["exact", "inplace"]),
    default="exact",
    show_default=True,
    help="Over --batch N samples: sum gradients, or update with each at once, at a learning rate of 1/N.",
)
@click.option(
    "--quant",
    type=click.Choice(["auto", "fp32", "int8"]),
    default="auto",
    show_default=True,
    help="Number format. auto: int8 for a model that is quantised (QDQ), fp32 for any other.",
)
@click.option(
    "--calib",
    type=click.Path(path_type=Path),
    metavar="FILE.npz",
    help="Typical inputs x: int8 ranges of a float model. With labels y: exponents of errors too.",
)
@click.option(
    "--calib-range",
    type=click.Choice(["minmax", "percentile"]),
    default="minmax",
    show_default=True,
    help="Range of an int8 activation: all of what --calib shows, or its middle 99.99 %.",
)
@click.option(
    "--head", type=click.Choice(["fp32", "int8"]), default="fp32", show_default=True, help="Last layer, int8 models."
)
@click.option(
    "--weight-store",
    type=click.Choice(["sr8", "q8.8", "mixed"]),
    default="mixed",
    show_default=True,
    help="Trained int8 weights: rounded with noise, with 8 fraction bits more, or these in the smallest weights only.",
)
@click.option(
    "--rescale",
    type=click.Choice(["off", "on"]),
    default="off",
    show_default=True,
    help="on: a channel whose trained int8 weights reach +-127 gets twice the scale.",
)
@click.option(
    "--classes", type=click.IntRange(2, 4096), metavar="N", help="Replace the last layer by a fresh one for N classes."
)
@click.option("--input-shape", metavar="NAME=D,D,..", multiple=True, help="Fixes the dimensions of a dynamic input.")
@click.option("--input-layout", type=click.Choice(["hwc", "chw"]), default="hwc", show_default=True, help="Of images.")
@click.option(
    "--batch-norm",
    type=click.Choice(["fold", "keep"]),
    default="fold",
    show_default=True,
    help="Into weights, or gamma and beta trained apart (float32).",
)
@click.option("--verify", type=click.Choice(["qemu", "host", "none"]), default="qemu", show_default=True)
@click.option(
    "--verify-steps", type=click.IntRange(1, 100000), default=3, show_default=True, help="Training steps compared."
)
@click.option("--count", is_flag=True, help="Count instructions of a step and an inference in QEMU, by kernel.")
@click.option("--cycles", is_flag=True, help="With --count: model the cycles of a step (a model, never a measurement).")
@click.option("--data", type=click.Path(path_type=Path), metavar="FILE.npz", help="Samples x, y for verification.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="For random samples and the planner.",
)
@click.option(
    "--lock",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use order and addresses of an earlier plan.json (any name), checked again.",
)
@click.option(
    "--report",
    metavar="KINDS",
    default="text,json,html",
    show_default=True,
    help="text on the terminal, html beside report.json.",
)
@click.option(
    "--remat",
    type=click.Choice(["off", "auto", "min"]),
    help="Compute tensors twice: auto, as --arena needs; min, smallest arena. Default: auto up to 25 % more MACs.",
)
@click.option(
    "--code",
    type=click.Choice(["speed", "size"]),
    help="Kernels of their own for every shape, or small code that layers share. Default: speed.",
)
@click.option(
    "--flash-budget",
    metavar="SIZE",
    help="Most that code and constants may take: small code where needed; copies of frozen weights with what is left.",
)
@click.option(
    "--optimise",
    type=click.Choice(["memory", "time", "energy"]),
    help="Smallest arena, least step time or energy by the target's model. Default: the least extra time that fits.",
)
@click.option(
    "--max-step-time",
    metavar="TIME",
    help="Longest step by the target's model, with paging and second runs: 500ms, 2s.",
)
@click.option(
    "--kernels",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    multiple=True,
    help=with_pages("C kernels of your own for some layers (docs/external-kernels.md)."),
)
@click.option("--tune", is_flag=True, help="Search the tiles of kernels by counting instructions in QEMU; kept in -o.")
@click.option(
    "--tiles",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tiles that --tune found, to use (with --tune: to add to). Default: those of the output that -o replaces.",
)
@click.option("--dry-run", is_flag=True, help="Plan and report; write nothing.")
@click.option(
    "--dump-after", type=click.Choice(["frontend", "training", "plan"]), help="Print a stage's result and stop."
)
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Also list layers and steps; show a traceback on internal errors.")
@click.option("--list-targets", is_flag=True, is_eager=True, expose_value=False, callback=_listing(_targets))
@click.option("--list-ops", is_flag=True, is_eager=True, expose_value=False, callback=_listing(_ops))
@click.option(
    "--explain", metavar="E0203", is_eager=True, expose_value=False, callback=_explain, help="Explain an error id."
)
@click.version_option(__version__)
def command(**flags: Any) -> None:
    """Entry point of the click command: parse, compile, print."""
    from tinytrain_compile.cli.terminal import Terminal
    from tinytrain_compile.compile.pipeline import compile_model

    options = options_of(flags)
    terminal = Terminal(flags["color"], flags["verbose"])
    try:
        result = compile_model(options, terminal.progress)
    finally:
        terminal.clear()
    if result.summary is None:
        _say(result.dump.rstrip("\n").split("\n"))
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
        _complain(str(error), *error.details)
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
    try:
        with command.make_context("tinytrain-compile", sys.argv[1:]) as context:
            command.invoke(context)
    except click.exceptions.Exit as ended:
        if ended.exit_code:
            sys.exit(ended.exit_code)
    except BrokenPipeError as problem:
        raise UnreadError from problem


def _complain(*lines: str) -> None:
    with suppress(OSError, ValueError):  # nobody can be told
        for line in lines:
            click.echo(with_pages(line), err=True)


if __name__ == "__main__":
    main()
