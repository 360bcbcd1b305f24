"""Compare the instructions of layers and whole steps on every target with the ledger; --write records them.

    python -m benchmarks instructions            # measure all and print the table
    python -m benchmarks instructions --write    # and record it in benchmarks/ledger.json
    python -m benchmarks instructions --short    # what CI compares: layers on three targets
    python -m benchmarks instructions --target cortex-m55 --write    # one target's rows, the others as they are

Instructions are those executed in QEMU: exact, for one version of GCC. Cycles are those of the target's model
(docs/cycles.md), where it has one: a table for the Cortex-M3, M4 and M33, llvm-mca for the M7. They are recorded beside
the instructions and not compared.
"""

from __future__ import annotations

import argparse
import json
import sys

from testing.cores import missing_tools
from testing.kernels.ledger import (
    LEDGER,
    SHORT_TARGETS,
    TARGETS,
    differences,
    gcc_version,
    layer_rows,
    merged,
    network_rows,
    recorded_ledger,
    table,
    version_skip,
)


def main() -> None:
    """Measure, print, compare or record; exit code 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--target", choices=TARGETS, help="measure (and record) only this one")
    flags = parser.parse_args()
    if not gcc_version():
        sys.exit(missing_tools())
    targets = (flags.target,) if flags.target else SHORT_TARGETS if flags.short else TARGETS
    rows = layer_rows(targets, cycles=not flags.short)
    if not flags.short:
        rows += network_rows(targets)
    print("\n".join(table(rows)))
    if flags.write:
        LEDGER.write_text(json.dumps(merged(rows), indent=1) + "\n", encoding="utf-8")
    elif version_skip():
        print(f"skipped: {version_skip()}")
    elif changed := differences(rows, recorded_ledger()["rows"]):
        sys.exit("\n".join(changed))
