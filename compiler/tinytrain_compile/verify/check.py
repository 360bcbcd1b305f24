"""The whole verification: static checks, host run against numpy, board run against the host run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface, Samples, SourceBundle
from tinytrain_compile.ir.summary import Comparison, FileAgreement, InstructionCounts, Unverified, VerifyReport
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.build import Compiled, Mode, compile_project, functions_in, link_project
from tinytrain_compile.verify.compare import (
    LoadedReference,
    ReferenceRun,
    StepReference,
    compare_bytes,
    compare_loaded,
    compare_reference,
    compare_steps,
)
from tinytrain_compile.verify.count import (
    COUNTS,
    Call,
    CountedFunction,
    counted_calls,
    functions_of,
    instruction_counts,
    prepare_count,
    read_calls,
)
from tinytrain_compile.verify.cycles import cycle_model, read_blocks
from tinytrain_compile.verify.firmware import sample_indices, verification_input
from tinytrain_compile.verify.heard import HeardReference, compare_heard
from tinytrain_compile.verify.run import RunLimit, RunResult, execute, limit_of
from tinytrain_compile.verify.stack import StackBound, read_call_graph, stack_bound
from tinytrain_compile.verify.symbols import check_no_double, check_symbols, hidden_callees, library_table, read_object
from tinytrain_compile.verify.tools import Tools, find_tools, result_of, work_folder, workers

_BLOCKS = "blocks.txt"
VerifyMode = Literal["qemu", "host", "none"]
Reference = ReferenceRun | StepReference | LoadedReference
"""Reference of a comparison: integers need a whole run, float32 steps from the run's own states, inference a loaded
state."""


@dataclass(frozen=True)
class StaticFigures:
    """Figures of a target build's objects, known without running."""

    stack: StackBound
    code_bytes: int
    const_bytes: int
    functions: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class _Job:
    bundle: SourceBundle
    target: Target
    samples: Samples
    vectors: bytes
    tools: Tools
    limit: RunLimit
    batch: int
    count: bool
    cycles: bool
    file: FileAgreement | None
    heard: HeardReference | None

    @property
    def interface(self) -> Interface:
        return self.bundle.interface


@dataclass(frozen=True, eq=False)
class _Board:
    """Results of the board's build: sizes, and with QEMU the run and its instructions."""

    figures: StaticFigures | None
    run: RunResult | None = None
    counts: InstructionCounts | None = None


def verify(
    bundle: SourceBundle,
    target: Target,
    samples: Samples,
    reference: Reference | None,
    mode: VerifyMode,
    *,
    steps: int = 3,
    learning_rate: float | None = None,
    batch: int = 1,
    expected_cycles: int | None = None,
    count: bool = False,
    cycles: bool = False,
    file: FileAgreement | None = None,
    heard: HeardReference | None = None,
) -> VerifyReport:
    """Check a generated project; see docs/contract.md, 7.

    mode "qemu" falls back to "host" (and says so in the message) if the cross compiler or QEMU is missing; with only
    the cross compiler, sizes and the static stack bound are still checked. reference None skips numpy.
    file: how the model file agreed with the reference, for the message and the report.
    heard: what m_hear has to give of the probe, in a build with --listen on.
    expected_cycles: of the whole run by the target's model, which determine its time limit; None: not known.
    count: count the instructions of a step and of an inference on the board (needs two steps); cycles: and model them.
    Errors: E0601 (a difference, a broken rule), E0602 (build or run failed), E0603 (a loss that is NaN or infinite).
    """
    if mode == "none":
        return VerifyReport("none", 0, "skipped", "verification skipped (--verify none)")
    tools = find_tools(target)
    vectors = verification_input(bundle.interface, samples, steps, batch, learning_rate)
    limit = RunLimit() if expected_cycles is None else limit_of(expected_cycles, count)
    job = _Job(bundle, target, samples, vectors, tools, limit, batch, count, cycles, file, heard)
    wants_board = mode == "qemu" and tools.cross_cc is not None
    if tools.host_cc is None and not (wants_board and tools.qemu is not None and target.qemu is not None):
        return VerifyReport("none", 0, "skipped", "not verified: no C compiler found (apt-get install gcc)", file=file)
    check_no_double(bundle)
    with work_folder() as folder, workers(2) as pool:
        host = pool.submit(_host_side, job, folder / "host") if tools.host_cc is not None else None
        board = pool.submit(_board_side, job, folder / "board") if wants_board else None
        return _judge(job, reference, host, board, steps, tuple(_why_unverified(target, tools, mode)))


def _why_unverified(target: Target, tools: Tools, mode: VerifyMode) -> Iterator[str]:
    """Yield all reasons why the code does not run on the target's own core; none if it does, or need not."""
    if target.why_unverified:
        yield target.why_unverified
    if mode == "host" or target.toolchain is None:
        return
    if missing := tools.missing_for_figures() if target.qemu is None else tools.missing_for_qemu():
        yield missing


