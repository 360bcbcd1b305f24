"""Compiles keywords.onnx in int8, builds main.c with the result, and lets it get used to a new speaker, in QEMU.

    python examples/keywords/run.py
    python examples/keywords/run.py --speaker nl+m1 --config finetune.toml

The same runs on the host, and the two are compared. Without arm-none-eabi-gcc or qemu-system-arm it trains on the host
alone, and says so.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from board import TARGET, Firmware, Run, check_equal, compile_model, facts, say, show, train
from make_data import DEVELOPMENT, REPORT
from recipe import EPOCHS, OPTIONS, REPLAYED
from speakers import parts_of

HERE = Path(__file__).resolve().parent


def summary(result: Run) -> list[str]:
    """Accuracy on the new speaker and the old ones, before training and at the end."""
    lines = list[str]()
    for who in ("new speaker", "old speakers"):
        first, *_, last = (float(number) for number in re.findall(rf"{who} +([0-9.]+) %", result.text))
        lines.append(f"{who:12} {first:.1f} % -> {last:.1f} %  ({last - first:+.1f} points)")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--speaker", default=REPORT[0], choices=(*DEVELOPMENT, *REPORT), help=f"(default: {REPORT[0]})")
    parser.add_argument("--work", type=Path, default=HERE / "out", help="folder for everything that is made")
    parser.add_argument("--config", type=Path, help="as for tinytrain-compile: what finetune has written")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"(default: {EPOCHS}, or that of --config)")
    parser.add_argument("--host", action="store_true", help="train on the host only, even where QEMU is installed")
    given = parser.parse_args()
    work, parts = given.work.resolve(), parts_of(given.speaker)
    work.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(work / "own.npz", x=parts.own.real, y=parts.own.y)
    np.savez_compressed(work / "calib.npz", x=parts.pool.real)
    own = ["--config", show(given.config.resolve())] if given.config else [*OPTIONS, "--epochs", str(given.epochs)]
    files = ["--calib", show(work / "calib.npz"), "--data", show(work / "own.npz"), "-o", show(work / "generated")]
    verify = ["--verify", "host"] if given.host else []
    compile_model([show(HERE / "keywords.onnx"), *own, "--runtime", "replay", "--target", TARGET, *files, *verify])
    result, host = train(Firmware(HERE / "main.c", work / "generated", parts.files), work, given.host)
    report = json.loads((work / "generated" / "report.json").read_text(encoding="utf-8"))
    say("\n" + "\n".join([*summary(result), *facts(result, host, report, REPLAYED)]))
    check_equal(result, host)


if __name__ == "__main__":
    main()
