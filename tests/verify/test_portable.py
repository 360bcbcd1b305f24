"""The compiler's own process uses nothing that Windows lacks: neither in its text nor when it runs."""

from __future__ import annotations

import ast
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import tinytrain_compile
from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import HERE, run
from tinytrain_compile.errors import CompileError
from tinytrain_compile.verify.tools import run_program

SOURCES = sorted(Path(tinytrain_compile.__file__).parent.rglob("*.py"))


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OS = words("""
WEXITSTATUS WIFEXITED WIFSIGNALED WNOHANG WTERMSIG chown chroot confstr ctermid fchdir fchmod fchown fork
forkpty getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getsid getuid initgroups
killpg lchown lockf major makedev minor mkfifo mknod nice openpty pathconf pipe2 posix_fadvise posix_fallocate
posix_spawn pread preadv pwrite pwritev register_at_fork sched_getaffinity sched_setaffinity sendfile setegid
seteuid setgid setgroups setpgid setpriority setregid setreuid setsid setuid statvfs sync sysconf tcgetpgrp
tcsetpgrp ttyname uname wait wait3 wait4 waitid O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC
""")
SIGNALS = words("""
SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTRAP SIGTSTP SIGUSR1 SIGUSR2 SIGXCPU SIGXFSZ
alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait
""")
MODULES = words("crypt curses fcntl grp nis ossaudiodev posix pty pwd readline resource spwd syslog termios tty")
GUARDED = {("tools.py", "killpg"), ("tools.py", "SIGKILL")}
"""Where `hasattr` stands before it."""


def posix_only(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = {"os": OS, "signal": SIGNALS}.get(node.value.id, frozenset())
            if node.attr in names and (path.name, node.attr) not in GUARDED:
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [name for name in named if name.split(".")[0] in MODULES]
        elif isinstance(node, ast.keyword) and node.arg in ("preexec_fn", "pass_fds", "process_group"):
            found.append(node.arg)
        elif isinstance(node, ast.Constant) and str(node.value).startswith(("/dev/", "/tmp", "/proc/")):
            found.append(str(node.value))
    return found


def test_no_source_needs_posix() -> None:
    assert len(SOURCES) > 100
    assert {path.name: names for path in SOURCES if (names := posix_only(path))} == {}


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os, fcntl\nos.killpg(1, 9)\nopen('/dev/null')\nf(preexec_fn=None)\n")
    assert sorted(posix_only(tmp_path / "a.py")) == ["/dev/null", "fcntl", "os.killpg", "preexec_fn"]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine without what only POSIX has, as far as Python's own modules can do without it."""
    for name in words("killpg setsid getpgid setpgid getpgrp fork mkfifo mknod chown nice fchmod getloadavg"):
        monkeypatch.delattr(os, name, raising=False)
    for name in words("SIGHUP SIGALRM SIGCHLD SIGQUIT SIGUSR1 alarm pthread_kill"):
        monkeypatch.delattr(signal, name, raising=False)


@pytest.mark.usefixtures("elsewhere")
def test_compiling_without_posix(tmp_path: Path) -> None:
    outcome = run(write(models.mlp(), tmp_path), "-o", tmp_path / "out", "--verify", "host").check_success()
    assert HERE in outcome.agreed
    run(write(models.mlp(), tmp_path), "-o", tmp_path / "out", "--verify", "none").check_success()


@pytest.mark.usefixtures("elsewhere")
def test_a_program_without_an_end_is_ended_without_process_groups(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(CompileError, match="still running"):
        run_program([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, 0.5, "a program")
    assert time.monotonic() - begun < 30
