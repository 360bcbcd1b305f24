"""Train Deeploy's seven training graphs as files and compare with their goldens. Exits 1 if one is not right.

    python -m benchmarks training-graphs [NAME ...]

Prints the table of docs/training-graphs.md. The generated C trains on the host, on the samples of `inputs.npz`; losses
and weights are compared with `outputs.npz`. Each compilation is verified on the host, too.
"""

from __future__ import annotations

import argparse

import tinytrain_compile as tt
from testing import deeploy
from tinytrain_compile.errors import CompileError


def row(name: str) -> tuple[bool, str]:
    """Return whether a fixture does what it should, and its row of the table."""
    try:
        known = deeploy.fixture(name)
        made = tt.compile(known.model, weights=known.given, lr=known.rate, batch=known.accumulate, verify="host")
    except CompileError as problem:
        return name in deeploy.REFUSED and "of the batch" in problem.what, f"| {name} | refused | | | {problem.what} |"
    with made.twin() as twin:
        found = known.judge(lambda x, y: list(twin.instance.train(*twin.as_slots(x, y))), twin.state_dict)
    verify = made.report["verify"]["result"]
    verdict = "meets" if found.meets else "MISSES"
    count = sum(array.size for array in known.first.values())
    said = f"{count:,} numbers, {known.accumulate} x {len(known.losses) // known.accumulate} samples; verify {verify}"
    figures = f"{found.losses:.1e} | {found.change:.1e} (`{found.tensor}`)"
    return found.meets and verify == "pass", f"| {name} | {verdict} | {figures} | {said} |"


def main() -> int:
    """Print a row for each fixture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*deeploy.TRAINED, *deeploy.REFUSED])
    if not deeploy.FOLDER.is_dir():
        print(f"{deeploy.FOLDER} is not here")
        return 1
    print("| fixture | | loss | weight change | remark |\n|---|---|---|---|---|")
    right = True
    for name in parser.parse_args().names:
        fine, line = row(name)
        right = right and fine
        print(line, flush=True)
    return int(not right)
