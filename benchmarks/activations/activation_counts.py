"""Count the instructions of a step with low-rank copies, in QEMU (docs/results-activations.md).

The quantised networks on a Cortex-M7, full plans, ranks for 10 % by enlarged digits. What is counted is also verified:
two steps with the bytes of the reference. A step has all samples of a batch, so that apply is part of it. The board of
a Cortex-M7's check has no room for the largest arenas twice, so code for it runs on another one, whose processor takes
it: instructions are the same on both.

usage: python -m benchmarks activations count [--models ..] [--updates ..] [--sizes ..] [--kinds ..] [--keep FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.activations.activation_nets import KINDS, options_of, samples
from benchmarks.record import Record
from testing.places import ROOT
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.errors import CompileError

SHAPE = 1, 128, 128, 3
"""Of the networks' images."""
ROOM = 32 << 20
"""Bytes of RAM of the board, and half of what a second instance and a checkpoint get."""


def roomy(folder: Path) -> Path:
    """A target file: a Cortex-M7 whose code runs on the board of the Cortex-M55, in its DDR memory (QEMU 7.2)."""
    own, other = ((ROOT / "targets" / f"cortex-{core}.toml").read_text() for core in ("m7", "m55"))
    core, board = own[: own.index("[qemu]")], other[other.index("[qemu]") : other.index("[qemu.data]")]
    first = core.index("size_bytes")
    core = f"{core[:first]}size_bytes = {ROOM}{core[core.index(chr(10), first) :]}"
    places = ("data", 0x72000000, ROOM), ("extra", 0x74000000, 2 * ROOM)
    more = [f"[qemu.{name}]\norigin = {origin:#x}\nsize_bytes = {size}\n" for name, origin, size in places]
    path = folder / "cortex-m7.toml"
    path.write_text("\n".join((core + board, *more)))
    return path


def counted(name: str, update: str, size: int, kind: str) -> tuple[int, int] | str:
    """(instructions of a step and its update, bytes of the arena); why not, where the board has no room."""
    with tempfile.TemporaryDirectory() as folder:
        data = samples(Path(folder), SHAPE, max(24, 2 * size))
        asked = replace(options_of(name, "int8", Path(folder)), data=data, calib=data, batch=size, micro_batch=size)
        asked = replace(asked, update=update, count=True, verify_steps=2, **KINDS[kind])
        asked = replace(asked, target=str(roomy(Path(folder))))
        try:
            summary = compile_model(asked).summary
        except CompileError as problem:
            return f"{problem.code} {problem.what}"
    assert summary is not None and summary.verify.counts is not None and summary.verify.result == "pass"
    found = summary.verify.counts
    return sum(found.step.values()) + sum((found.apply or {}).values()), summary.plan.arena_bytes


def main(arguments: Sequence[str]) -> int:
    """Print a line for each, as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks activations count", description=__doc__)
    parser.add_argument("--models", default="mcunet-5fps-10c,mbv2-w0.35-10c")
    parser.add_argument("--updates", default="last:6")
    parser.add_argument("--sizes", default="1,4,8")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args(arguments)
    record = Record(given.keep)
    print(
        "| network | update | samples in a step | activations | arena | instructions | |\n|---|---|---|---|---|---|---|"
    )
    for name, update, size in product(given.models.split(","), given.updates.split(","), given.sizes.split(",")):
        exact: int | None = None
        for kind in given.kinds.split(","):
            made = partial(counted, name, update, int(size), kind)
            found = record.once((name, update, size, kind), made)
            if isinstance(found, str):
                print(f"| {name} | {update} | {size} | {kind} | | | {found} |", flush=True)
                continue
            steps, arena = found
            exact = steps if kind == "exact" else exact
            more = "" if exact is None or kind == "exact" else f"{steps / exact - 1:+.1%}"
            print(f"| {name} | {update} | {size} | {kind} | {arena:,} B | {steps:,} | {more} |", flush=True)
    return 0
