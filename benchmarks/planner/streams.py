"""Print the arenas of the three networks row by row and whole, with bars.

Plans alone, in bytes, as the command line makes them for a Cortex-M7. Other tables in place of it: with --count the
instructions of one step of each network on three cores, in QEMU; with --verify every row is trained in QEMU, and has to
give the bytes of the reference, which knows nothing of streams; with --stack the arena and the stack of the 49 kB
schemes together; with --plans the CPU time of their plans, each in a process of its own; with --layers single layers,
in calls of one row each against the whole map, in QEMU. Exits 1 where a network needs more than its bar, or differs;
seconds are no gate (tests/plan/test_stream_search.py counts the work).

usage: python -m benchmarks streams [--count] [--verify] [--stack] [--plans] [--layers] [--only WORDS] [--keep FILE]

--only: lines whose names have these words ("cortex-m7", "mcunet-5fps", "biases"). --keep: a file of the lines that are
done; called again, it goes on from there.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, Literal

import numpy as np

from benchmarks.record import Record
from testing.kernels.boards import measure
from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.layers import STREAMED
from testing.places import SHARED
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

NETWORKS = ("mcunet-5fps", "mbv2-w0.35", "proxyless-w0.3")
CORES = ("cortex-m7", "cortex-m0plus", "cortex-m55")
MOST_MORE = {"cortex-m7": 0.06, "cortex-m0plus": 0.06, "cortex-m55": 0.15}
"""Instructions of a step that rows may add, as a share of those without."""


STEPS = 10
"""Training steps after which reference, host and board have to have the same bytes."""
LINES_BAR = 48_000
RAM_BAR = 106_000
"""Arena and stack of the 49 kB schemes."""
PLAN_BAR = 2
"""CPU time of a plan with streams, by that of one without."""
Stream = Literal["off", "auto"]
Line = tuple[tuple[str, ...], Callable[[], tuple[str, bool]]]
"""The name of a line of a table, and what makes it: (its text, whether its bar is met)."""


@dataclass(frozen=True)
class Row:
    """A network under some options. bar: transient bytes that it may take, or bytes of the whole arena; None: no bar.

    compared: whether the same without streams is shown beside it.
    """

    what: str
    name: str
    options: dict[str, Any]
    bar: int | None = None
    arena: bool = False
    compared: bool = True

    @property
    def path(self) -> Path:
        """The model file."""
        return SHARED / "models" / f"{self.name}{'-qdq' if self.options['quant'] == 'int8' else ''}.onnx"

    def planned(self, **changes: Any) -> tuple[int, int]:
        """(transient bytes, bytes of the arena) with ten classes."""
        options = {**self.options, **changes}
        summary = compile_model(CompileOptions(self.path, classes=10, dry_run=True, **options)).summary
        assert summary is not None
        return summary.plan.arena_bytes - summary.plan.persistent_bytes, summary.plan.arena_bytes

    def compared_text(self) -> tuple[str, bool]:
        """(the line of the table, whether the bar is met)."""
        found, whole = self.planned()[self.arena], ""
        if self.compared:
            whole = f"{self.planned(stream='off')[self.arena]:,}"
        met = self.bar is None or found <= self.bar
        said = "" if self.bar is None else f"   {'met, ' if met else ''}bar {self.bar:,}"
        return f"{self.what:36} {self.name:15} {whole:>11} {found:>11,}{said}", met

    def verified(self, folder: Path) -> tuple[str, bool]:
        """(result of the generated C after some steps: reference, host and board, in words; whether it passes)."""
        asked: dict[str, Any] = {**self.options, "verify": "qemu", "verify_steps": STEPS}
        summary = compile_model(CompileOptions(self.path, out=folder / "out", classes=10, force=True, **asked)).summary
        assert summary is not None
        result = summary.verify.result
        return f"{self.what:36} {self.name:15} {STEPS} steps in QEMU: {result}", result == "pass"


def scheme(name: str) -> dict[str, Any]:
    """The scheme that trains 49 kB of an int8 network."""
    return {"quant": "int8", "update": str(SHARED / "schemes" / f"{name}-49kb.toml")}


def rows(folder: Path) -> Iterator[Row]:
    """The tables of docs/results-memory.md, from the top."""
    lines: dict[str, Any] = {"input_lines": True, "calib": samples(folder)}
    for name in NETWORKS:
        by_rows = {**scheme(name), "stream": "min"}
        yield Row("49 kB scheme, transient", name, by_rows, 60_000)
        yield Row("49 kB scheme, arena", name, by_rows, arena=True)
    for name in NETWORKS:
        yield Row("49 kB scheme, lines, transient", name, {**scheme(name), **lines}, LINES_BAR, compared=False)
    biases: dict[str, Any] = {"quant": "int8", "update": "bias", "stream": "min"}
    for name in NETWORKS:
        yield Row("biases of all layers, transient", name, biases, 150_000 if name == NETWORKS[0] else None)
    for name in NETWORKS:
        twice = {**biases, "remat": "min"}
        yield Row(
            "biases, --remat min, transient", name, twice, 115_000 if name == NETWORKS[0] else None, compared=False
        )
    for name in NETWORKS:
        yield Row("biases, --batch 8, transient", name, {**biases, "batch": 8})
    full: dict[str, Any] = {"quant": "int8", "update": "all", "remat": "min", "stream": "min"}
    for name in NETWORKS:
        yield Row("full update, --remat min, transient", name, full, 200_000)
    head: dict[str, Any] = {"quant": "fp32", "update": "head", "stream": "min"}
    for name in NETWORKS:
        yield Row("float32 head, arena", name, head, 262_144, arena=True)


def samples(folder: Path) -> Path:
    """Labelled samples for --calib."""
    random, path = np.random.default_rng(0), folder / "samples.npz"
    np.savez(path, x=random.normal(size=(4, 3, 128, 128)).astype(np.float32), y=random.integers(0, 10, 4))
    return path


def steps_of(row: Row, folder: Path, core: str, **changes: Any) -> int:
    """Instructions of a step on a core."""
    asked: dict[str, Any] = {**row.options, **changes, "target": core, "count": True, "verify_steps": 2}
    summary = compile_model(CompileOptions(row.path, out=folder / "out", classes=10, force=True, **asked)).summary
    assert summary is not None and summary.verify.counts is not None
    return sum(summary.verify.counts.step.values())


def counted(folder: Path, record: Record) -> Iterator[Line]:
    """Instructions of a step of the 49 kB schemes on three cores, and whether rows add no more than they may: with the
    smallest arena, and with lines in an arena that keeps to their bar."""
    for core in CORES:
        for name in NETWORKS:
            for way in ("--stream min", "lines"):
                yield (core, name, way), partial(_more, folder, record, core, name, way)


def _more(folder: Path, record: Record, core: str, name: str, way: str) -> tuple[str, bool]:
    """A line of that table."""
    row, options = Row("", name, scheme(name)), {"stream": "min"}
    if way == "lines":
        transient, arena = row.planned(stream="min")
        options = {"input_lines": True, "calib": samples(folder), "arena_bytes": arena - transient + LINES_BAR}
    whole = record.once(("whole", core, name), partial(steps_of, row, folder, core, stream="off"))
    found = steps_of(row, folder, core, **options)
    more = found / whole - 1
    return f"{core:14} {name:15} {way:13} {whole:>13,} {found:>13,}   {more:+.1%}", more <= MOST_MORE[core]


def compared(folder: Path, _record: Record) -> Iterator[Line]:
    """The table of bytes: whole, and row by row."""
    yield from (((row.what, row.name), row.compared_text) for row in rows(folder))


def verified(folder: Path, _record: Record) -> Iterator[Line]:
    """Every plan of that table, trained in QEMU."""
    for row in rows(folder):
        if not (row.arena and row.options["quant"] == "int8"):
            yield (row.what, row.name), partial(row.verified, folder)


def stacked(folder: Path, _record: Record) -> Iterator[Line]:
    """Arena and static stack bound of the 49 kB schemes in bytes."""
    yield from ((("49 kB scheme, arena + stack", name), partial(_stack, folder, name)) for name in NETWORKS)


def _stack(folder: Path, name: str) -> tuple[str, bool]:
    """A line of that table."""
    row = Row("49 kB scheme, arena + stack", name, {**scheme(name), "stream": "min"})
    summary = compile_model(CompileOptions(row.path, out=folder / "out", classes=10, force=True, **row.options)).summary
    assert summary is not None and summary.verify.stack_bytes is not None
    arena, stack = summary.plan.arena_bytes, summary.verify.stack_bytes
    found = arena + stack
    return f"{row.what:36} {name:15} {arena:,} + {stack:,} = {found:,}, bar {RAM_BAR:,}", found <= RAM_BAR


def layers(_folder: Path, _record: Record) -> Iterator[Line]:
    """Instructions of layers by the kernel of the whole map and by calls of one row; and whether both are exact."""
    yield from (((core,), partial(_layers_on, core)) for core in CORES)


def _layers_on(core: str) -> tuple[str, bool]:
    """The lines of a core."""
    cases, lines, exact = [layer.case() for layer in STREAMED], list[str](), True
    by_rows = measure(cases, core, make=partial(by_row_blocks, step=1))
    for layer, whole, found in zip(STREAMED, measure(cases, core), by_rows, strict=True):
        more = found.instructions / whole.instructions - 1
        lines.append(f"{core:14} {layer.name:48} {whole.instructions:>11,} {found.instructions:>11,}   {more:+.0%}")
        exact &= whole.equal and found.equal
    return "\n".join(lines), exact


def planning(_folder: Path, _record: Record) -> Iterator[Line]:
    """CPU seconds of plans of the 49 kB schemes without streams and with them."""
    yield from ((("CPU seconds", name), partial(_seconds, name)) for name in NETWORKS)


def _seconds(name: str) -> tuple[str, bool]:
    """A line of that table."""
    whole, by_rows = (_alone(name, stream) for stream in ("off", "auto"))
    met = "met" if by_rows <= PLAN_BAR * whole else "MISSED"
    times = f"{whole:.2f} -> {by_rows:.2f}, {by_rows / whole:.2f} times"
    return f"{'CPU seconds of a plan, by rows':36} {name:15} {times}   {met}, bar {PLAN_BAR}", True


def _alone(name: str, stream: Stream) -> float:
    """`plan_seconds` in a process of its own, where nothing is remembered."""
    code = f"from benchmarks.streams import plan_seconds; print(plan_seconds({name!r}, {stream!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def plan_seconds(name: str, stream: Stream) -> float:
    """CPU seconds from the imported model to the plan; the solver, whose import takes long, is loaded before."""
    importlib.import_module("ortools.sat.python.cp_model")
    row = Row("", name, scheme(name))
    options = replace(CompileOptions(row.path, classes=10, **row.options), stream=stream)
    planner = Planner(stored(imported(options), options), options, load_target("cortex-m7"), Externals())
    started = process_time()
    planner.exact(options.update)
    return process_time() - started


TABLES = {"count": counted, "verify": verified, "stack": stacked, "plans": planning, "layers": layers}


def main() -> int:
    """Print the tables; 1 if a bar is missed, or a step differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for table in TABLES:
        parser.add_argument(f"--{table}", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    tables = {table: make for table, make in TABLES.items() if getattr(given, table)} or {"bytes": compared}
    record, missed = Record(given.keep), 0
    with tempfile.TemporaryDirectory() as name:
        for table, make in tables.items():
            print(f"# {table}", flush=True)
            for words, line in make(Path(name), record):
                if all(word in " ".join(words) for word in given.only.split()):
                    text, met = record.once((table, *words), line)
                    print(text if met else f"{text}   MISSED", flush=True)
                    missed += not met
    return int(missed > 0)
