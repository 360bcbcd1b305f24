"""Runs the command line: in this process (fast), or in one of its own (as users do)."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tinytrain_compile.cli import command

STAGE = re.compile(r"^\[ *\d+%\] \S[^\n]*\n", re.MULTILINE)
"""A line of progress, as the command writes it to a pipe when a stage begins."""

AGREED = re.compile(r"^(?:checks)? +(\S.* vs (?:numpy reference|this machine|derivative of file))\b", re.MULTILINE)
FILE = "model file vs numpy reference"
HERE = "C on this machine vs numpy reference"
STEP = "training step vs derivative of file"
"""Checks of a build that has been compared with the file and run on this machine."""


@dataclass(frozen=True)
class Outcome:
    """What a run of the command left behind. err: without the lines of progress, which are `stages`."""

    exit_code: int
    out: str
    err: str
    stages: tuple[str, ...] = ()

    @classmethod
    def of(cls, exit_code: int, out: str, err: str) -> Outcome:
        """Tell progress apart from what was said on stderr."""
        return cls(exit_code, out, STAGE.sub("", err), tuple(line.rstrip("\n") for line in STAGE.findall(err)))

    @property
    def error_id(self) -> str:
        """`E0203` of `error[E0203]: ...`, or "" without an error."""
        return self.err[6:11] if self.err.startswith("error[E") else ""

    @property
    def agreed(self) -> tuple[str, ...]:
        """What agreed with what by the report: `model file vs numpy reference`, ..."""
        return tuple(AGREED.findall(self.out))

    def check_success(self) -> Outcome:
        """Assert exit code 0 and nothing on stderr."""
        assert self.exit_code == 0, self.err
        assert self.err == ""
        return self

    def check_error(self, error_id: str, exit_code: int) -> Outcome:
        """Assert one line of the given kind, and only E04xx and the lists of nodes with lines behind it."""
        assert self.error_id == error_id, self.err or self.out
        assert self.exit_code == exit_code
        lines = self.err.rstrip("\n").split("\n")
        assert lines[0].isprintable()
        assert lines[0].count("; ") >= 1, "says what to try"
        assert error_id in ("E0401", "E0402", "E0405", "E0501", "E0503") or len(lines) == 1, self.err
        assert "Traceback" not in self.err
        assert self.out == ""
        return self


def run(*arguments: str | Path) -> Outcome:
    """The command in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    saved = sys.argv
    sys.argv = ["tinytrain-compile", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = saved
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Outcome.of(code, *texts)


def run_process(
    *arguments: str | Path,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    timeout_s: float = 300,
) -> Outcome:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "tinytrain_compile", *map(str, arguments)]
    finished = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    return Outcome.of(finished.returncode, finished.stdout.decode(), finished.stderr.decode())


def tree(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of everything below a folder (sub-folders map to "")."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }
