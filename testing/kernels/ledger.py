"""Instructions of layers and of whole steps on the cores, and the ledger of what they were (benchmarks/ledger.json)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from testing.cores import MAIN, NAMES
from testing.kernels.boards import measure
from testing.kernels.layers import LAYERS
from testing.places import ROOT, SHARED
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.cycles import missing_for_cycles
from tinytrain_compile.verify.tools import find_tools

LEDGER = ROOT / "benchmarks" / "ledger.json"
TARGETS = NAMES
SHORT_TARGETS = ("cortex-m0plus", "cortex-m7", "cortex-m55")
NETWORKS = (
    ("mcunet-5fps-10c-qdq", "mcunet-5fps-49kb", "256KB", ()),
    ("proxyless-w0.3-qdq", "proxyless-w0.3-98kb", "256KB", ("--classes", "10")),
    ("mbv2-w0.35-qdq", "mbv2-w0.35-99kb", "320KB", ("--classes", "10")),
)
Row = dict[str, Any]
MODELLED = "cycles_model"
"""Key of a row's cycles: a model's, never a measurement."""


def gcc_version() -> str:
    """Version of the cross compiler, on which instruction counts depend; "" if there is none."""
    program = find_tools(MAIN).cross_cc
    if program is None:
        return ""
    done = subprocess.run([program, "-dumpfullversion"], capture_output=True, text=True, check=False, timeout=60)
    version = done.stdout.strip()
    return version if done.returncode == 0 and re.fullmatch(r"[\w.]+", version) else "unknown"


def model_of(target: str) -> str:
    """The model of cycles that gives figures for a target on this machine; "" if there is none."""
    core = load_target(target)
    return "" if missing_for_cycles(core) else core.cycle_model


def layer_rows(targets: tuple[str, ...], cycles: bool = False) -> list[Row]:
    """A row per layer and target; raises if a kernel does not give what its reference gives.

    cycles: also those of the targets' models, where there is one.
    """
    cases = [layer.case() for layer in LAYERS]
    rows: list[Row] = []
    for target in targets:
        modelled = cycles and model_of(target) != ""
        for layer, found in zip(LAYERS, measure(cases, target, cycles=modelled), strict=True):
            if not found.equal:
                raise AssertionError(f"{layer.name} on {target} differs from its reference")
            counts = found.instructions, found.macs, found.code_bytes
            rows.append(_row(layer.name, target, "-O2", *counts, found.cycles))
    return rows


def network_rows(targets: tuple[str, ...]) -> list[Row]:
    """Two rows per network and target: a training step and an inference; nothing without the shared models."""
    rows: list[Row] = []
    for name, scheme, arena, more in NETWORKS if (SHARED / "models").is_dir() else ():
        for target in targets if name.startswith("mcunet") else set(targets) & {"cortex-m7"}:
            report = _compile(name, scheme, arena, target, more)
            work, code = report["work"], report["flash"]["code_bytes"]
            macs = work["forward_macs"], work["forward_macs"] + work["backward_macs"]
            for what, call, count in (("inference", "infer", macs[0]), ("step", "train_step", macs[1])):
                counts = work[f"{call}_instructions"], count, code, work[f"{call}_cycles_model"]
                rows.append(_row(f"{name}: {what}", target, scheme, *counts))
    return rows


def _compile(name: str, scheme: str, arena: str, target: str, more: tuple[str, ...]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        model, update = SHARED / "models" / f"{name}.onnx", SHARED / "schemes" / f"{scheme}.toml"
        counting = ["--count", *(["--cycles"] if model_of(target) else [])]
        flags = ["--quant", "int8", "--update", str(update), "--arena", arena, "--target", target, *more, *counting]
        command = [sys.executable, "-m", "tinytrain_compile", str(model), *flags, "-o", f"{folder}/out"]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode != 0:
            raise RuntimeError(f"{name}, {target}: {finished.stderr.strip()}")
        return json.loads(Path(folder, "out", "report.json").read_text(encoding="utf-8"))


def _row(name: str, target: str, flags: str, instructions: int, macs: int, code_bytes: int, cycles: int | None) -> Row:
    counts = {"instructions": instructions, "macs": macs, "code_bytes": code_bytes}
    modelled = {} if cycles is None else {MODELLED: cycles}
    return {"name": name, "target": target, "flags": flags, **counts, **modelled}


def key(row: Row) -> tuple[str, str, str]:
    """What a row is found by."""
    return row["name"], row["target"], row["flags"]


def differences(rows: list[Row], recorded: list[Row]) -> list[str]:
    """One line per row that differs from the ledger or is not in it; modelled cycles, which another llvm-mca may see
    otherwise, count for nothing."""
    known = {key(row): row for row in recorded}
    lines: list[str] = []
    for row in rows:
        old = known.get(key(row))
        if old is None or {**old, MODELLED: None} != {**row, MODELLED: None}:
            was = "no row" if old is None else f"{old['instructions']:,} instructions, {old['code_bytes']:,} B"
            now = f"{row['instructions']:,} instructions, {row['code_bytes']:,} B"
            lines.append(f"{row['target']}, {row['name']}: {now}; the ledger has {was}")
    return lines


def table(rows: list[Row]) -> list[str]:
    """Lines for people. Cycles are those of a model, in which IPC is instructions by cycles."""
    head = f"{'instructions':>13} {'MAC':>11} {'per MAC':>8} {'code B':>7} {'cycles, model':>13} {'IPC':>5}"
    lines = [f"{head}  {'target':13} name"]
    for row in rows:
        each = f"{row['instructions'] / row['macs']:.2f}" if row["macs"] else "-"
        counts = f"{row['instructions']:>13,} {row['macs']:>11,} {each:>8} {row['code_bytes']:>7,}"
        cycles = row.get(MODELLED)
        modelled = f"{'-':>13} {'-':>5}" if cycles is None else f"{cycles:>13,} {row['instructions'] / cycles:>5.2f}"
        lines.append(f"{counts} {modelled}  {row['target']:13} {row['name']}")
    return lines


def recorded_ledger() -> Row:
    """{"gcc": version, "models": {target: model of cycles}, "rows": [...]}"""
    return json.loads(LEDGER.read_text(encoding="utf-8"))


def version_skip() -> str:
    """Why the ledger cannot be compared here, or ""."""
    found, recorded = gcc_version(), recorded_ledger()["gcc"]
    return "" if found == recorded else f"GCC here is {found or 'missing'}, the ledger is of GCC {recorded}"


def merged(rows: list[Row]) -> Row:
    """The ledger with these rows: in their places, where it has rows of the same names from the same compiler."""
    ledger = recorded_ledger()
    models = {target: model for target in TARGETS if (model := model_of(target))}
    if {key(row) for row in rows} >= {key(row) for row in ledger["rows"]} or ledger["gcc"] != gcc_version():
        return {"gcc": gcc_version(), "models": models, "rows": rows}
    new = {key(row): row for row in rows}
    kept = [new.pop(key(row), row) for row in ledger["rows"]]
    return {"gcc": gcc_version(), "models": models, "rows": [*kept, *new.values()]}
