"""make bench-streams: the arenas of the three networks with layers row by row, and whole.

Plans alone, in bytes, as the command line makes them for a Cortex-M7; with --count also the instructions of one step of
each network on three cores, in QEMU. Exits 1 where a network needs more than its bar.

usage: python -m benchmarks.streams [--count]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testing.places import SHARED
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pipeline import compile_model

NETWORKS = ("mcunet-5fps", "mbv2-w0.35", "proxyless-w0.3")
CORES = ("cortex-m7", "cortex-m0plus", "cortex-m55")
MOST_MORE = {"cortex-m7": 0.06, "cortex-m0plus": 0.06, "cortex-m55": 0.15}
"""Instructions of a step that rows may add, as a share of those without."""


@dataclass(frozen=True)
class Row:
    """A network under some options. bar: what `streamed` may be, or None. whole: the same without streams, or None."""

    what: str
    name: str
    streamed: int
    whole: int | None
    bar: int | None

    def __str__(self) -> str:
        whole = "" if self.whole is None else f"{self.whole:,}"
        met = "" if self.bar is None else f"{'met' if self.streamed <= self.bar else 'MISSED'}, bar {self.bar:,}"
        return f"{self.what:34} {self.name:15} {whole:>11} {self.streamed:>11,}   {met}"


def scheme(name: str) -> dict[str, Any]:
    """The scheme that trains 49 kB of an int8 network."""
    return {"quant": "int8", "update": str(SHARED / "schemes" / f"{name}-49kb.toml")}


def planned(name: str, **options: Any) -> tuple[int, int]:
    """(transient bytes, bytes of the arena) of a network with ten classes."""
    path = SHARED / "models" / f"{name}{'-qdq' if options['quant'] == 'int8' else ''}.onnx"
    summary = compile_model(CompileOptions(path, classes=10, dry_run=True, **options)).summary
    assert summary is not None
    return summary.plan.arena_bytes - summary.plan.persistent_bytes, summary.plan.arena_bytes


def rows(folder: Path) -> Iterator[Row]:
    """The table of docs/streams.md, from the top."""
    random = np.random.default_rng(0)
    samples = folder / "samples.npz"
    np.savez(samples, x=random.normal(size=(4, 3, 128, 128)).astype(np.float32), y=random.integers(0, 10, 4))
    for name in NETWORKS:
        whole, by_rows = (planned(name, stream=stream, **scheme(name)) for stream in ("off", "min"))
        yield Row("49 kB scheme, transient", name, by_rows[0], whole[0], 60_000)
        yield Row("49 kB scheme, arena", name, by_rows[1], whole[1], None)
    for name in NETWORKS:
        lines = planned(name, input_lines=True, calib=samples, **scheme(name))
        yield Row("49 kB scheme, lines, transient", name, lines[0], None, 48_000)
    common: dict[str, Any] = {"quant": "int8", "update": "bias"}
    for name in NETWORKS:
        whole, by_rows = (planned(name, stream=stream, **common) for stream in ("off", "min"))
        bar = 150_000 if name == NETWORKS[0] else None
        yield Row("biases of all layers, transient", name, by_rows[0], whole[0], bar)
    common = {"quant": "int8", "update": "all", "remat": "min"}
    for name in NETWORKS:
        whole, by_rows = (planned(name, stream=stream, **common) for stream in ("off", "min"))
        yield Row("full update, --remat min, transient", name, by_rows[0], whole[0], 200_000)
    common = {"quant": "fp32", "update": "head"}
    for name in NETWORKS:
        whole, by_rows = (planned(name, stream=stream, **common) for stream in ("off", "min"))
        yield Row("float32 head, arena", name, by_rows[1], whole[1], 262_144)


def counted(folder: Path) -> Iterator[tuple[str, bool]]:
    """Instructions of a step of the 49 kB schemes on three cores, and whether rows add no more than they may."""
    for core in CORES:
        for name in NETWORKS:
            found: list[int] = []
            for stream in ("off", "min"):
                path = SHARED / "models" / f"{name}-qdq.onnx"
                asked: dict[str, Any] = {**scheme(name), "stream": stream, "target": core, "count": True}
                summary = compile_model(CompileOptions(path, folder / "out", classes=10, force=True, **asked)).summary
                assert summary is not None and summary.verify.counts is not None
                found.append(sum(summary.verify.counts.step.values()))
            more = found[1] / found[0] - 1
            yield f"{core:14} {name:15} {found[0]:>13,} {found[1]:>13,}   {more:+.1%}", more <= MOST_MORE[core]


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        print(f"{'bytes':34} {'network':15} {'whole':>11} {'row by row':>11}")
        for row in rows(Path(name)):
            print(row, flush=True)
            missed += row.bar is not None and row.streamed > row.bar
        for text, met in counted(Path(name)) if "--count" in sys.argv[1:] else ():
            print(text if met else f"{text}   MISSED", flush=True)
            missed += not met
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
