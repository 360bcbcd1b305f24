"""One compilation by the command line, timed, and the three real networks that figures are about."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS = ("mcunet-5fps-10c", "mbv2-w0.35-10c", "proxyless-w0.3-10c")
ARENA, TARGET = "2MB", "cortex-m7"
SETTINGS = (("--update", "last:6", "--arena", ARENA), ("--arena", ARENA), ("--update", "all"))


def compile_once(
    model: Path, flags: tuple[str, ...], verify: str, target: str = TARGET
) -> tuple[float, dict[str, Any]]:
    """Return the seconds of wall time that a user waits, and report.json."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "tinytrain_compile", str(model), *flags, "--target", target]
        start = time.monotonic()
        finished = subprocess.run([*command, "--verify", verify, "-o", str(out)], capture_output=True, text=True)
        seconds = time.monotonic() - start
        if finished.returncode != 0:
            sys.exit(f"{model.name} {' '.join(flags)}: {finished.stderr.strip()}")
        return seconds, json.loads((out / "report.json").read_text(encoding="utf-8"))
