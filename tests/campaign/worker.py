"""Runs cases one after the other in one process, and measures what each takes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from tests.campaign.cases import Case, Kind, Result
from tests.campaign.judge import contents, judge, left_behind
from tests.e2e.command import Outcome
from tinytrain_compile.verify.objects import VARIABLE

MEMORY_MB = 2048
"""The most that a case may take."""

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
ADDRESS_SPACE = 6 << 30
"""Keeps the machine alive: a case that asks for more gets a MemoryError, and that is an internal error."""


def serve(connection: Connection, kinds: Mapping[str, Kind], folder: Path) -> None:
    """Say "ready", then answer every (kind, seed, number) with a Result, until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # where a case hangs, nobody would see that the rest is gone
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, most))
    temporary = folder / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    os.environ.setdefault(VARIABLE, str(folder.parent / "objects"))
    warnings.simplefilter("always")  # as a new process would show them
    noise = _catch_output()
    with contextlib.suppress(EOFError):
        connection.send("ready")
        while True:
            name, seed, index = connection.recv()
            connection.send(_attempt(kinds[name], seed, index, folder, noise))


def _catch_output() -> int:
    """From now on, what is written to the streams past Python's own goes to the file whose descriptor is returned."""
    noise = os.memfd_create("noise")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(noise, stream.fileno())
    return noise


def _attempt(kind: Kind, seed: int, index: int, folder: Path, noise: int) -> Result:
    place, temporary = folder / "case", folder / "tmp"
    for used in (place, temporary):
        os.chdir(folder)
        shutil.rmtree(used, ignore_errors=True)
        used.mkdir()
    os.chdir(place)
    try:
        with warnings.catch_warnings(action="ignore"):  # those of the command count
            case = kind.case(seed, index, place)
    except Exception as wrong:
        return Result(kind.name, index, "none", problem=f"the case was not made: {type(wrong).__name__}: {wrong}")
    before = contents(place)
    os.ftruncate(noise, 0)
    _forget_peak()
    start = _cpu_s()
    outcome, problem = _run(case)
    cpu_s, peak_mb = _cpu_s() - start, _peak_mb()
    problem = problem or judge(case, outcome) or left_behind(case, outcome, before, place, temporary)
    written = os.pread(noise, 2000, 0).decode(errors="replace")
    if written:
        problem = problem or f"printed by a library: {written}"
    if peak_mb > MEMORY_MB:
        problem = problem or f"took {peak_mb:.0f} MB"
    checked = 0
    if not problem and not outcome.exit_code and case.check is not None:
        try:
            checked = case.check(place)
        except AssertionError as wrong:
            problem = str(wrong) or "a check failed"
    return Result(kind.name, index, outcome.error_id, cpu_s, peak_mb, checked, problem)


def _run(case: Case) -> tuple[Outcome, str]:
    """The outcome, and what escaped from the command."""
    try:
        return case.run(*case.arguments), ""
    except BaseException as escaped:
        return Outcome(1, "", ""), f"{type(escaped).__name__} left the command: {escaped}"


def _cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _forget_peak() -> None:
    """From now on VmHWM is the peak since now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    """Of this process since _forget_peak, or of any process that it has waited for."""
    lines = Path("/proc/self/status").read_text().splitlines()
    own = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024
