"""Keeps the commands that the documentation quotes true: runs them and puts their real output into the page.

Three kinds of block follow a marker in a Markdown file:

    <!-- run -->          a fenced block of "$ command" lines, each followed by its output. A line "..." stands for
                          output left out: as many lines as the page shows before and after it are taken. "sha256 ..."
                          stands for a digest, which no two machines need have alike.
    <!-- output: CMD -->  the output of a command as Markdown (a table), up to <!-- /output -->.
    <!-- file: PATH -->   a fenced excerpt of a file, "..." between its pieces. A path that begins with out/ is made by
                          the commands of the page before it.

All commands of a page run, in order, in one fresh folder that holds examples/ and scripts/. A command of the second
kind finds on its input the page up to there, so that a table may sum up what other commands printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testing.places import ROOT, SHARED

PAGES = (
    "README.md",
    "examples/digits/README.md",
    "examples/linear/README.md",
    "examples/keywords/README.md",
    "examples/vibration/README.md",
    "examples/wakeword/README.md",
    "docs/activations.md",
    "docs/c-api.md",
    "docs/python-api.md",
    "docs/misra.md",
    "docs/update-schemes.md",
    "docs/checkpoint-format.md",
    "docs/external-kernels.md",
    "docs/cycles.md",
    "docs/equal-bytes.md",
    "docs/fitting.md",
    "docs/finetune.md",
    "docs/first-hour.md",
    "docs/export.md",
    "docs/int8.md",
    "docs/options.md",
    "docs/on-your-board.md",
    "docs/inference-only.md",
    "docs/one-conv.md",
    "docs/pt2e.md",
    "docs/tflite.md",
)
CROSS_GCC = "12.2"
"""Flash, stack and instruction figures in the pages were made with this version of arm-none-eabi-gcc."""
GAP = "..."

_BLOCKS = re.compile(
    r"(?P<open><!-- run -->\n```\w+\n)(?P<run>.*?)(?=^```)"
    r"|(?P<mark><!-- output: (?P<command>.*?) -->\n)(?P<output>.*?)(?=^<!-- /output -->)"
    r"|(?P<head><!-- file: (?P<path>.*?) -->\n```\w+\n)(?P<file>.*?)(?=^```)",
    re.DOTALL | re.MULTILINE,
)


@contextmanager
def sandbox() -> Generator[Path]:
    """A folder in which the pages' commands work: copies of examples/, scripts/ and testing/, and ../shared."""
    with tempfile.TemporaryDirectory(prefix="tinytrain-docs-") as name:
        place = Path(name) / "main"
        for folder in ("examples", "scripts", "testing"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("out", "__pycache__"))
        if SHARED.is_dir():
            (Path(name) / "shared").symlink_to(SHARED)
        yield place


def run(command: str, folder: Path, page: str = "") -> str:
    """Output and errors of a shell command that reads `page`, with this Python's programs first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    finished = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        input=page,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
    )
    return re.sub(r"^\[ *\d+%\] .*\n", "", finished.stdout, flags=re.MULTILINE)  # progress: a line per stage


@dataclass(frozen=True)
class Page:
    """A page's text, as it is and as its commands would have it now."""

    path: str
    old: str
    new: str

    def differences(self) -> list[str]:
        """Lines that no longer hold, volatile parts aside; empty where the page is true."""
        old, new = ([stable(line) for line in text.splitlines()] for text in (self.old, self.new))
        gone = [f"- {line}" for line in old if line not in new]
        return gone + [f"+ {line}" for line in new if line not in old]


def refresh(path: str, folder: Path, wanted: Callable[[str], bool] = lambda _marker: True) -> Page:
    """Run a page's commands in `folder`; returns it with their output. `wanted` may leave blocks out by their text."""
    old = (ROOT / path).read_text(encoding="utf-8")
    new, end = "", 0
    for match in _BLOCKS.finditer(old):
        new += old[end : match.start()]
        new += _renewed(match, folder, new) if wanted(match[0]) else match[0]
        end = match.end()
    return Page(path, old, new + old[end:])


def _renewed(match: re.Match[str], folder: Path, page: str) -> str:
    """A block with what its commands print or its file says now; `page` is the new page before it."""
    if match["open"]:
        return match["open"] + _rerun(match["run"], folder)
    if match["mark"]:
        return match["mark"] + _kept(match["output"], run(match["command"], folder, page))
    source = folder / match["path"] if match["path"].startswith("out/") else ROOT / match["path"]
    return match["head"] + _excerpt(match["file"], source.read_text(encoding="utf-8"))


def _rerun(block: str, folder: Path) -> str:
    """A console block with every output made again."""
    pieces = re.split(r"^(\$ (?:.*\\\n)*.*\n)", block, flags=re.MULTILINE)
    result = pieces[0]
    for command, shown in zip(pieces[1::2], pieces[2::2], strict=True):
        result += command + _kept(shown, run(command.removeprefix("$ "), folder))
    return result


def _kept(shown: str, output: str) -> str:
    """The new output, cut like the old one; the old one itself where only volatile parts changed."""
    lines = [without_digest(line.rstrip()) for line in output.rstrip("\n").splitlines()]
    old = shown.rstrip("\n").splitlines()
    if GAP in old:
        first = old.index(GAP)
        last = len(old) - first - 1
        lines = [*lines[:first], GAP, *(lines[-last:] if last else [])]
    ending = "\n" * (len(shown) - len(shown.rstrip("\n")) or 1)
    if [stable(line) for line in lines] == [stable(line) for line in old]:
        return shown
    return "\n".join(lines) + ending


def _excerpt(shown: str, text: str) -> str:
    """The pieces of a file that the page shows, found by their first and last lines."""
    lines, at, result = text.splitlines(), 0, list[str]()
    for number, piece in enumerate(shown.rstrip("\n").split(f"\n{GAP}\n")):
        wanted = piece.splitlines()
        start = _find(lines, wanted[0], at)
        end = _find(lines, wanted[-1], start) if len(wanted) > 1 else start
        result += [*([GAP] if number else []), *lines[start : end + 1]]
        at = end + 1
    return "\n".join(result) + "\n"


def _find(lines: list[str], wanted: str, start: int) -> int:
    for index in range(start, len(lines)):
        if lines[index] == wanted:
            return index
    raise ValueError(f"the file has no line {wanted!r} any more")


def without_digest(line: str) -> str:
    """Return a line as pages show it: a digest is over report.json too, and so of one machine and its tools."""
    return re.sub(r"\bsha256 [0-9a-f]{16}\b", "sha256 ...", line)


def stable(line: str) -> str:
    """A line without what differs between machines: times, rounding errors of numpy, other compilers' figures."""
    line = re.sub(r"\d+\.\d s\b", "* s", line)
    line = re.sub(r"max (\|err\||error) [0-9.e+-]+", r"max \1 *", line)
    line = re.sub(r"(largest difference to the board|differ by up to) [0-9.e+-]+", r"\1 *", line)
    if not same_compiler():
        line = re.sub(r"^(stack|flash) .*", r"\1 *", line)
        line = re.sub(r"\| [0-9,]+ B \| (?=[0-9,]+ \|)", "| * | ", line)
    return line.rstrip()


@cache
def same_compiler() -> bool:
    """Whether arm-none-eabi-gcc is the version that made the pages' figures."""
    program = shutil.which("arm-none-eabi-gcc")
    if program is None:
        return False
    found = subprocess.run([program, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return found.stdout.startswith(CROSS_GCC)
