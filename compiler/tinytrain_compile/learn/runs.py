"""Training runs of a search: in several processes, with a file beside the result that keeps the finished ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import joblib  # pyright: ignore[reportMissingTypeStubs]

from tinytrain_compile.errors import CompileError

PARTIAL = ".partial"
"""Behind the name of a result whose runs are not all done."""


class KnownRuns:
    """What each run has found, as JSON, by a text that names the run; of another digest nothing is known."""

    def __init__(self, out: Path, digest: str) -> None:
        """Open the file beside a result. out: the result; digest: of all that decides outcomes."""
        self.path, self._found = out.with_name(out.name + PARTIAL), dict[str, Mapping[str, Any]]()
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines() if self.path.is_file() else []
        kept = [digest]
        for line in lines[1:] if lines[:1] == [digest] else ():
            try:
                row = cast("Mapping[str, Any]", json.loads(line))
                self._found[str(row["run"])] = cast("Mapping[str, Any]", row["found"])
            except (ValueError, KeyError, TypeError):
                continue  # half a line: its run is done again
            kept.append(line)
        self._write("w", kept)

    def of(self, run: str) -> Mapping[str, Any] | None:
        """Return what a run has found; None if it is still to be made."""
        return self._found.get(run)

    def add(self, run: str, found: Mapping[str, Any]) -> None:
        """Remember it. E0104 where that cannot be written."""
        self._found[run] = found
        self._write("a", [json.dumps({"run": run, "found": found})])

    def forget(self) -> None:
        """Delete the file of partial results: the result is there."""
        self.path.unlink(missing_ok=True)

    def _write(self, mode: str, lines: Sequence[str]) -> None:
        try:
            with self.path.open(mode, encoding="utf-8") as stream:
                stream.writelines(f"{line}\n" for line in lines)
        except OSError as problem:
            raise unwritten(self.path, problem.strerror or "cannot be written") from problem


def check_out(out: Path, ending: str, what: str) -> None:
    """Raise E0101 or E0104 where a result cannot be written under this name, before anything is run for it."""
    if out.suffix != ending:
        raise CompileError("E0101", "-o", f"{out.name} does not end in {ending}", f"name {what}: {out.stem}{ending}")
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise unwritten(out, "is a folder" if out.is_dir() else "its folder is not there")


def unwritten(path: Path, why: str) -> CompileError:
    """Return the error for a file that cannot be written."""
    return CompileError("E0104", str(path), why, "name a file in a folder that can be written")


Found = TypeVar("Found")


def in_processes(call: Callable[..., Found], work: Iterable[tuple[Any, ...]], jobs: int) -> Iterator[Found]:
    """Yield what `call` makes of each, in order, as it comes. jobs: processes, -1 for all cores."""
    pool: Any = joblib.Parallel(n_jobs=jobs, return_as="generator")
    yield from pool((call, one, {}) for one in work)
