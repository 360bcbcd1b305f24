"""Compiles vibration.onnx, builds main.c with the result, and lets it learn what a machine sounds like, in QEMU.

    python examples/vibration/run.py
    python examples/vibration/run.py --machine 203 --quant int8

The same runs on the host, and the two are compared. Without arm-none-eabi-gcc or qemu-system-arm it trains on the host
alone, and says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from board import TARGET, Firmware, check_equal, compile_model, facts, say, show, train
from make_data import REPORT, Parts, parts_of, real
from recipe import EPOCHS, INT8, OPTIONS, compiled, factory_threshold, write_calib

HERE = Path(__file__).resolve().parent


def files_of(parts: Parts, quant: str) -> dict[str, bytes]:
    """What main.c reads, by name."""
    with compiled(quant=quant).twin() as twin:
        threshold = np.array([factory_threshold(twin)], "<f4")
    judged = np.hstack([parts.x, parts.y[:, None].astype(np.int8)])
    return {"own.bin": parts.own.tobytes(), "test.bin": judged.tobytes(), "factory.bin": threshold.tobytes()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machine", type=int, default=REPORT[0], help=f"its number (default: {REPORT[0]})")
    parser.add_argument("--work", type=Path, default=HERE / "out", help="folder for everything that is made")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"(default: {EPOCHS})")
    parser.add_argument("--quant", default="fp32", choices=("fp32", "int8"), help="(default: fp32)")
    parser.add_argument("--host", action="store_true", help="train on the host only, even where QEMU is installed")
    given = parser.parse_args()
    work, parts = given.work.resolve(), parts_of(given.machine)
    work.mkdir(parents=True, exist_ok=True)
    x = real(parts.own)
    np.savez_compressed(work / "own.npz", x=x, y=x)
    own = [*OPTIONS, "--epochs", str(given.epochs), "--runtime", "monitor", "--target", TARGET]
    files = ["--data", show(work / "own.npz"), "-o", show(work / "generated")]
    if given.quant == "int8":
        files += [*(part for name, value in INT8.items() for part in (f"--{name}", value))]
        files += ["--calib", show(write_calib(work))]
    verify = ["--verify", "host"] if given.host else []
    compile_model([show(HERE / "vibration.onnx"), *own, *files, *verify])
    result, host = train(Firmware(HERE / "main.c", work / "generated", files_of(parts, given.quant)), work, given.host)
    report = json.loads((work / "generated" / "report.json").read_text(encoding="utf-8"))
    say("\n" + "\n".join(facts(result, host, report)))
    check_equal(result, host)


if __name__ == "__main__":
    main()
