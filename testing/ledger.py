"""Instructions of layers and of whole steps on the cores, and the ledger of what they were (benchmarks/ledger.json)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from testing.boards import measure
from testing.layers import LAYERS
from testing.places import ROOT, SHARED

LEDGER = ROOT / "benchmarks" / "ledger.json"
TARGETS = ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
SHORT_TARGETS = ("cortex-m0plus", "cortex-m7", "cortex-m55")
NETWORKS = (
    ("mcunet-5fps-10c-qdq", "mcunet-5fps-49kb", "256KB", ()),
    ("proxyless-w0.3-qdq", "proxyless-w0.3-98kb", "256KB", ("--classes", "10")),
    ("mbv2-w0.35-qdq", "mbv2-w0.35-99kb", "320KB", ("--classes", "10")),
)
Row = dict[str, Any]


def gcc_version() -> str:
    """Version of the cross compiler; "" if there is none."""
    try:
        output = subprocess.run(["arm-none-eabi-gcc", "-dumpfullversion"], capture_output=True, text=True).stdout
    except OSError:
        return ""
    return output.strip()


def layer_rows(targets: tuple[str, ...]) -> list[Row]:
    """A row per layer and target; raises if a kernel does not give what its reference gives."""
    cases = [layer.case() for layer in LAYERS]
    rows: list[Row] = []
    for target in targets:
        for layer, found in zip(LAYERS, measure(cases, target), strict=True):
            if not found.equal:
                raise AssertionError(f"{layer.name} on {target} differs from its reference")
            rows.append(_row(layer.name, target, "-O2", found.instructions, found.macs, found.code_bytes))
    return rows


def network_rows(targets: tuple[str, ...]) -> list[Row]:
    """Two rows per network and target: a training step and an inference; nothing without the shared models."""
    rows: list[Row] = []
    for name, scheme, arena, more in NETWORKS if (SHARED / "models").is_dir() else ():
        for target in targets if name.startswith("mcunet") else set(targets) & {"cortex-m7"}:
            report = _compile(name, scheme, arena, target, more)
            work, code = report["work"], report["flash"]["code_bytes"]
            macs = work["forward_macs"], work["forward_macs"] + work["backward_macs"]
            rows.append(_row(f"{name}: inference", target, scheme, work["infer_instructions"], macs[0], code))
            rows.append(_row(f"{name}: step", target, scheme, work["train_step_instructions"], macs[1], code))
    return rows


def _compile(name: str, scheme: str, arena: str, target: str, more: tuple[str, ...]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        model, update = SHARED / "models" / f"{name}.onnx", SHARED / "schemes" / f"{scheme}.toml"
        flags = ["--quant", "int8", "--update", str(update), "--arena", arena, "--target", target, *more, "--count"]
        command = [sys.executable, "-m", "tinytrain_compile", str(model), *flags, "-o", f"{folder}/out"]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode != 0:
            raise RuntimeError(f"{name}, {target}: {finished.stderr.strip()}")
        return json.loads(Path(folder, "out", "report.json").read_text(encoding="utf-8"))


def _row(name: str, target: str, flags: str, instructions: int, macs: int, code_bytes: int) -> Row:
    counts = {"instructions": instructions, "macs": macs, "code_bytes": code_bytes}
    return {"name": name, "target": target, "flags": flags, **counts}


def key(row: Row) -> tuple[str, str, str]:
    """What a row is found by."""
    return row["name"], row["target"], row["flags"]


def differences(rows: list[Row], recorded: list[Row]) -> list[str]:
    """One line per row that differs from the ledger or is not in it."""
    known = {key(row): row for row in recorded}
    lines: list[str] = []
    for row in rows:
        old = known.get(key(row))
        if old != row:
            was = "no row" if old is None else f"{old['instructions']:,} instructions, {old['code_bytes']:,} B"
            now = f"{row['instructions']:,} instructions, {row['code_bytes']:,} B"
            lines.append(f"{row['target']}, {row['name']}: {now}; the ledger has {was}")
    return lines


def table(rows: list[Row]) -> list[str]:
    """Lines for people."""
    lines = [f"{'instructions':>13} {'MAC':>11} {'per MAC':>8} {'code B':>7}  {'target':13} name"]
    for row in rows:
        each = f"{row['instructions'] / row['macs']:.2f}" if row["macs"] else "-"
        counts = f"{row['instructions']:>13,} {row['macs']:>11,} {each:>8} {row['code_bytes']:>7,}"
        lines.append(f"{counts}  {row['target']:13} {row['name']}")
    return lines


def recorded_ledger() -> Row:
    """{"gcc": version, "rows": [...]}"""
    return json.loads(LEDGER.read_text(encoding="utf-8"))


def version_skip() -> str:
    """Why the ledger cannot be compared here, or ""."""
    found, recorded = gcc_version(), recorded_ledger()["gcc"]
    return "" if found == recorded else f"GCC here is {found or 'missing'}, the ledger is of GCC {recorded}"


def merged(rows: list[Row]) -> Row:
    """The ledger with these rows: in their places, where it has rows of the same names from the same compiler."""
    ledger = recorded_ledger()
    if {key(row) for row in rows} >= {key(row) for row in ledger["rows"]} or ledger["gcc"] != gcc_version():
        return {"gcc": gcc_version(), "rows": rows}
    new = {key(row): row for row in rows}
    kept = [new.pop(key(row), row) for row in ledger["rows"]]
    return {"gcc": gcc_version(), "rows": [*kept, *new.values()]}
