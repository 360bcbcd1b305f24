"""Compare training in a small fast arena and external RAM with other ways to place everything; --run: in QEMU.

ResNet-18 at quarter width and a small BERT encoder, float32, every parameter updated, a 256 KB arena and the second
memory of cortex-m7. Time and energy are those of memory accesses and page moves in one step, a model from the target
file (no compute, no caches). With --run the paging plan trains one step in QEMU, compared with the reference.

usage: python -m benchmarks paging [--run] [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testing.networks.big_models import MODELS
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.price import accessed
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target

ARENA_BYTES, EXTERNAL_BYTES = 256 << 10, 12 << 20
TARGET, EXTERNAL = "cortex-m7", "sram2"


@dataclass(frozen=True)
class Row:
    """One way to run a step. moves: page moves; ms, mj: of all accesses and moves."""

    model: str
    way: str
    arena_bytes: int
    external_bytes: int
    moves: int
    moved_bytes: int
    ms: float
    mj: float


def _priced(model: str, way: str, plan: MemoryPlan, target: Target) -> Row:
    """Accesses at the arena's price, and what the plan pays more for its other memory."""
    fast, total = target.memories[0], sum(accessed(plan))
    ps, pj = total * (1_000_000 // fast.bytes_per_us) + plan.extra_ps, total * fast.pj_per_byte + plan.extra_pj
    used, moved = sum(memory.used_bytes for memory in plan.further), sum(move.size_bytes for move in plan.paging)
    return Row(model, way, plan.arena_bytes, used, len(plan.paging), moved, ps / 1e9, pj / 1e9)


def _external(model: str, plan: MemoryPlan, target: Target) -> Row:
    """The plan in one memory, all of which is the external one."""
    slow, total = next(bank for bank in target.memories if bank.name == EXTERNAL), sum(accessed(plan))
    ps, pj = total * (1_000_000 // slow.bytes_per_us), total * slow.pj_per_byte
    return Row(model, "all external", 0, plan.arena_bytes, 0, 0, ps / 1e9, pj / 1e9)


def rows(names: tuple[str, ...]) -> Iterator[Row]:
    """Four plans of every model: all external, all fast (which no such chip has), paged, paged with second runs."""
    target = load_target(TARGET)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = write(name, Path(folder))
            alone = _summary(CompileOptions(path, update="all", remat="off", stream="off", dry_run=True)).plan
            yield _external(name, alone, target)
            yield _priced(name, "all in fast RAM", alone, target)
            for remat in ("off", "min"):
                plan = _summary(paged(path, Path(folder), remat, dry_run=True)).plan
                yield _priced(name, f"paged, --remat {remat}", plan, target)


def write(name: str, folder: Path) -> Path:
    """The model as a file."""
    path = folder / f"{name}.onnx"
    path.write_bytes(MODELS[name]().SerializeToString())
    return path


def paged(path: Path, out: Path, remat: str, **more: object) -> CompileOptions:
    """The options of a compilation into arena and external RAM."""
    memories = {EXTERNAL: EXTERNAL_BYTES}
    common = {"update": "all", "remat": remat, "stream": "off", "arena_bytes": ARENA_BYTES, "memories": memories}
    common["target"] = TARGET
    return CompileOptions(path, out=out / "out", **{**common, **more})  # type: ignore[arg-type]


def _summary(options: CompileOptions) -> Summary:
    found = compile_model(options).summary
    assert found is not None
    return found


def main() -> int:
    """Print the table; with --run also train a step of each in QEMU."""
    names = tuple(name for name in sys.argv[1:] if not name.startswith("--")) or tuple(MODELS)
    print(f"arena {ARENA_BYTES:,} B, {EXTERNAL} {EXTERNAL_BYTES:,} B, {TARGET}; time and energy of memory, a model")
    print(f"{'':10} {'':20} {'arena B':>10} {'external B':>11} {'moves':>6} {'moved B':>11} {'ms':>8} {'mJ':>7}")
    for row in rows(names):
        sizes = f"{row.arena_bytes:>10,} {row.external_bytes:>11,} {row.moves:>6} {row.moved_bytes:>11,}"
        print(f"{row.model:10} {row.way:20} {sizes} {row.ms:>8.1f} {row.mj:>7.2f}", flush=True)
    for name in names if "--run" in sys.argv else ():
        with tempfile.TemporaryDirectory() as folder:
            options = paged(write(name, Path(folder)), Path(folder), "off", verify_steps=1)
            print(f"{name:10} {_summary(options).verify.message}", flush=True)
    return 0
