"""External programs: finding them, running one with a time limit, and temporary files.

The only module that starts processes and makes temporary files; it cleans up both when the user interrupts.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

from tinytrain_compile.errors import CompileError
from tinytrain_compile.target.model import Target, Toolchain

TOOL_TIMEOUT_S = 120.0
"""Time limit, in seconds, of a compiler on a few KB, a linker or a disassembler: each takes seconds."""
INSTALLED = "check the installed tools"
SCRATCH = ".scratch"
"""Folder for the temporary files of programs, below the one in which they run."""


@dataclass(frozen=True)
class Tools:
    """Paths of the programs found; None for a missing one. toolchain: that of the cross compiler and emulator."""

    host_cc: str | None
    cross_cc: str | None = None
    qemu: str | None = None
    toolchain: Toolchain | None = None

    def missing_for_qemu(self) -> str:
        """Say `qemu-system-arm not found (apt-get install qemu-system-arm)`; "" if both cross tools are there."""
        return self._missing(emulator=True)

    def missing_for_figures(self) -> str:
        """Say the same of the cross compiler alone, which measures flash and static stack."""
        return self._missing(emulator=False)

    def _missing(self, emulator: bool) -> str:
        assert self.toolchain is not None, "only a target with a toolchain has such tools"
        wanted = [(self.toolchain.compiler, self.cross_cc)]
        wanted += [(self.toolchain.emulator, self.qemu)] if emulator else []
        missing = [program for program, path in wanted if path is None]
        names, packages = " and ".join(one.name for one in missing), " ".join(one.packages for one in missing)
        return f"{names} not found (apt-get install {packages})" if missing else ""


def find_tools(target: Target | None = None) -> Tools:
    """Look for programs on PATH: the host's compiler, and those of a target's toolchain."""
    host = next((path for path in map(shutil.which, ("gcc", "cc", "clang")) if path is not None), None)
    toolchain = None if target is None else target.toolchain
    if toolchain is None:
        return Tools(host)
    return Tools(host, shutil.which(toolchain.compiler.name), shutil.which(toolchain.emulator.name), toolchain)


PATIENCE_S = 0.5
"""Longest single wait, in seconds. A signal between Python's check for one and the system call that waits does not end
that call: an interrupt would be lost until the wait is over."""


@dataclass(frozen=True)
class Finished:
    """Result of a program that ended. exit_code is negative for a signal; output is both of its streams."""

    exit_code: int
    output: str


class _Programs:
    """Programs running now, in all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def start(self, command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a program in its own process group. OSError if it cannot be started."""
        with self._lock:
            if self._ended:
                raise InterruptedError("interrupted")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C", **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a program, with all its children if the system has process groups."""
        if process.poll() is None:
            _kill(process)
            process.wait()
        with self._lock:
            self._running.discard(process)

    def end_all(self) -> None:
        """End all programs, and start no more until `resume`."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)

    def resume(self) -> None:
        """Let programs be started again."""
        with self._lock:
            self._ended = False


_PROGRAMS = _Programs()
end_programs, programs_may_run = _PROGRAMS.end_all, _PROGRAMS.resume


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def run_program(
    command: list[str],
    folder: Path,
    timeout_s: float,
    what: str,
    *,
    makes: Sequence[Path] = (),
    why: str = "",
    hint: str = INSTALLED,
) -> Finished:
    """Run a program in `folder` without input; E0602 naming `what` if it cannot start or exceeds its time.

    Its own temporary files are below `folder` (OSError if that is impossible). Its children are ended too on a timeout
    or an interrupt, if the system can: compilers and emulators have some. makes: files that it writes on success, none
    of which exists before; E0602 if one is missing. why: derivation of timeout_s; hint: what to try if that is
    exceeded.
    """
    for made in makes:
        made.unlink(missing_ok=True)
    place = folder.resolve() / SCRATCH
    place.mkdir(exist_ok=True)
    try:
        process = _PROGRAMS.start(command, folder, dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(place)))
    except OSError as error:
        reason = error.strerror or "cannot be started"
        raise CompileError("E0602", what, f"{Path(command[0]).name}: {reason}", INSTALLED) from error
    try:
        output = _output(process, timeout_s)
    except subprocess.TimeoutExpired as error:
        long = f"{Path(command[0]).name} is still running after {timeout_s:.0f} s{why and f' ({why})'}"
        raise CompileError("E0602", what, long, hint) from error
    finally:
        _PROGRAMS.end(process)
    missing = [made.name for made in makes if not made.is_file()] if process.returncode == 0 else []
    if missing:
        lacks = f"{Path(command[0]).name} ended without an error, but wrote no {missing[0]}"
        raise CompileError("E0602", what, lacks, INSTALLED)
    return Finished(process.returncode, output.decode("utf-8", "replace"))


def _output(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Return the output of a program at its end, waited for in turns (see PATIENCE_S).

    TimeoutExpired after its time.
    """
    end = time.monotonic() + timeout_s
    while True:
        left = end - time.monotonic()
        try:
            return process.communicate(timeout=min(PATIENCE_S, max(left, 0)))[0]
        except subprocess.TimeoutExpired:
            if left <= PATIENCE_S:
                raise


def first_line(text: str) -> str:
    """Return the most informative line of an output: the first complaint, else the last line, else "no message"."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    complaint = re.compile(r"error:|undefined reference|overflowed|fault|arena|fatal", re.IGNORECASE)
    complaints = [line for line in lines if complaint.search(line) and "ld returned" not in line]
    line = (complaints or lines[-1:] or ["no message"])[0]
    return re.sub(r"(?<![\w.])/(?:[^\s:/]+/)+", "", line)  # folders are not informative, and differ from run to run


# ---- temporary files, and workers ------------------------------------------------------------------------------------

PREFIX = "tinytrain-"

Result = TypeVar("Result")


@contextmanager
def work_folder() -> Generator[Path]:
    """Make a temporary folder that is removed however the block ends. E0110 if it cannot be made or used."""
    try:
        folder = Path(tempfile.gettempdir()).resolve() / f"{PREFIX}{secrets.token_hex(8)}"
    except OSError as problem:
        raise _unusable(problem) from problem
    try:
        folder.mkdir(mode=0o700)
        yield folder
    except OSError as problem:
        raise _unusable(problem) from problem
    finally:
        _remove(folder)


@contextmanager
def workers(count: int | None = None) -> Generator[ThreadPoolExecutor]:
    """Start threads that run programs. If the block is interrupted, running programs end, and no more start."""
    try:
        with ThreadPoolExecutor(count or os.cpu_count()) as pool:
            try:
                yield pool
            except KeyboardInterrupt:
                end_programs()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except KeyboardInterrupt:
        programs_may_run()
        raise


def result_of(job: Future[Result]) -> Result:
    """Return what a job of `workers` returned or raised, waited for in turns (see PATIENCE_S)."""
    while not wait((job,), timeout=PATIENCE_S).done:
        pass
    return job.result()


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _unusable(problem: OSError) -> CompileError:
    what = problem.strerror or "it cannot be used"
    return CompileError("E0110", "temporary folder", what, "set TMPDIR to a folder with room")