def _host_side(job: _Job, folder: Path) -> RunResult:
    compiled = compile_project(job.bundle, job.target, "host", job.tools, folder)
    objects = [read_object(path) for path in compiled.model_objects]
    check_symbols(objects, job.interface.prefix, job.target, False, job.bundle.external)
    built = link_project(compiled, job.target, job.tools)
    return execute(built, job.interface, job.target, job.tools, job.vectors, job.limit)


def _board_side(job: _Job, folder: Path) -> _Board:
    machine = job.target.qemu is not None  # without one only the model is built, for its figures
    compiled = compile_project(job.bundle, job.target, "qemu", job.tools, folder, None if machine else ())
    figures = static_figures(compiled, job.interface, job.target, job.bundle.external)
    if not machine:
        return _Board(figures)
    built = link_project(compiled, job.target, job.tools)
    if job.tools.qemu is None:
        return _Board(figures)
    functions: list[CountedFunction] = []
    plugin, makes = tuple[str, ...](), list[str]()
    if job.count:
        functions = functions_of(built.image, compiled.model_objects, job.interface.prefix)
        plugin = prepare_count(functions, job.tools, built.image.parent, _BLOCKS if job.cycles else "")
        makes = [COUNTS, _BLOCKS] if job.cycles else [COUNTS]
    run = execute(built, job.interface, job.target, job.tools, job.vectors, job.limit, plugin, makes)
    if not job.count or run.faults:
        return _Board(figures, run)
    calls = read_calls(built.image.parent, functions)
    counts = instruction_counts(calls, functions, job.interface, job.batch)
    return _Board(figures, run, _with_cycles(counts, calls, built.image, job) if job.cycles else counts)


def _with_cycles(counts: InstructionCounts, calls: list[Call], image: Path, job: _Job) -> InstructionCounts:
    blocks = read_blocks(image.parent / _BLOCKS)
    step, infer = counted_calls(calls, job.interface, job.batch)
    return replace(counts, cycles=cycle_model(job.target, image, blocks[step], blocks[infer]))


def static_figures(
    compiled: Compiled, interface: Interface, target: Target, external: tuple[str, ...] = ()
) -> StaticFigures:
    """Return symbol rules, sizes and stack bound of a target build.

    Errors: E0601 if a rule is broken or the stack budget of a core exceeded, E0404 for the stack of a board.
    """
    objects = [read_object(path) for path in compiled.model_objects]
    check_symbols(objects, interface.prefix, target, True, external)
    graph = read_call_graph(compiled.model_objects)
    bound = stack_bound(graph, interface.prefix, library_table(target), hidden_callees(objects, target))
    if bound.size_bytes > target.stack_budget_bytes:
        raise _too_much_stack(bound, target)
    code, const = (sum(sizes) for sizes in zip(*((item.code_bytes, item.const_bytes) for item in objects), strict=True))
    return StaticFigures(bound, code, const, dict(functions_in(compiled.model_objects)))


def _too_much_stack(bound: StackBound, target: Target) -> CompileError:
    path, room = " > ".join(bound.path), target.stack_budget_bytes
    if target.board is None:
        what = f"{bound.size_bytes} bytes, the budget of {target.name} is {room} ({path})"
        return CompileError("E0601", "stack", what, "raise stack_budget_bytes in a target file of your own")
    what = f"calls need {bound.size_bytes} B, {target.name} has {room} B (over by {bound.size_bytes - room} B; {path})"
    way = "give more as stack_bytes in a board file of your own (docs/on-your-board.md)"
    return CompileError("E0404", f"stack in {target.board.stack.name}", what, way)


def _judge(
    job: _Job,
    reference: Reference | None,
    host_side: Future[RunResult] | None,
    board_side: Future[_Board] | None,
    steps: int,
    reasons: tuple[str, ...],
) -> VerifyReport:
    host = result_of(host_side) if host_side is not None else None
    if host is not None:
        _check_run(host, "the host", job.interface)
    error = _compared(job, host, reference) if host is not None and reference is not None else None
    done = result_of(board_side) if board_side is not None else _Board(None)
    figures, board = done.figures, done.run
    if board is not None and figures is not None:
        error = _judge_board(job, board, figures, host, reference, error)
    run = host or board
    mode: Mode = "host" if board is None else "qemu"
    ran = (*(["on this machine"] if host else []), *([f"in {_board_name(job.target)}"] if board else []))
    unverified = Unverified("; ".join(reasons), ran) if reasons else None
    return VerifyReport(
        mode=mode,
        steps=steps,
        result="pass",
        message=_message(job, host is not None, board is not None, error, unverified),
        losses=() if run is None else _step_losses(run, job.interface, job.samples, job.batch),
        stack_bytes=figures.stack.size_bytes if figures else None,
        stack_measured_bytes=board.stack_measured_bytes if board else None,
        arena_measured_bytes=run.arena_measured_bytes if run else None,
        code_bytes=figures.code_bytes if figures else None,
        const_bytes=figures.const_bytes if figures else None,
        function_bytes=figures.functions if figures else {},
        max_error=error,
        counts=done.counts,
        file=job.file,
        comparisons=tuple(_comparisons(job, host is not None, board is not None, error)),
        left_out=tuple(_left_out(job.file)),
        unverified=unverified,
    )


