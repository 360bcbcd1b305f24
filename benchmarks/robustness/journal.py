"""Audit journals of devices in QEMU: 1,000 updates on three cores, float32 and int8; every flipped bit; what it costs.

A small network trains with --runtime journal. Its twin repeats the journal and must reach the checkpoint of the device,
to the byte. Then every bit of the first records is flipped in turn, without and with a key, and the audit must name the
record. Last, instructions of a record on the M0+ are counted, by functions, for this network and for the digits, and
the flash and RAM of the journal. Exits 1 if an audit is wrong.

usage: python -m benchmarks journal [--updates N] [--records N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tinytrain_compile as tt
from testing.journal.device import Recorded, record
from testing.networks import models
from testing.places import ROOT
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.learn.audit import repeat
from tinytrain_compile.parts.journal.twin import Layout

CORES, FORMATS, COUNT, RATE = ("cortex-m0plus", "cortex-m4", "cortex-m55"), ("fp32", "int8"), 200, 0.02
KEY = bytes(range(32))
DIGITS = ROOT / "examples" / "digits"


@dataclass(frozen=True)
class Network:
    """A model, its samples, the layers that are trained, and an .npz to calibrate."""

    name: str
    model: Path
    own: Path
    update: str
    calib: Path

    def compiled(self, core: str, kind: str) -> tt.Compiled:
        """Compile it with a journal."""
        options: dict[str, Any] = {"quant": "int8", "calib": self.calib} if kind == "int8" else {}
        return tt.compile(
            self.model, target=core, update=self.update, runtime="journal", verify="none", seed=1, **options
        )


def networks(folder: Path) -> tuple[Network, Network]:
    """Return a network of 12 numbers and 4 classes on random samples, and the digits."""
    rng, own, model = np.random.default_rng(1), folder / "own.npz", folder / "mlp.onnx"
    np.savez(own, x=rng.normal(size=(COUNT, 12)).astype(np.float32), y=rng.integers(0, 4, COUNT).astype(np.int32))
    onnx.save(models.mlp(), model)
    digits = Network("digits", DIGITS / "digits.onnx", DIGITS / "data.npz", "last:2", DIGITS / "calib.npz")
    return Network("mlp", model, own, "all", own), digits


def on_device(made: tt.Compiled, core: str, network: Network, updates: int, **more: Any) -> Recorded:
    """Make updates on a core in QEMU, at a falling rate, on the samples in turn."""
    with made.twin() as twin, np.load(network.own) as arrays, tempfile.TemporaryDirectory() as folder:
        chosen = np.arange(updates) % len(arrays["x"])
        slots = Samples(*twin.as_slots(arrays["x"][chosen], arrays["y"][chosen]))
        rates = [RATE * (1 - i / updates) for i in range(updates)]
        return record(made.project, core, slots, rates, Path(folder), **more)


def audited(made: tt.Compiled, network: Network, found: Recorded, key: bytes | None = None) -> str:
    """Return what an audit finds, "" for nothing."""
    with made.twin() as twin:
        try:
            repeat(made.project, twin, ("journal", found.journal, key), network.own)
        except CompileError as problem:
            return problem.what
        return "" if twin.instance.save() == found.checkpoint else "another checkpoint"


def missed_bits(made: tt.Compiled, network: Network, found: Recorded, key: bytes | None) -> Iterator[int]:
    """Yield the bits of a journal whose flip is not found, or is told of another record."""
    size = Layout(made.project.summary.train.batch).record_bytes
    for bit in range(8 * len(found.journal)):
        data = bytearray(found.journal)
        data[bit // 8] ^= 1 << bit % 8
        if not audited(made, network, replace(found, journal=bytes(data)), key).startswith(
            f"record {1 + bit // 8 // size} "
        ):
            yield bit


def costs(network: Network, kind: str, core: str) -> Iterator[str]:
    """Yield what a record costs. The last of three updates is counted: the first one of int8 finds exponents."""
    made = network.compiled(core, kind)
    for key in (None, KEY):
        found = on_device(made, core, network, 3, key=key, count=True)
        call = [call for call in found.calls if call.name.endswith("_journal_train_step")][-1]
        own = sum(count for name, count in call.instructions.items() if name in found.functions)
        hashing, step = call.instructions["take_block"], sum(call.instructions.values()) - own
        yield (
            f"{core:14} {network.name:7} {kind:5} {'key' if key else 'no key':7} {own:8,} instructions a record "
            f"({hashing:,} in SHA-256's rounds), step {step:11,}: {own / step:6.1%}; flash {found.flash_bytes:,} B"
        )
    size, ram = (made.report["runtime"]["journal"][name] for name in ("record_bytes", "bytes"))
    yield f"{'':14} {network.name:7} {kind:5} a record has {size} B; RAM {ram} B, and 36 B of the state"


def main() -> int:
    """Print all tables; return 1 if an audit is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--updates", type=int, default=1000, help="of each device")
    parser.add_argument("--records", type=int, default=5, help="of which every bit is flipped")
    asked, failed = parser.parse_args(), False
    with tempfile.TemporaryDirectory() as folder:
        small, digits = networks(Path(folder))
        for core in CORES:
            for kind in FORMATS:
                begun, made = time.monotonic(), small.compiled(core, kind)
                found = on_device(made, core, small, asked.updates)
                what = audited(made, small, found)
                failed |= bool(what)
                said = what or f"{len(found.checkpoint):,} bytes of the checkpoint are equal"
                print(f"{core:14} {kind:5} {asked.updates:,} updates: {said} ({time.monotonic() - begun:.0f} s)")
        for kind, key in zip(FORMATS, (None, KEY), strict=True):
            made = small.compiled(CORES[0], kind)
            found = on_device(made, CORES[0], small, asked.records, key=key)
            missed = list(missed_bits(made, small, found, key))
            failed |= bool(missed)
            bits = 8 * len(found.journal)
            print(f"{kind:5} {'key' if key else 'no key'}: {bits - len(missed):,} of {bits:,} flipped bits found")
        for network in (small, digits):
            for kind in FORMATS:
                print(*costs(network, kind, CORES[0]), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
