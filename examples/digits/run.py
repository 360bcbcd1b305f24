"""Compiles digits.onnx, builds main.c with the result, trains it in QEMU and on the host, and compares the two.

    python examples/digits/run.py        (or `make demo`)
    python examples/digits/run.py --quant int8

Without arm-none-eabi-gcc or qemu-system-arm it trains on the host alone, and says so.
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

HERE = Path(__file__).resolve().parent

LOSS, ACCURACY, BAR_WIDTH = r"loss ([0-9.]+)", r"accuracy ([0-9.]+) %", 40


def samples() -> dict[str, bytes]:
    """train.bin and test.bin: what main.c reads instead of a camera."""
    found = dict[str, bytes]()
    with np.load(HERE / "data.npz") as data:
        for part, name in (("", "train"), ("_test", "test")):
            pixels = np.rint(data[f"x{part}"].reshape(-1, 64) * 255).astype(np.uint8)
            labels = data[f"y{part}"].astype(np.uint8)[:, None]
            found[f"{name}.bin"] = np.hstack([pixels, labels]).tobytes()
    return found


def with_bar(line: str, so_far: str) -> str:
    """A line of the firmware; where it tells a loss, with a bar that shows the curve (the first one is the longest)."""
    losses = [float(number) for number in re.findall(LOSS, so_far)]
    bar = "#" * max(1, round(BAR_WIDTH * losses[-1] / losses[0])) if re.search(LOSS, line) else ""
    return f"  {line:52}{bar}"


def summary(result: Run) -> list[str]:
    """Held-back accuracy and loss, of the first epoch and the last."""
    accuracies, losses = ([float(found) for found in re.findall(what, result.text)] for what in (ACCURACY, LOSS))
    return [
        f"accuracy   {accuracies[0]:.1f} % -> {accuracies[-1]:.1f} %  (+{accuracies[-1] - accuracies[0]:.1f} points,"
        " on images it never trained on)",
        f"loss       {losses[0]:.3f} -> {losses[-1]:.3f}  ({len(losses)} epochs)",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=HERE / "out", help="folder for everything that is made")
    parser.add_argument("--config", type=Path, help="as for tinytrain-compile: what finetune has written")
    parser.add_argument("--arena", help="as for tinytrain-compile (default: 256KB, or that of --config)")
    parser.add_argument("--update", default="auto", help="as for tinytrain-compile (default: auto)")
    parser.add_argument("--quant", choices=("fp32", "int8"), default="fp32", help="number format (default: fp32)")
    parser.add_argument("--host", action="store_true", help="train on the host only, even where QEMU is installed")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    out = work / "generated"
    update = [] if arguments.update == "auto" else ["--update", arguments.update]
    quant = [] if arguments.quant == "fp32" else ["--quant", "int8", "--calib", show(HERE / "calib.npz")]
    verify = ["--verify", "host"] if arguments.host else []
    config = [] if arguments.config is None else ["--config", show(arguments.config.resolve())]
    arena = arguments.arena or ("" if config else "256KB")
    flags = [*config, *quant, *(["--arena", arena] if arena else []), *update, *verify]
    fixed = ["--target", TARGET, "--data", show(HERE / "data.npz"), "-o", show(out)]
    compile_model([show(HERE / "digits.onnx"), *flags, *fixed])
    result, host = train(Firmware(HERE / "main.c", out, samples(), with_bar), work, arguments.host)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    say("\n" + "\n".join([*summary(result), *facts(result, host, report)]))
    check_equal(result, host)


if __name__ == "__main__":
    main()
