"""Compile times and arenas of three real networks (`make bench`): a table on standard output.

Every row is one run of the command line, verification excluded; nothing here asserts a time.
"""

from __future__ import annotations

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


def main() -> None:
    """Print the table; without the models, say so."""
    if (SHARED / "models").is_dir():
        times()
    else:
        print(f"skipped: no models in {SHARED / 'models'} (set TINYTRAIN_SHARED)")


if __name__ == "__main__":
    main()
