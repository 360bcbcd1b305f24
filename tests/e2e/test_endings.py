"""Signals, closed pipes and full disks: nothing is left behind, and what is said last is true."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tinytrain_compile
from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import STAGE, run, run_process, tree
from tinytrain_compile.cli import start
from tinytrain_compile.files import output_folder
from tinytrain_compile.verify import tools

COMMAND = [sys.executable, "-m", "tinytrain_compile"]


@pytest.fixture
def mlp(tmp_path: Path) -> str:
    return write(models.mlp(), tmp_path)


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, with `TTC` for the command; every part of a pipe counts."""
    text = f"set -o pipefail; {command}".replace("TTC", f'"{sys.executable}" -m tinytrain_compile')
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=120, check=False)


def compiler(folder: Path, script: str) -> dict[str, str]:
    """An environment in which `gcc` is a script."""
    (folder / "bin").mkdir()
    (folder / "tmp").mkdir()
    (folder / "bin" / "gcc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "gcc").chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "TMPDIR": str(folder / "tmp")}


# ---- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_leaves_nothing(name: str, mlp: str, tmp_path: Path) -> None:
    """While the C compiler runs: it is ended with its children, and no temporary file of it or of us stays."""
    script = f'echo text > "$TMPDIR/cc1.s"; cd {tmp_path}; echo $$ > pid.new; mv pid.new pid; sleep 99'
    environment = {**os.environ, **compiler(tmp_path, script)}
    command = [*COMMAND, mlp, "-o", str(tmp_path / "out"), "--verify", "host"]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    end = time.monotonic() + 100
    while not (tmp_path / "pid").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert list((tmp_path / "tmp").rglob("cc1.s")), "its temporary files lie in our folder"
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (128 + getattr(signal, name), "")
    assert STAGE.sub("", err) == "\ninterrupted; nothing was written\n"
    assert tree(tmp_path / "tmp") == {}
    assert not (tmp_path / "out").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.fixture
def interrupts() -> None:
    """Ctrl-C as Python understands it, whatever solvers of other tests in this process have made of the signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Late:
    """A job with an interrupt that does not wake the main thread, as if it came just before that waits: PATIENCE_S."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()
        self.in_time = False

    def waited_for(self, wait: Callable[[], object]) -> None:
        """The interrupt comes while this runs, and not before."""
        self.begun.set()
        wait()

    def __call__(self) -> None:
        assert self.begun.wait(60)
        self.over.wait(0.2)  # the other thread is about to wait
        signal.raise_signal(signal.SIGINT)  # it is this thread's system call that it ends
        self.in_time = self.over.wait(20)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_just_before_a_wait_for_a_job() -> None:
    late = Late()
    with tools.workers(1) as pool:
        job = pool.submit(late)
        with pytest.raises(KeyboardInterrupt):
            late.waited_for(lambda: tools.result_of(job))
        late.over.set()
    assert late.in_time


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_just_before_a_wait_for_a_program(tmp_path: Path) -> None:
    late = Late()
    thread = threading.Thread(target=late)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        late.waited_for(lambda: tools.run_program(["sleep", "99"], tmp_path, 30, "sleep"))
    late.over.set()
    thread.join()
    assert late.in_time


def test_an_interrupt_is_understood_after_a_search() -> None:
    """OR-Tools would leave the signal its default, which ends the process without cleaning up."""
    code = """
import signal
from ortools.sat.python import cp_model
from tinytrain_compile.plan.solver import new_solver
new_solver(0, 1.0).solve(cp_model.CpModel())
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("understood")
"""
    command = [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)" + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "understood\n")


def test_every_search_has_such_a_solver() -> None:
    sources = Path(tinytrain_compile.__file__ or "").parent.rglob("*.py")
    assert [path.name for path in sources if "CpSolver()" in path.read_text(encoding="utf-8")] == ["solver.py"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers as they were, afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("ignored", "code"), [(False, 129), (True, None)])
def test_a_terminal_that_hangs_up(
    ignored: bool, code: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends the command as Ctrl-C does, except under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    hang_up = types.SimpleNamespace(main=lambda: signal.raise_signal(signal.SIGHUP))
    monkeypatch.setitem(sys.modules, "tinytrain_compile.cli.command", hang_up)
    try:
        start.main()
        ended = None
    except SystemExit as problem:
        ended = problem.code
    assert ended == code
    assert ("interrupted" in capsys.readouterr().err) == (not ignored)


def test_an_interrupt_while_libraries_are_imported(tmp_path: Path) -> None:
    """The first thing imported is what understands an interrupt; it takes next to no time itself."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    paths = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    outcome = run_process("--help", environment={"PYTHONPATH": paths})
    assert (outcome.exit_code, outcome.err) == (130, "\ninterrupted; nothing was written\n")


def test_an_interrupt_after_the_output_says_so(mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(output_folder, "sweep", interrupted)
        outcome = run(mlp, "-o", tmp_path / "out", "--verify", "none")
    assert (outcome.exit_code, outcome.err) == (130, "\ninterrupted; the output is complete\n")
    assert (tmp_path / "out" / "manifest.json").is_file()


# ---- streams --------------------------------------------------------------------------------------------------------


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What was written to stderr but progress."""
    return STAGE.sub("", done.stderr)


def test_a_reader_that_stops_is_no_error(mlp: str) -> None:
    done = shell(f"TTC --help | head -c 9; TTC '{mlp}' --dry-run -v | true")
    assert (done.returncode, said(done), done.stdout) == (0, "", "Usage: ti")


@pytest.mark.parametrize("flags", [("--help",), ("--dump-after", "plan")])
def test_a_pipe_that_is_closed_is_no_error(flags: tuple[str, ...], mlp: str) -> None:
    """Whoever reads has gone before anything is written."""
    read, write_end = os.pipe()
    os.close(read)
    command = [*COMMAND, mlp, *flags]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(write_end)
    assert (done.returncode, said(done)) == (0, "")


@pytest.mark.parametrize("flags", ["--help", "--dump-after plan"])
def test_a_full_disk_behind_stdout(flags: str, mlp: str) -> None:
    done = shell(f"TTC '{mlp}' {flags} > /dev/full")
    assert (done.returncode, done.stdout) == (2, "")
    assert said(done).startswith("error[E0111]: standard output: No space left on device; redirect it")
    assert len(said(done).splitlines()) == 1


def test_an_output_that_nobody_could_be_told_of(mlp: str, tmp_path: Path) -> None:
    done = shell(f"TTC '{mlp}' -o '{tmp_path}/out' --verify none > /dev/full")
    assert (done.returncode, said(done)[:12]) == (2, "error[E0111]")
    assert (tmp_path / "out" / "manifest.json").is_file()
    closed = shell(f"TTC '{mlp}' --dry-run >&-; TTC '{mlp}' --arena 0 2>/dev/full")
    assert (closed.returncode, said(closed)) == (2, "")


# ---- temporary files ------------------------------------------------------------------------------------------------


def test_a_full_temporary_folder(mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is full, or that of the C compiler."""

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        outcome = run(mlp, "-o", tmp_path / "out", "--verify", "host").check_error("E0110", 2)
        assert "TMPDIR" in outcome.err
    environment = compiler(tmp_path, "echo 'x.c:1: fatal error: error writing to x.s: No space left on device'; exit 1")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    run(mlp, "-o", tmp_path / "out", "--verify", "host").check_error("E0110", 2)
    assert tree(tmp_path / "tmp") == {}
    assert not (tmp_path / "out").exists()
