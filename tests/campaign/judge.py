"""What every run of the command must leave behind: one line or a success, the right exit code, nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.campaign.cases import REFUSALS, Case
from tests.e2e.command import Outcome
from tinytrain_compile.errors import ERRORS

OUT = "out"
"""Where cases write their output, if they write one."""

Contents = dict[str, tuple[int, int]]
"""Name -> size and time of change."""


def contents(folder: Path) -> Contents:
    """Everything in a folder, its sub-folders' files too; those of an output are not looked at."""
    found: Contents = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if name.parts[0] != OUT or len(name.parts) == 1:
            state = path.lstat()
            found[str(name)] = (0, 0) if path.is_dir() and not path.is_symlink() else (state.st_size, state.st_mtime_ns)
    return found


def judge(case: Case, outcome: Outcome) -> str:
    """What is wrong with an outcome; "" if nothing is."""
    if outcome.exit_code == 0:
        if outcome.err:
            return f"success, and on stderr: {outcome.err}"
        passed = "--dry-run" in case.arguments or not case.sound or "PASS" in outcome.out
        return "" if passed else f"success without PASS: {outcome.out}"
    error_id = outcome.error_id
    if error_id not in ERRORS:
        return f"exit code {outcome.exit_code} without a known error: {outcome.err}"
    try:
        outcome.check_error(error_id, ERRORS[error_id].exit_code)
    except AssertionError as wrong:
        return f"{wrong} in: {outcome.err}{outcome.out}"
    if error_id in case.never or (case.sound and error_id not in REFUSALS):
        return outcome.err
    return ""


def left_behind(case: Case, outcome: Outcome, before: Contents, folder: Path, temporary: Path) -> str:
    """What a run wrote and should not have, or lost; "" if nothing."""
    after = contents(folder)
    written = after.pop(OUT, None) if OUT not in before else None
    if after != before:
        changed = sorted(name for name in after.keys() | before.keys() if after.get(name) != before.get(name))
        return f"these files came, went or changed: {changed}"
    wanted = outcome.exit_code == 0 and case.writes
    if OUT not in before and (written is not None) != wanted:
        return "an output was written" if written is not None else "no output was written"
    if wanted and not (folder / OUT / "report.json").is_file():
        return "the output is incomplete"
    rest = sorted(path.name for path in temporary.iterdir())
    return f"left in the folder for temporary files: {rest}" if rest else ""
