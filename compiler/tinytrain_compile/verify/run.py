"""Runs training steps of a generated project, on the host or under QEMU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface, Samples, SourceBundle
from tinytrain_compile.target import Target
from tinytrain_compile.verify.build import Built, Mode, build
from tinytrain_compile.verify.firmware import qemu_arguments, verification_input
from tinytrain_compile.verify.results import RunResult, parse_output
from tinytrain_compile.verify.tools import Tools, find_tools, first_line, run_program

RUN_TIMEOUT_S = 600.0
"""Of a run whose work nobody has said."""
BASE_S, _CYCLES_PER_S = 60, 10_000_000
_EXIT_FAULT = 99


@dataclass(frozen=True)
class RunLimit:
    """How long a run of the check program may take, and how that was reckoned."""

    seconds: float = RUN_TIMEOUT_S
    why: str = ""


def limit_of(cycles: int, counted: bool) -> RunLimit:
    """Return the limit of a run that takes so many cycles by the target's model; counted: by the plugin as well.

    QEMU takes a second for 100 million of these (MCUNet on the M7) to 500 million (keywords on the M0+), and some times
    as long with the plugin. The rest is for a model that is wrong and a machine that is busy.
    """
    millions, times = cycles / 1e6, 4 if counted else 1
    why = f"{BASE_S} s, and {times} for every 10 M of the {millions:.1f} M cycles that the target's model expects"
    return RunLimit(BASE_S + times * cycles / _CYCLES_PER_S, why)


def run_steps(
    bundle: SourceBundle,
    target: Target,
    samples: Samples,
    steps: int,
    learning_rate: float | None,
    batch: int,
    work_dir: Path,
    mode: Mode = "host",
    timeout_s: float = RUN_TIMEOUT_S,
) -> RunResult:
    """Build in `work_dir`, train `steps` steps of `batch` samples, return everything that was computed."""
    tools = find_tools(target)
    vectors = verification_input(bundle.interface, samples, steps, batch, learning_rate)
    built = build(bundle, target, mode, tools, work_dir)
    return execute(built, bundle.interface, target, tools, vectors, RunLimit(timeout_s))


def execute(
    built: Built,
    interface: Interface,
    target: Target,
    tools: Tools,
    vectors: bytes,
    limit: RunLimit = RunLimit(),
    extra: Sequence[str] = (),
    makes: Sequence[str] = (),
) -> RunResult:
    """Run a built check program on a vector file. Errors: E0602 if it crashes, faults or takes too long.

    makes: files besides its output that a plugin of QEMU (`extra`) writes.
    """
    where, _ = _command(built, target, tools)
    output = run_image(built, target, tools, vectors, limit.seconds, extra, limit.why, makes)
    return parse_output(output, interface, where)


def run_image(
    built: Built,
    target: Target,
    tools: Tools,
    vectors: bytes,
    timeout_s: float = RUN_TIMEOUT_S,
    extra: Sequence[str] = (),
    why: str = "",
    makes: Sequence[str] = (),
) -> bytes:
    """Run an image with `vectors` as input.bin; returns its output.bin. Errors as `execute`. extra: for QEMU."""
    folder = built.image.parent
    (folder / "input.bin").write_bytes(vectors)
    where, command = _command(built, target, tools)
    loop = "look for a loop without an end in kernels of yours (--kernels), or report this with the model"
    works = "" if tools.qemu is None else f"check that {Path(tools.qemu).name} works, or use --verify host; else "
    hint = loop if built.mode != "qemu" else f"{works}{loop}"
    files = [folder / name for name in ("output.bin", *makes)]
    finished = run_program([*command, *extra], folder, timeout_s, where, makes=files, why=why, hint=hint)
    if finished.exit_code != 0:
        raise CompileError(
            "E0602", where, _failure(finished.exit_code, finished.output), "please report this with the model"
        )
    return (folder / "output.bin").read_bytes()


def _command(built: Built, target: Target, tools: Tools) -> tuple[str, list[str]]:
    if built.mode != "qemu":
        return "host check", [str(built.image)]
    if target.qemu is None or tools.qemu is None:
        what = "no board" if target.qemu is None else tools.missing_for_qemu()
        raise CompileError("E0602", "QEMU check", what, "use --verify host")
    return f"QEMU check on {target.qemu.machine}", [tools.qemu, *qemu_arguments(target), "-kernel", built.image.name]


def _failure(exit_code: int, output: str) -> str:
    if exit_code < 0:
        return f"ended by signal {-exit_code} ({first_line(output)})"
    kind = "hardware fault" if exit_code == _EXIT_FAULT else f"exit code {exit_code}"
    return f"{kind} ({first_line(output)})"
