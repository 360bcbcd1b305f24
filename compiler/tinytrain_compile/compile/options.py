"""Everything that a user may ask of one compilation, parsed and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import Objective

_UNITS = {"": 1, "B": 1} | {
    letter + ending: 1 << bits for letter, bits in (("K", 10), ("M", 20), ("G", 30)) for ending in ("", "B", "IB")
}


_TIMES = {"us": 10**6, "ms": 10**9, "s": 10**12}


def parse_size(text: str, where: str) -> int:
    """Bytes of "256KB", "256KiB", "1MB" or "262144"; KB is 1024. CompileError E0101 unless it is a positive number."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    size = int(match[1]) * unit if match and unit else 0
    if not 0 < size < 1 << 40:
        raise CompileError("E0101", where, f"{text!r} is not a size above 0", "for example 256KB, 256KiB or 262144")
    return size


def parse_time(text: str, where: str) -> int:
    """Picoseconds of "500ms", "2s" or "1.5 ms"; CompileError E0101 unless it is a positive time."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(us|ms|s)\s*", text)
    time = round(float(match[1]) * _TIMES[match[2]]) if match else 0
    if time <= 0:
        raise CompileError("E0101", where, f"{text!r} is not a time above 0", "for example 500ms or 2s")
    return time


def parse_memories(texts: tuple[str, ...]) -> dict[str, int]:
    """{"sram2": 1048576} from "sram2=1MB"; CompileError E0101 for anything else, or a name given twice."""
    memories: dict[str, int] = {}
    for text in texts:
        name, sign, size = text.partition("=")
        if not sign or not name or name in memories:
            what = f"{name!r} is given twice" if name in memories else f"{text!r} is not NAME=SIZE"
            raise CompileError("E0101", "--memory", what, "for example --memory sram2=1MB")
        memories[name] = parse_size(size, f"--memory {name}")
    return memories


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """{"x": (1, 3, 32, 32)} from "x=1,3,32,32"."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        if not name or not re.fullmatch(r"[0-9]{1,12}(\s*[,x]\s*[0-9]{1,12})*", dims):
            raise CompileError(
                "E0101", "--input-shape", f"{text!r} is not NAME=1,3,32,32", "give all dimensions as numbers"
            )
        shapes[name] = tuple(int(d) for d in re.split(r"[,x]", dims))
    return shapes


def _no_shapes() -> Mapping[str, tuple[int, ...]]:
    return {}


def _no_memories() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True)
class CompileOptions:
    """One compilation. Sizes in bytes; `out` is the output folder; `data` an .npz for verification.

    quant: "auto" is what compile/number_format.py makes of the model; behind the driver it is one of the others.
    int8_flags: flags given that only int8 has a meaning for. given: names of all that the command line sets.
    memories: further memories of the target that buffers may lie in, by name, and how many bytes of each.
    micro_batch: samples that a call takes; None is 1, or what a lock has; "auto": as many as --arena holds.
    remat: None leaves it to the ladder in compile/ladder.py: a little, if --arena needs it; with `optimise`, to the
    objective.
    optimise: None is the least extra time that fits. max_step_ps: longest step by the target's model, in picoseconds.
    code: of kernels and calls; None is speed, or what flash_budget_bytes (of code and constants) asks for.
    """

    model: Path
    out: Path = Path("out")
    force: bool = False
    arena_bytes: int | None = None
    memories: Mapping[str, int] = field(default_factory=_no_memories)
    target: str = "cortex-m7"
    loss: str | None = None
    label: str = ""
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    update: str = "auto"
    batch: int = 1
    accumulate: Literal["exact", "inplace"] = "exact"
    micro_batch: int | Literal["auto"] | None = None
    quant: Literal["auto", "fp32", "int8"] = "auto"
    int8_flags: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    calib: Path | None = None
    calib_range: Literal["minmax", "percentile"] = "minmax"
    head: Literal["fp32", "int8"] = "fp32"
    weight_store: Literal["sr8", "q8.8", "mixed"] = "mixed"
    rescale: bool = False
    classes: int | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=_no_shapes)
    input_layout: Literal["hwc", "chw"] = "hwc"
    batch_norm: Literal["fold", "keep"] = "fold"
    verify: Literal["qemu", "host", "none"] = "qemu"
    verify_steps: int = 3
    count: bool = False
    cycles: bool = False
    data: Path | None = None
    kernels: tuple[Path, ...] = ()
    tune: bool = False
    tiles: Path | None = None
    seed: int = 0
    lock: Path | None = None
    dry_run: bool = False
    dump_after: str = ""
    remat: Literal["off", "auto", "min"] | None = None
    code: Literal["size", "speed"] | None = None
    flash_budget_bytes: int | None = None
    optimise: Objective | None = None
    max_step_ps: int | None = None
    report: tuple[str, ...] = ("text", "json", "html")
