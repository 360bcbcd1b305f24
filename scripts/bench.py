"""Compile times and sizes of three real networks (`make bench`): a table on standard output.

Every row is one run of the command line, verification excluded; nothing here asserts a time. With --sizes the times
are left out and the generated code is built and run under QEMU instead, so that flash is measured: what README quotes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("TINYTRAIN_SHARED") or Path(__file__).resolve().parent.parent.parent / "shared")
MODELS = ("mcunet-5fps-10c", "mbv2-w0.35-10c", "proxyless-w0.3-10c")
ARENA, TARGET = "2MB", "cortex-m7"
SETTINGS = (("--update", "last:6", "--arena", ARENA), ("--arena", ARENA), ("--update", "all"))


def compile_once(model: Path, flags: tuple[str, ...], verify: str) -> tuple[float, dict[str, Any]]:
    """Seconds of wall time that a user waits, and report.json."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "tinytrain_compile", str(model), *flags, "--target", TARGET]
        start = time.monotonic()
        finished = subprocess.run([*command, "--verify", verify, "-o", str(out)], capture_output=True, text=True)
        seconds = time.monotonic() - start
        if finished.returncode != 0:
            sys.exit(f"{model.name} {' '.join(flags)}: {finished.stderr.strip()}")
        return seconds, json.loads((out / "report.json").read_text(encoding="utf-8"))


def times() -> None:
    """One row per model and setting."""
    print(
        f"{'model':20} {'flags':28} {'seconds':>8} {'arena B':>10} {'persistent':>10} {'bound gap':>10} {'layers':>7}"
    )
    for model in MODELS:
        for flags in SETTINGS:
            seconds, report = compile_once(SHARED / "models" / f"{model}.onnx", flags, "none")
            memory, totals = report["memory"], report["update_totals"]
            sizes = f"{memory['arena_bytes']:>10,} {memory['persistent_bytes']:>10,} {report['plan']['gap_bytes']:>10,}"
            layers = f"{totals['layers']}/{totals['total_layers']}"
            print(f"{model:20} {' '.join(flags):28} {seconds:8.1f} {sizes} {layers:>7}", flush=True)


def sizes() -> None:
    """A Markdown table: arena, flash and the losses of the verified steps."""
    print(
        "| model | trained | arena | of it state | flash | MAC per step | QEMU == host |\n|---|---|---|---|---|---|---|"
    )
    for model in MODELS:
        _, report = compile_once(SHARED / "models" / f"{model}.onnx", SETTINGS[0], "qemu")
        memory, flash, work, totals = (report[key] for key in ("memory", "flash", "work", "update_totals"))
        checked = "bit-exact" if report["verify"]["mode"] == "qemu" else "not run"
        code = "not measured" if flash["code_bytes"] is None else f"{flash['code_bytes'] + flash['const_bytes']:,} B"
        macs = (work["forward_macs"] + work["backward_macs"]) / 1e6
        print(
            f"| {model} | {totals['layers']} of {totals['total_layers']} layers, {totals['parameters']:,} parameters "
            f"| {memory['arena_bytes']:,} B | {memory['persistent_bytes']:,} B | {code} | {macs:.1f} M | {checked} |"
        )


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", action="store_true", help="a Markdown table of sizes, without times")
    arguments = parser.parse_args()
    if not (SHARED / "models").is_dir():
        print(f"skipped: no models in {SHARED / 'models'} (set TINYTRAIN_SHARED)")
        return
    sizes() if arguments.sizes else times()


if __name__ == "__main__":
    main()
