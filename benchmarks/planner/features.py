"""Count what `--features on` saves: instructions of an epoch, by whole steps and by features.

MCUNet in int8 with a float32 head, trained are the head, and the last two blocks with it (last:7); the keywords example
with its head and with its last three layers. Counted in QEMU on a Cortex-M7, the second step. An epoch has SAMPLES
samples; the first one by features computes them too. Both ways then train a twin for three epochs, and every byte of
the checkpoints is compared. Exits 1 where they differ.

usage: python -m benchmarks features [--only TEXT] [--samples N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tinytrain_compile as tt
from testing.places import ROOT, SHARED

MCUNET, KEYWORDS = SHARED / "models" / "mcunet-5fps-qdq.onnx", ROOT / "examples" / "keywords" / "keywords.onnx"
SAMPLES, EPOCHS, COMPARED = 100, 3, 4


@dataclass(frozen=True)
class Case:
    """A build; calibrate: whether ranges are measured on random samples, since the file has none."""

    name: str
    model: Path
    update: str
    options: tuple[tuple[str, Any], ...] = ()
    calibrate: bool = False


CASES = (
    Case("MCUNet, head", MCUNET, "head", (("classes", 10),)),
    Case("MCUNet, last:7", MCUNET, "last:7", (("classes", 10),)),
    Case("keywords, head", KEYWORDS, "head", calibrate=True),
    Case("keywords, last:3", KEYWORDS, "last:3", calibrate=True),
)


def compiled(case: Case, verify: str, folder: Path) -> tt.Compiled:
    """With features; counted where it is verified in QEMU."""
    options: dict[str, Any] = dict(case.options)
    if case.calibrate:
        with np.load(KEYWORDS.with_name("features.npz")) as data:
            np.savez(folder / "calib.npz", x=data["pool_x"][:, None].astype(np.float32) / 8)
        options["calib"] = folder / "calib.npz"
    options |= {"count": True} if verify == "qemu" else {}
    return tt.compile(
        case.model, quant="int8", update=case.update, features="on", verify=verify, loss="cross-entropy", **options
    )  # fmt: skip


def equal_bytes(build: tt.Compiled) -> int:
    """Bytes of the checkpoint after EPOCHS epochs of either way; 0 where they differ, in it or in a loss."""
    rng = np.random.default_rng(0)
    with build.twin() as whole, build.twin() as cut:
        shape = build.project.model.input_shape[1:]
        y = rng.integers(0, build.project.model.output_shape[-1], COMPARED)
        x = rng.standard_normal((COMPARED, *shape)).astype(np.float32)
        features = cut.features(x)
        for at in list(range(COMPARED)) * EPOCHS:
            pair = slice(at, at + 1)
            if whole.train_step(x[pair], y[pair]) != cut.train_features(features[pair], y[pair]):
                return 0
        kept = whole.instance.save()
        return len(kept) if kept == cut.instance.save() else 0


def row(case: Case, samples: int, verify: str = "qemu") -> tuple[str, bool]:
    """A line of the table, and whether the bytes are equal."""
    with tempfile.TemporaryDirectory() as folder:
        build = compiled(case, verify, Path(folder))
    found, compared = build.report["features"], equal_bytes(build)
    same = f"yes, {compared:,} B" if compared else "NO"
    if verify != "qemu":
        return f"| {case.name} | {found['bytes']:,} | {same} |", compared > 0
    step = build.report["work"]["train_step_instructions"]
    epoch, first = step * samples, (found["features_instructions"] + found["train_features_instructions"]) * samples
    later = found["train_features_instructions"] * samples
    numbers = f"{epoch / 1e6:,.1f} | {first / 1e6:,.1f} | {later / 1e6:,.2f} | {1 - later / epoch:.1%}"
    return f"| {case.name} | {found['bytes']:,} | {numbers} | {same} |", compared > 0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    given = parser.parse_args()
    print(f"million instructions of an epoch of {given.samples} samples, Cortex-M7, int8")
    print("| trained | bytes a sample | whole steps | first epoch by features | every later one | saved | same bytes |")
    print("|---|---|---|---|---|---|---|", flush=True)
    equal = True
    for case in CASES:
        if given.only in case.name:
            line, same = row(case, given.samples)
            equal &= same
            print(line, flush=True)
    sys.exit(not equal)
