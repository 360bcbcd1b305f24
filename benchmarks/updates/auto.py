"""Print what `--update auto` trains in how much memory, and compare it with other rules.

Plans alone, with int8 for the networks (ten classes) as the command line makes them for a Cortex-M7.

* sweep: arenas in steps (of two very deep networks one); what is chosen is planned in full, so it fits, or it is proven
  that nothing does.
* schemes: hand-made schemes, each at the arena that its own plan needs: `auto` must gain at least as much by the same
  table of gains, and reach at least three quarters as deep.
* published: two published rules, each of their schemes at the arena that it needs; `auto` must gain at least as much.
* run: what the sweep chose is compiled from its scheme file, so that the plan must be the same to the byte, and checked
  in QEMU, to the byte too.

usage: python -m benchmarks auto [--keep FILE] [sweep | schemes | published | run] [NETWORK ...]

--keep: a file of what is done; called again, it goes on from there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.record import Record
from benchmarks.updates.auto_cases import (
    ARENAS,
    DEEP,
    DENSE,
    DENSE_ARENAS,
    NETWORKS,
    SCHEMES,
    SMALL,
    TARGET,
    Case,
    Outcome,
    automatic,
    case_of,
    chosen,
)
from benchmarks.updates.published import against
from testing.places import SHARED


def sizes_of(name: str) -> Sequence[float]:
    """Arenas of a sweep in kilobytes."""
    if name in DENSE:
        return DENSE_ARENAS
    return SMALL[name][1] if name in SMALL else ARENAS


def schemes(name: str, record: Record) -> Iterator[tuple[str, bool]]:
    """Hand-made schemes against auto at their arenas, and whether auto is as good and as deep as it must be."""
    for kind in SCHEMES.get(name, ()):
        path = str(SHARED / "schemes" / f"{name}-{kind}.toml")
        hand = record.once((name, kind), partial(chosen, name, update=path))
        yield f"{name:15} {kind:>10} {hand.text}", True
        assert hand.point is not None
        size = hand.point.arena_bytes
        auto = automatic(name, size, record)
        met = auto.point is not None and auto.point.gain >= hand.point.gain
        deep = auto.point is not None and auto.point.depth >= DEEP * hand.point.depth
        yield f"{'':15} {'auto':>10} {auto.text}", met and deep


def sweep(name: str, record: Record) -> Iterator[tuple[str, bool]]:
    """Arenas in steps; missed where nothing was found, and that nothing fits is not proven."""
    for size in sizes_of(name):
        arena = int(size * 1024)
        found = automatic(name, arena, record)
        yield f"{name:15} {size:7} KB {found.text}", found.point is not None or found.impossible


def run(name: str, record: Record) -> Iterator[tuple[str, bool]]:
    """Schemes of the sweep but for DENSE, compiled from their files and run in QEMU beside the reference."""
    for size in () if name in DENSE else sizes_of(name):
        arena = int(size * 1024)
        found = automatic(name, arena, record)
        if found.point is not None:
            same = record.once((name, "run", str(arena)), partial(same_in_qemu, case_of(name), found, arena))
            yield (
                f"{name:15} {size:7} KB {found.point.arena_bytes:9,} B: {same or 'the same plan, QEMU equal'}",
                not same,
            )


def same_in_qemu(case: Case, found: Outcome, arena: int) -> str:
    """What is wrong with a scheme, compiled from its file: another plan, or other bytes in QEMU ("": nothing)."""
    assert found.point is not None
    with tempfile.TemporaryDirectory() as folder:
        scheme = Path(folder) / "update.toml"
        scheme.write_text(found.scheme)
        o, out = case.options, Path(folder) / "out"
        classes = [] if o.classes is None else ["--classes", str(o.classes)]
        command = [sys.executable, "-m", "tinytrain_compile", str(o.model), "--quant", o.quant, *classes]
        command += [
            "--target",
            TARGET,
            "--arena",
            str(arena),
            "--update",
            str(scheme),
            "--verify",
            "qemu",
            "-o",
            str(out),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1]}"
        report = json.loads((out / "report.json").read_text())
    size = report["memory"]["arena_bytes"]
    return "" if size == found.point.arena_bytes else f"{size:,} B from its file"


def published(name: str, record: Record) -> Iterator[tuple[str, bool]]:
    """Two published rules against auto."""
    return against(name, record) if name in NETWORKS else iter(())


PARTS = {"sweep": sweep, "schemes": schemes, "published": published, "run": run}


def main() -> int:
    """Print the tables; 1 if a row misses what it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="parts and networks; all of either if none is named")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    record, missed = Record(given.keep), 0
    parts = [part for part in given.what if part in PARTS] or list(PARTS)
    names = [name for name in given.what if name not in PARTS] or [*NETWORKS, *SMALL, *DENSE]
    print(f"{'network':15} {'--arena':>10} {'used':>9} {'gain':>8} {'at most':>8} lay. deep {'params':>9}  CPU s")
    for part in parts:
        print(f"# {part}", flush=True)
        for name in names:
            for text, met in PARTS[part](name, record):
                print(text if met else f"{text}   MISSED", flush=True)
                missed += not met
    return int(missed > 0)
