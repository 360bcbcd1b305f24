"""Compare PROVEN BEST and bounds of `--update auto` with all schemes of 500 networks (an hour).

Each case is a small random network (convolutions, residuals, pools; float32 and int8) with a tight arena. The search
answers first. Then every scheme of more gain is planned as `--update scheme.toml` would plan it, until one fits.

* false: the report says PROVEN BEST, and a scheme of more gain fits.
* beyond: a scheme gains more than the report says that any can, and fits.
* better: a scheme of more gain fits, and the report does not exclude it.

The enumeration (testing/planning/all_schemes.py) reads the ONNX file. It shares with the search only the planner of
one given scheme. A scheme whose trained parameters and input alone are larger than the arena needs no plan.

usage: python -m benchmarks proven [--count N] [--first N] [--large] [--keep FILE]

--large: cases of 101 to 1,296 schemes. --keep: a file of JSON lines with all answers and plans; a further call
continues from there. Remove it after a change of the planner; remove its answers after a change of the search.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from testing.planning.all_schemes import LARGE_FIRST, Kept, Outcome, compared


def outcomes(numbers: Sequence[int], kept: Kept) -> Iterator[tuple[int, Outcome]]:
    """Compare these cases, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            yield number, compared(number, kept, Path(folder))


def main() -> int:
    """Print every case that is not the best, and the counts; 1 if a claim is false."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    first = given.first + (LARGE_FIRST if given.large else 0)
    kinds, total = Counter[str](), Counter[str]()
    for number, found in outcomes(range(first, first + given.count), Kept(given.keep)):
        kinds[found.kind] += 1
        total.update(cases=1, plans=found.plans, proven=bool(found.answer.get("proven")))
        total.update(
            claims="bound" in found.answer, quick=found.answer.get("quick", 0), full=found.answer.get("full", 0)
        )
        if found.kind != "best":
            said = f"gain {found.answer['gain']:.2f}, at most {found.answer.get('bound', math.nan):.2f}"
            print(f"# {number}: {found.kind}: {said}, better {found.better:.2f}", flush=True)
    print(json.dumps({**total, **kinds}))
    return int(kinds["FALSE"] + kinds["BEYOND"] > 0)
