"""The campaign against the compiler (`make campaign`): mutated files, random training graphs, damaged checkpoints.

    python -m tests.campaign --kind models,graphs --count 200 --seed 3 --jobs 2

Every case is a run of the command that must end in success or in one documented error line, with the right exit code,
in 60 CPU seconds and 2 GB, with nothing left behind. Cases are numbered: the same seed and number are the same case.
Files and command of those that fail are kept in --keep. Exit code 1 if any does.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from tests.campaign.cases import Result
from tests.campaign.kinds import KINDS
from tests.campaign.pool import run_cases
from tests.campaign.tally import Tally

EVERY = 2000
"""Cases after which a line says how far it is."""
SHOWN = 400
"""Characters of a failure that are printed; all of it is kept."""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="", help=f"beginnings of names, by default all of: {', '.join(KINDS)}")
    parser.add_argument("--count", type=int, help="cases of each kind, by default those of a whole campaign")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--keep", type=Path, default=Path("out/campaign"), help="folder for cases that fail")
    asked = parser.parse_args()
    begins = tuple(part.strip() for part in asked.kind.split(",") if part.strip()) or ("",)
    chosen = {name: kind for name, kind in KINDS.items() if name.startswith(begins)}
    if not chosen:
        parser.error(f"no kind begins with {asked.kind!r}")
    wanted = [
        (name, asked.first + index)
        for name, kind in chosen.items()
        for index in range(kind.count if asked.count is None else asked.count)
    ]
    tally, start = Tally(KINDS), time.monotonic()

    def report(result: Result) -> None:
        tally.add(result)
        if tally.count % EVERY == 0:
            print(f"{tally.count:,} of {len(wanted):,} cases, {time.monotonic() - start:.0f} s", file=sys.stderr)
        if result.problem:
            place = _keep(result, asked.seed, asked.keep.resolve())
            if tally.is_new(result):
                print(f"FAILED {result.kind} {result.index}, see {place}: {result.problem[:SHOWN]}", flush=True)

    try:
        run_cases(chosen, wanted, asked.seed, asked.jobs, report)
    except KeyboardInterrupt:
        print("interrupted: what was done until then", file=sys.stderr)
    print("\n".join(tally.lines()))
    print(f"\n{tally.count:,} of {len(wanted):,} cases of seed {asked.seed} in {time.monotonic() - start:.0f} s")
    problems = tally.problems()
    if tally.count < len(wanted):
        problems.append("not all cases ran")
    print("\n".join(problems) or "0 failures")
    return int(bool(problems))


def _keep(result: Result, seed: int, folder: Path) -> Path:
    """The files of a case, its command, and what was wrong; returns where they are."""
    place = folder / f"{result.kind.replace(': ', '-').replace(' ', '-')}-{seed}-{result.index}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    here = Path.cwd()
    os.chdir(place)
    try:
        case = KINDS[result.kind].case(seed, result.index, place)
        command = shlex.join((case.program, *case.arguments))
    except Exception as wrong:
        command = f"the case could not be made: {type(wrong).__name__}: {wrong}"
    finally:
        os.chdir(here)
    again = f'make campaign KIND="{result.kind}" SEED={seed} FIRST={result.index} COUNT=1'
    (place / "case.txt").write_text(f"{command}\n{again}\n{result.problem}\n", errors="backslashreplace")
    return place


if __name__ == "__main__":
    sys.exit(main())
