"""Integer kernels on many random shapes against their references (`make fuzz`).

On the host under AddressSanitizer and UndefinedBehaviorSanitizer, every operand in a block of its exact size; then on
six boards in QEMU. Kernels of a few rows: calls of 1 and 3 rows on the host, of 2 on the boards, out of a ring buffer.

    python benchmarks/fuzz_kernels.py --cases 200
    python benchmarks/fuzz_kernels.py --cases 200 --ops QConv QConvGradInput

Cases are numbered: the same number is the same case in every run, and the first ones are those of the tests.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testing.boards import measure
from testing.by_row_blocks import by_row_blocks
from testing.fuzz import OPS, check_on_board, check_rows_on_board, fuzz_cases, row_cases
from testing.ops.case_vectors import VECTORS, vector_cases
from testing.sanitised import SCALAR, run_sanitised
from testing.sanitised import VECTORS as FEATURES

CHUNK = 10
"""Cases of every op in one image."""
ALL = (*OPS, "Quantize", "QuantizeError", "QBiasSum", "QWeightApplyFine", "QMomentum", "QBiasGradient")
CHOICES = (*ALL, *(op for op in VECTORS if op not in ALL))
"""Some have random cases of kernels on vectors alone."""
TARGETS = ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
WORKERS = 2


def check_on_host(count: int, first: int, ops: Sequence[str] = ALL) -> int:
    """Cases `first` to `first + count` of every op; how many kernels ran."""
    cases = fuzz_cases(count, first, ops)
    with tempfile.TemporaryDirectory() as folder:
        run_sanitised(cases, Path(folder))
    return len(cases)


def check_vectors(count: int, first: int, ops: Sequence[str] = ALL) -> int:
    """The same of cases that have kernels on vectors, on the host and on a board."""
    cases = [case for op in VECTORS if op in ops for case in vector_cases(op, count, first)]
    if not cases:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run_sanitised(cases, Path(folder), context=FEATURES)
    for case, found in zip(cases, measure(cases, "cortex-m55"), strict=True):
        if not found.equal:
            raise AssertionError(f"cortex-m55: {case}")
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


def in_chunks(check: Callable[[int, int], int], wanted: int) -> int:
    """All cases, in processes that end after every chunk and so give back its memory; how many kernels ran."""
    firsts = range(0, wanted, CHUNK)
    counts = [min(CHUNK, wanted - first) for first in firsts]
    with ProcessPoolExecutor(WORKERS, max_tasks_per_child=1) as pool:
        return sum(pool.map(check, counts, firsts))


def main() -> None:
    """Run until all agree or the first differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="of every operator, on every board")
    parser.add_argument("--ops", nargs="+", choices=CHOICES, default=CHOICES, help="only these operators")
    flags = parser.parse_args()
    wanted, chosen = flags.cases, tuple(flags.ops)
    ops = tuple(op for op in chosen if op in ALL)
    done = in_chunks(partial(check_on_host, ops=ops), wanted)
    print(f"host, sanitised: {done} kernels, 0 differences, no access outside", flush=True)
    done = in_chunks(partial(check_vectors, ops=chosen), wanted)
    print(f"host, sanitised, and cortex-m55: {done} kernels on vectors, 0 differences", flush=True)
    done = in_chunks(partial(check_rows, ops=ops), wanted)
    print(f"host, sanitised: {done} kernels of a few rows, 0 differences, no access outside", flush=True)
    print(f"operators: {', '.join(chosen)}", flush=True)
    for target in TARGETS:
        done = in_chunks(partial(check_on_board, target, ops=ops), wanted)
        rows = in_chunks(partial(check_rows_on_board, target, ops=ops), wanted)
        print(f"{target}: {done} kernels and {rows} of a few rows, 0 differences", flush=True)


if __name__ == "__main__":
    main()
