"""Run integer kernels on random shapes against their references: host under ASan and UBSan, six boards.

On the host under AddressSanitizer and UndefinedBehaviorSanitizer, every operand in a block of its exact size; then on
six boards in QEMU. Kernels of a few rows: calls of 1 and 3 rows on the host, of 2 on the boards, out of a ring buffer.

    python -m benchmarks fuzz --cases 200
    python -m benchmarks fuzz --cases 200 --ops QConv QConvGradInput
    python -m benchmarks fuzz --floats --ops Softmax     # float32: rounded apart, and fused
    python -m benchmarks fuzz --keep done.jsonl --jobs 1       # again after an end: goes on where it was,
                                                                       # unless kernels or cases have changed since

Cases are numbered: the same number is the same case in every run, and the first ones are those of the tests.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

from testing.cores import NAMES, RISCV, missing_tools
from testing.cores import VECTORS as VECTOR_CORES
from testing.kernels.boards import measure
from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.float_fuzz import FLOATS, check_floats_on_board, check_floats_on_host
from testing.kernels.fuzz import INTEGERS, POOLS, check_on_board, check_rows_on_board, fuzz_cases, row_cases
from testing.kernels.sanitised import LARGE_TILES, SCALAR, run_sanitised
from testing.kernels.sanitised import VECTORS as FEATURES
from testing.ops.case_tiles import TILED, tiled_cases
from testing.ops.case_vectors import VECTORS, vector_cases
from testing.places import ROOT

MOST, KERNELS = 50, 400
"""Cases of an operator, and kernels, in one image."""
TASKS = 20
"""Images of a process, which then gives back its memory."""
ALL = (*INTEGERS, *POOLS)
"""Every operator whose results are integers."""
NAMED = tuple(dict.fromkeys((*ALL, *FLOATS)))
SOURCES = (("runtime_c", "h"), ("compiler", "py"), ("testing", "py"), ("targets", "toml"))
"""Folder, and how names of files in it end."""


def check_on_host(count: int, first: int, ops: Sequence[str] = ALL) -> int:
    """Cases `first` to `first + count` of every op; how many kernels ran."""
    cases = fuzz_cases(count, first, ops)
    with tempfile.TemporaryDirectory() as folder:
        run_sanitised(cases, Path(folder))
    return len(cases)


def check_vectors(count: int, first: int, ops: Sequence[str] = ALL) -> int:
    """The same of cases that have kernels on vectors, on the host and on a board."""
    cases = [case for op in VECTORS if op.split()[0] in ops for case in vector_cases(op, count, first)]
    if not cases:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run_sanitised(cases, Path(folder), context=FEATURES)
    for target in VECTOR_CORES:
        for case, found in zip(cases, measure(cases, target), strict=True):
            if not found.equal:
                raise AssertionError(f"{target}: {case}")
    return len(cases)


def check_tiles(count: int, first: int, ops: Sequence[str] = ALL) -> int:
    """Compare cases with tiles of four by four: on the host, and on RISC-V if its tools are installed."""
    cases = [case for op in TILED if op in ops for case in tiled_cases(op, count, first)]
    if not cases:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run_sanitised(cases, Path(folder), context=LARGE_TILES)
    for target in (core.name for core in RISCV if not missing_tools(core)):
        for case, found in zip(cases, measure(cases, target), strict=True):
            if not found.equal:
                raise AssertionError(f"{target}: {case}")
    return len(cases)


def check_rows(count: int, first: int, ops: Sequence[str] = ALL) -> int:
    """Kernels of a few rows on the host, scalar and on vectors."""
    done = 0
    for context, step in itertools.product((SCALAR, FEATURES), (1, 3)):
        cases = row_cases(count, first, context, ops)
        if not cases:
            continue
        with tempfile.TemporaryDirectory() as folder:
            run_sanitised(cases, Path(folder), context=context, make=partial(by_row_blocks, step=step, ring=True))
        done += len(cases)
    return done


def float_checks_of(chosen: Sequence[str]) -> dict[str, Callable[[int, int], int]]:
    """Return the checks of float32 operators by their names."""
    ops = tuple(op for op in chosen if op in FLOATS)
    on_boards = {f"floats, {target}": partial(check_floats_on_board, target, ops=ops) for target in NAMES}
    return {"floats, host, sanitised": partial(check_floats_on_host, ops=ops), **on_boards}


def checks_of(chosen: Sequence[str]) -> dict[str, Callable[[int, int], int]]:
    """Every check by its name: how many kernels ran of so many cases, from a first one on; raises where one differs."""
    ops = tuple(op for op in chosen if op in ALL)
    checks: dict[str, Callable[[int, int], int]] = {
        "host, sanitised": partial(check_on_host, ops=ops),
        f"vectors, host, sanitised, and {', '.join(VECTOR_CORES)}": partial(check_vectors, ops=chosen),
        f"large tiles, host, sanitised, and {', '.join(core.name for core in RISCV)}": partial(check_tiles, ops=ops),
        "a few rows, host, sanitised": partial(check_rows, ops=ops),
    }
    for target in NAMES:
        checks[target] = partial(check_on_board, target, ops=ops)
        checks[f"a few rows, {target}"] = partial(check_rows_on_board, target, ops=ops)
    return checks


def sources() -> str:
    """A digest of all that kernels, their references and their cases are made of."""
    digest = sha256()
    for folder, ending in SOURCES:
        for path in sorted((ROOT / folder).rglob(f"*.{ending}")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class Done:
    """How many kernels ran, by check and first case; kept in a file of JSON lines, if there is one."""

    def __init__(self, path: Path | None, chosen: Sequence[str]) -> None:
        self._path, self._ops, self._sources = path, list(chosen), sources()
        self.kernels = dict[tuple[str, int, int], int]()
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        for line in map(json.loads, lines):
            if line["ops"] == self._ops and line.get("sources") == self._sources:
                self.kernels[line["check"], line["count"], line["first"]] = line["kernels"]

    def add(self, key: tuple[str, int, int], kernels: int) -> None:
        """A chunk in which nothing differed."""
        self.kernels[key] = kernels
        if self._path is not None:
            check, count, first = key
            line = {"ops": self._ops, "check": check, "count": count, "first": first, "kernels": kernels}
            line["sources"] = self._sources
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def run(checks: dict[str, Callable[[int, int], int]], wanted: int, chunk: int, done: Done, jobs: int) -> None:
    """All cases, `chunk` of every check in turn."""
    chunks = [(first, min(chunk, wanted - first)) for first in range(0, wanted, chunk)]
    keys = [(name, count, first) for first, count in chunks for name in checks]
    rest = [key for key in keys if key not in done.kernels]
    work = [(checks[name], count, first) for name, count, first in rest]
    with get_context("spawn").Pool(jobs, maxtasksperchild=TASKS) as pool:
        for key, kernels in zip(rest, pool.imap(_checked, work), strict=True):
            done.add(key, kernels)
            name, count, first = key
            print(f"cases {first} to {first + count - 1}: {kernels} kernels, 0 differences: {name}", flush=True)
    for name in checks:
        print(f"{name}: {sum(done.kernels[key] for key in keys if key[0] == name)} kernels, 0 differences", flush=True)


def _checked(work: tuple[Callable[[int, int], int], int, int]) -> int:
    check, count, first = work
    return check(count, first)


def main() -> None:
    """Run until all agree or the first differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="of every operator, on every board")
    parser.add_argument("--ops", nargs="+", choices=NAMED, default=NAMED, metavar="OP", help="only these operators")
    parser.add_argument("--floats", action="store_true", help="operators in float32, instead of those of integers")
    parser.add_argument("--keep", type=Path, help="file of what is done, and is not done again")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    flags = parser.parse_args()
    print(f"operators: {', '.join(flags.ops)}", flush=True)
    checks = float_checks_of(flags.ops) if flags.floats else checks_of(flags.ops)
    chunk = max(1, min(MOST, KERNELS // len(flags.ops)))
    run(checks, flags.cases, chunk, Done(flags.keep, flags.ops), flags.jobs)
