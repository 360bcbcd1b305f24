"""Integer kernels on many random shapes against their references (`make fuzz`).

On the host under AddressSanitizer and UndefinedBehaviorSanitizer, every operand in a block of its exact size; then on
three boards in QEMU.

    python benchmarks/fuzz_kernels.py --cases 200

Cases are numbered: the same number is the same case in every run, and the first ones are those of the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.lower.sanitised import VECTORS as FEATURES
from tests.lower.sanitised import run_sanitised
from tests.lower.test_boards import BOARDS, OPS, check_on_board, fuzz_cases
from tests.ops.case_vectors import VECTORS, vector_cases

from benchmarks.board import measure

CHUNK = 10
"""Cases of every op in one image."""


def fuzz_vectors(wanted: int) -> int:
    """Cases that have kernels on vectors; how many ran."""
    done = 0
    for first in range(0, wanted, CHUNK):
        cases = [case for op in VECTORS for case in vector_cases(op, min(CHUNK, wanted - first), first)]
        with tempfile.TemporaryDirectory() as folder:
            run_sanitised(cases, Path(folder), features=FEATURES)
        for case, found in zip(cases, measure(cases, "cortex-m55"), strict=True):
            if not found.equal:
                raise AssertionError(f"cortex-m55: {case}")
        done += len(cases)
    return done


def main() -> None:
    """Run until all agree or the first differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="of every operator, on every board")
    wanted = parser.parse_args().cases
    done = 0
    for first in range(0, wanted, CHUNK):
        cases = fuzz_cases(min(CHUNK, wanted - first), first)
        with tempfile.TemporaryDirectory() as folder:
            run_sanitised(cases, Path(folder))
        done += len(cases)
    print(f"host, sanitised: {done} kernels, 0 differences, no access outside", flush=True)
    print(
        f"{fuzz_vectors(wanted)} kernels on vectors, on the host, sanitised, and on a Cortex-M55: 0 differences",
        flush=True,
    )
    for target in BOARDS:
        done = 0
        for first in range(0, wanted, CHUNK):
            done += check_on_board(target, min(CHUNK, wanted - first), first)
        print(f"{target}: {done} kernels ({', '.join(OPS)}), 0 differences", flush=True)


if __name__ == "__main__":
    main()
