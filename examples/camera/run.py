"""Trains on pictures that come line by line, in RGB565, in QEMU and on this machine.

    python examples/camera/run.py

Without arm-none-eabi-gcc or qemu-system-arm it trains on the host alone, and says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from board import Firmware, check_equal, compile_model, facts, say, train

HERE = Path(__file__).resolve().parent
OPTIONS = ("--quant", "int8", "--calib", str(HERE / "calib.npz"), "--update", "last:2", "--lr", "0.2")
LINES = ("--input-lines", "--input-type", "uint8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "out", help="output folder (default: out beside this file)")
    parser.add_argument("--host", action="store_true", help="train on the host only, even where QEMU is installed")
    given = parser.parse_args()
    out = given.out.resolve()
    verify = ("--verify", "host") if given.host else ()
    compile_model([str(HERE / "camera.onnx"), *OPTIONS, *LINES, *verify, "-o", str(out), "--force"])
    result, host = train(Firmware(HERE / "main.c", out, {}), out / "build", given.host)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    say("\n" + "\n".join(facts(result, host, report)))
    check_equal(result, host)


if __name__ == "__main__":
    main()
