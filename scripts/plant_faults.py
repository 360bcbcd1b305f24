"""Plant faults in a copy of the tree, one by one, and report which of them `make test` finds.

    python scripts/plant_faults.py                        # all 32 faults of scripts/faults.toml: hours
    python scripts/plant_faults.py --keep faults.jsonl    # continues where an earlier run with this file stopped
    python scripts/plant_faults.py --only planner,streams
    python scripts/plant_faults.py --whole                # those that are missed: also by the tests of `make test-more`
    python scripts/plant_faults.py --hints before.jsonl   # first the test that found a fault then: minutes, not hours
    python scripts/plant_faults.py --check                # only say where each fault would be planted

For each fault the script runs the tests of `make test` (`pytest -x --tier fast`) and reports the first test that fails
and the CPU seconds until then. Without a fault the tests have to pass: the run begins with that (`--skip-clean` trusts
an earlier one). Exit code 1 if fewer than 30 in 32 are found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testing.places import ROOT, SHARED

FAULTS = ROOT / "scripts" / "faults.toml"
SOURCES = ("compiler", "runtime_c")
MOST_MISSED = 2 / 32  # the share of faults that `make test` may miss
CHAIN = ("e2e", "emit", "lower", "runtime_c")
"""Folders of tests that run generated code."""
PATIENCE = 3600  # wall seconds: a fault that makes a test hang is found too


@dataclass(frozen=True)
class Fault:
    """A text of the sources, and what stands there instead."""

    name: str
    mechanism: str
    old: str
    new: str


@dataclass(frozen=True)
class Found:
    """Result of one fault. tier: of the tests that found it, "" if none did; test: the first one that failed."""

    name: str
    tier: str
    test: str
    cpu_seconds: float


def read_faults(path: Path = FAULTS) -> list[Fault]:
    """Read the list of faults."""
    return [Fault(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]]


def place_of(fault: Fault, root: Path) -> Path:
    """Find the file that a fault is planted in; raise ValueError unless exactly one place has its text."""
    found = [path for path in _sources(root) for _ in range(_text(path).count(fault.old))]
    if len(found) != 1:
        places = ", ".join(str(path.relative_to(root)) for path in found) or "nowhere"
        raise ValueError(f"{fault.name}: its text should be in one place, is in: {places}")
    return found[0]


def _sources(root: Path) -> Iterator[Path]:
    for folder in SOURCES:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in (".py", ".j2", ".h", ".c"))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def copy_tree(folder: Path) -> Path:
    """Copy what git tracks, and lend the copy our environment and the folder of shared models."""
    tree = folder / "tree"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    (tree / ".venv").symlink_to((ROOT / ".venv").resolve())
    if SHARED.is_dir():
        (folder / "shared").symlink_to(SHARED.resolve())
    return tree


def nearest(place: Path) -> str:
    """Name the folders of tests to begin with: those that mirror a source's, then those that run generated code.

    That changes when a fault is found, not whether it is.
    """
    names = place.parts[2:-1][:1] if place.parts[0] == "compiler" else ("runtime_c", "lower")
    return ",".join(dict.fromkeys((*names, *CHAIN)))


def run_tests(tree: Path, tier: str, jobs: int, *, first: str = "", only: str = "") -> tuple[str, float]:
    """Run a tier of tests until one fails: ("" or the name of that test, CPU seconds).

    first: folders to begin with. only: the one test to run; it is not found if it is not of this tier.
    """
    command = [str(tree / ".venv/bin/python"), "-m", "pytest", "-x", "-q", "--tier", tier, "--first", first]
    command += ["-n", str(jobs), *filter(None, [only])]
    path = os.pathsep.join([str(tree / "compiler"), str(tree)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    before = _child_seconds()
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"(nothing within {PATIENCE} s)", _child_seconds() - before
    seconds = _child_seconds() - before
    if process.returncode == 0:
        return "", seconds
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", said, re.MULTILINE)
    return failed.group(1) if failed else "(" + said.strip().rsplit("\n", 1)[-1][:150] + ")", seconds


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def try_fault(fault: Fault, tree: Path, jobs: int, whole: bool, near_first: bool, hint: str) -> Found:
    """Plant a fault, run the tests, take the fault out again. hint: the test to begin with, or ""."""
    path = place_of(fault, tree)
    right = _text(path)
    path.write_text(right.replace(fault.old, fault.new), encoding="utf-8")
    try:
        if hint:
            test, seconds = run_tests(tree, "fast", 0, only=hint)
            if test == hint:
                return Found(fault.name, "fast", hint, round(seconds, 1))
        test, seconds = run_tests(tree, "fast", jobs, first=nearest(path.relative_to(tree)) if near_first else "")
        found = Found(fault.name, "fast" if test else "", test, round(seconds, 1))
        if whole and not test:
            test, seconds = run_tests(tree, "more", jobs)
            found = replace(found, tier="more" if test else "", test=test, cpu_seconds=round(seconds, 1))
        return found
    finally:
        path.write_text(right, encoding="utf-8")


def kept(path: Path | None, faults: list[Fault], whole: bool) -> dict[str, Found]:
    """Read what an earlier run found; a missed fault is tried again if now all tests are to try."""
    if path is None or not path.is_file():
        return {}
    found = [Found(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {fault.name for fault in faults}
    return {one.name: one for one in found if one.name in names and (one.tier or not whole)}


def main() -> None:
    """Print a line per fault and the number that was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="faults whose name or mechanism contains one of these words, joined by commas")
    parser.add_argument("--keep", type=Path, help="file of results, continued by the next run")
    parser.add_argument("--whole", action="store_true", help="try the other tests too if `make test` misses a fault")
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest (default: 2)")
    parser.add_argument("--near", action="store_true", help="begin with the tests of the folder that a fault is in")
    parser.add_argument("--hints", type=Path, help="file of results of an earlier run: begin with the tests in it")
    parser.add_argument("--skip-clean", action="store_true", help="do not run the tests without a fault first")
    parser.add_argument("--check", action="store_true", help="only say where each fault would be planted")
    flags = parser.parse_args()
    words = flags.only.split(",") if flags.only else [""]
    faults = [fault for fault in read_faults() if any(word in f"{fault.name} {fault.mechanism}" for word in words)]
    for fault in faults:
        place = place_of(fault, ROOT).relative_to(ROOT)
        if flags.check:
            print(f"{fault.mechanism:28} {place}  {fault.name}")
    if flags.check:
        return
    known = kept(flags.keep, faults, flags.whole)
    hints = {name: one.test for name, one in kept(flags.hints, faults, False).items()}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = copy_tree(Path(folder))
        if not flags.skip_clean:
            test, seconds = run_tests(tree, "fast", flags.jobs)
            print(f"without a fault: {test or 'all tests pass'}, {seconds:.0f} CPU seconds", flush=True)
            if test:
                sys.exit(2)
        for fault in faults:
            begun = time.monotonic()
            found = known.get(fault.name)
            if found is None:
                found = known[fault.name] = try_fault(
                    fault, tree, flags.jobs, flags.whole, flags.near, hints.get(fault.name, "")
                )
                if flags.keep:
                    with flags.keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(found)) + "\n")
            said = {"fast": "found", "more": "found by the other tests", "": "MISSED"}[found.tier]
            wall = time.monotonic() - begun
            print(
                f"{fault.mechanism:28} {said:8} {found.cpu_seconds:6.0f} CPU s {wall:6.0f} s  {found.test}", flush=True
            )
    quick = sum(known[fault.name].tier == "fast" for fault in faults)
    print(f"{quick} of {len(faults)} faults found by `make test`")
    sys.exit(0 if len(faults) - quick <= MOST_MISSED * len(faults) else 1)


if __name__ == "__main__":
    main()
