"""The one place of temporary files, and what becomes of running programs and of files when the user interrupts."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tinytrain_compile.errors import CompileError
from tinytrain_compile.verify.tools import PATIENCE_S, end_programs, programs_may_run

PREFIX = "tinytrain-"

Result = TypeVar("Result")


@contextmanager
def work_folder() -> Generator[Path]:
    """A temporary folder that is gone however the block ends. CompileError E0110 if it cannot be made or used."""
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
    """Threads that run programs. If the block is interrupted, running ones are ended, and no more are started."""
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
    """What a job of `workers` returned or raised, waited for in turns (see PATIENCE_S)."""
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