def _judge_board(
    job: _Job,
    board: RunResult,
    figures: StaticFigures,
    host: RunResult | None,
    reference: Reference | None,
    error: float | None,
) -> float | None:
    """Compare board and host, or numpy if there is no host compiler; return the error against numpy."""
    _check_run(board, _board_name(job.target), job.interface)
    measured, bound = board.stack_measured_bytes, figures.stack.size_bytes
    if measured is None or measured > bound:
        what = f"{measured} bytes were used on {_board_name(job.target)}, the static bound is {bound}"
        raise CompileError("E0601", "stack", what, "please report this with the model")
    if host is not None:
        compare_bytes(board, host, job.interface, _board_name(job.target))
        return error
    return _compared(job, board, reference) if reference is not None else None


def _compared(job: _Job, run: RunResult, reference: Reference) -> float:
    heard = 0.0 if job.heard is None else compare_heard(run, job.heard, job.interface)
    if isinstance(reference, LoadedReference):
        return max(heard, compare_loaded(run, reference, job.interface))
    if isinstance(reference, ReferenceRun):
        return max(heard, compare_reference(run, reference, job.interface))
    return max(heard, compare_steps(run, reference, job.interface))


def _check_run(run: RunResult, where: str, interface: Interface) -> None:
    bad = np.flatnonzero(~np.isfinite(run.losses))
    if bad.size:
        step = int(bad[0]) * len(run.states) // len(run.losses)
        number = "not a number" if np.isnan(run.losses[bad[0]]) else "infinite"
        raise CompileError("E0603", "verify", f"the loss is {number} in step {step}", "lower --lr, or look at the data")
    floats = [slot.name for slot in interface.state if slot.dtype == "float32"]
    for step, state in enumerate(run.states if run.faults else ()):  # m_save rejects it: an integer loss stays finite
        name = next((name for name in floats if not np.isfinite(np.frombuffer(state[name], np.float32)).all()), "")
        if name:
            what = f"{name} is not a number, or infinite, after step {step}"
            raise CompileError("E0603", "verify", what, "lower --lr, or look at the data")
    if run.faults:
        raise CompileError("E0601", f"verify on {where}", run.faults[0], "please report this with the model")


def _step_losses(run: RunResult, interface: Interface, samples: Samples, batch: int) -> tuple[float, ...]:
    """Return the loss of each step, equal to PyTorch's for all samples of its batch."""
    if not interface.trains:
        return ()
    calls = iter(sample_indices(interface, samples, len(run.states), batch))
    steps = run.losses.reshape(len(run.states), -1).astype(np.float64)
    return tuple(
        interface.terms.of_batch([float(loss) for loss in step], [samples.y[next(calls)] for _ in step])
        for step in steps
    )


def _board_name(target: Target) -> str:
    return f"QEMU {target.qemu.machine}" if target.qemu else target.name


def _comparisons(job: _Job, host: bool, board: bool, error: float | None) -> Iterator[Comparison]:
    """Yield the comparisons that agreed, from the model file to the board. error: of the first run against numpy."""
    file = job.file
    if error is not None and file is not None and file.tensors:
        yield Comparison("model file", "numpy reference", _closeness(file, "max error"))
    here, there = "C on this machine", f"C in {_board_name(job.target)}"
    same = "identical bytes"
    if error is not None and (host or board):
        found = same if job.interface.exact else f"max error {error:.1e}"
        yield Comparison(here if host else there, "numpy reference", found)
    if host and board:
        yield Comparison(there, "this machine", same)


def _left_out(file: FileAgreement | None) -> Iterator[str]:
    """Yield omitted comparisons, and why."""
    if file is not None and file.skipped:
        yield f"not compared with the file: {'; '.join(file.skipped)}"


def _message(job: _Job, host: bool, board: bool, error: float | None, unverified: Unverified | None) -> str:
    """Return a message: what agrees, how closely, the verdict, and omitted checks."""
    file = job.file
    compared = file if file is not None and file.tensors and error is not None else None
    runs = [name for name, ran in (("host", host), (_board_name(job.target), board)) if ran]
    chain = [*(["file"] if compared is not None else []), *(["reference"] if error is not None else []), *runs]
    parts = [" == ".join(chain)] if len(chain) > 1 else []
    if compared is not None:
        parts.append(f"file {_closeness(compared)}")
    found = "bit-exact" if job.interface.exact else f"max |err| {error or 0.0:.1e}"
    first, *later = [name.split()[0] for name in runs] or [""]
    if error is not None:
        parts.append(f"{first} {found}")
    parts += [f"{name} bit-exact" for name in later]
    where = [] if unverified is None else [unverified.text]
    return "   ".join([*parts, "PASS", *_left_out(file), *where])


def _closeness(file: FileAgreement, error: str = "max |err|") -> str:
    """Return the distance between the file and the reference."""
    if file.steps is None:
        return f"{error} {file.max_error or 0.0:.1e}"
    share = "" if file.equal_bytes is None else f", {100 * file.equal_bytes:.1f} % equal"
    return f"within {file.steps:.0f} step{'' if file.steps == 1 else 's'}{share}"
