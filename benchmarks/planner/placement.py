"""Place the eight MiniMalloc instances: heights, gaps and seconds.

Bytes and answers depend on the input only (counted work, fixed seed); seconds are what this machine took.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

from testing.places import SHARED
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.plan.place import cpsat
from tinytrain_compile.plan.place.placement import Decision, Packing, build_packing, greedy
from tinytrain_compile.plan.place.skyline import search

CAPACITY = 1 << 20
SKYLINE_UNITS, SOLVER_UNITS, SEED = 4.0, 20.0, 0
"""Deterministic time of one decision at capacity, per engine; of what misses it, bisection takes the former again."""


def load(path: Path) -> Packing:
    """An instance, compressed: sizes by their divisor, time to starts."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return build_packing(
        [Buffer(r["id"], "tensor", int(r["size"]), 0, int(r["lower"]), int(r["upper"]) - 1, ()) for r in rows]
    )


def check(packing: Packing, offsets: tuple[int, ...]) -> int:
    """The height of a placement; stops the script if two boxes that meet overlap."""
    for index, near in enumerate(packing.neighbours):
        low, high = offsets[index], offsets[index] + packing.boxes[index].size
        if low < 0 or any(low < offsets[i] + packing.boxes[i].size and offsets[i] < high for i in near):
            sys.exit(f"box {index} overlaps a neighbour")
    return max(offset + box.size for offset, box in zip(offsets, packing.boxes, strict=True))


def at_capacity(packing: Packing, limit: int) -> tuple[str, Decision]:
    """Which engine placed everything below the limit (or neither), and how."""
    found = search(packing, limit, SKYLINE_UNITS)
    if found.placement is not None:
        return "skyline", found
    return "CP-SAT", cpsat.decide(packing, limit, SOLVER_UNITS, SEED)


def lowest(packing: Packing, limit: int) -> tuple[int, ...]:
    """What greedy finds, pushed down towards the limit by bisection."""
    start = greedy(packing)[0]
    offsets, low, high = start.offsets, limit, start.height
    while high - low > 1:
        found = search(packing, (low + high) // 2, SKYLINE_UNITS / 2).placement
        if found is None:
            low = (low + high) // 2
        else:
            offsets, high = found.offsets, found.height
    return offsets


def main() -> None:
    """Print the table; without the instances, say so."""
    folder = SHARED / "benchmarks" / "minimalloc"
    if not folder.is_dir():
        print(f"skipped: no instances in {folder} (set TINYTRAIN_SHARED)")
        return
    print(f"{'instance':8} {'buffers':>7} {'bound B':>9} {'greedy B':>9} {'placed B':>9} {'gap':>6}  {'by':8} {'s':>5}")
    solved = 0
    files = sorted(folder.glob("*.csv"))
    for path in files:
        packing = load(path)
        limit, unit = CAPACITY // packing.unit_bytes, packing.unit_bytes
        begin = time.monotonic()
        engine, found = at_capacity(packing, limit)
        seconds = time.monotonic() - begin
        solved += found.placement is not None
        offsets = found.placement.offsets if found.placement is not None else lowest(packing, limit)
        height = check(packing, offsets)
        rows = f"{packing.bound * unit:9} {greedy(packing)[0].height * unit:9} {height * unit:9}"
        gap = f"{max(height - limit, 0) / limit:6.1%}"
        by = engine if found.placement is not None else "-"
        print(f"{path.name[0]:8} {len(packing.boxes):7} {rows} {gap}  {by:8} {seconds:5.1f}", flush=True)
    print(f"{solved} of {len(files)} at the capacity of {CAPACITY} B; gap: above it, all placements checked")
