"""Count instructions of whole networks against what is asked of them: MCUNet, MLPerf Tiny shapes.

    python -m benchmarks bars                          # all rows
    python -m benchmarks bars --only 'autoencoder.*M7'  # rows whose name matches

Counts are instructions executed in QEMU, of the first step; all without streams. Nothing here fails.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kernels.tiny_models import MODELS, write_model
from testing.places import SHARED

MCUNET = SHARED / "models" / "mcunet-5fps-10c-qdq.onnx"
MCUNET_FLOAT = SHARED / "models" / "mcunet-5fps-10c.onnx"
SIX = ("--update", "last:6", "--arena", "2MB", "--verify-steps", "2", "--quant")
SCHEME = ("--quant", "int8", "--update", str(SHARED / "schemes" / "mcunet-5fps-49kb.toml"), "--arena", "256KB")
ALL = ("--update", "all", "--loss", "mse", "--arena", "2MB")
INT8 = ("--quant", "int8", "--calib", "{samples}")
DENSE, HEAD = (*INT8, "--head", "int8", *ALL), (*INT8, "--update", "head")
CODE, STEP, INFERENCE = "code", "step", "inference"


@dataclass(frozen=True)
class Bar:
    """name; what is compiled; what is read of the report; figures of before, asked for and aimed at
    (millions of instructions; code: B).

    model: a file, or the name of one that is made here. per: flags of what the figure is divided by, of per_model if
    that is another file.
    """

    name: str
    model: str
    flags: tuple[str, ...]
    target: str
    what: str
    before: float
    must: float
    aim: float
    per: tuple[str, ...] = ()
    per_model: str = ""


BARS = (
    Bar("MCUNet 49kb step, M7", str(MCUNET), SCHEME, "cortex-m7", STEP, 47.62, 42.0, 41.0),
    Bar("MCUNet 49kb inference, M7", str(MCUNET), SCHEME, "cortex-m7", INFERENCE, 33.64, 29.5, 28.5),
    Bar("MCUNet 49kb step, M55", str(MCUNET), SCHEME, "cortex-m55", STEP, 17.33, 14.5, 13.0),
    Bar("MCUNet 49kb inference, M55", str(MCUNET), SCHEME, "cortex-m55", INFERENCE, 11.71, 9.8, 9.0),
    Bar("MCUNet 49kb step, M0+", str(MCUNET), SCHEME, "cortex-m0plus", STEP, 233.5, 210.0, 190.0),
    Bar("MCUNet 49kb inference, M0+", str(MCUNET), SCHEME, "cortex-m0plus", INFERENCE, 175.0, 155.0, 140.0),
    Bar("MCUNet 49kb code, M7", str(MCUNET), SCHEME, "cortex-m7", CODE, 90908, 80000, 70000),
    Bar("autoencoder int8 step, M7", "autoencoder", DENSE, "cortex-m7", STEP, 14.04, 3.6, 2.5),
    Bar("autoencoder int8 step, M55", "autoencoder", DENSE, "cortex-m55", STEP, 12.24, 2.0, 1.0),
    Bar("autoencoder int8 / float32, M7", "autoencoder", DENSE, "cortex-m7", STEP, 3.9, 1.0, 0.7, ALL),
    Bar("autoencoder int8 / float32, M4", "autoencoder", DENSE, "cortex-m4", STEP, 3.9, 1.0, 0.7, ALL),
    Bar("autoencoder int8 / float32, M55", "autoencoder", DENSE, "cortex-m55", STEP, 3.9, 1.0, 0.7, ALL),
    *(
        Bar(f"MCUNet last:6 int8 / float32, {core[7:].upper().replace('PLUS', '+')}", str(MCUNET), (*SIX, "int8"), core,
            STEP, 3.9, 1.0, 0.7, (*SIX, "fp32"), str(MCUNET_FLOAT))
        for core in ("cortex-m7", "cortex-m4", "cortex-m55", "cortex-m0plus")
    ),
    Bar("DS-CNN 49x10 inference, M4", "ds-cnn", HEAD, "cortex-m4", INFERENCE, 4.99, 3.9, 3.4),
    Bar("visual wake words inference, M4", "vww", HEAD, "cortex-m4", INFERENCE, 10.91, 9.5, 8.5),
    Bar("visual wake words inference, M7", "vww", HEAD, "cortex-m7", INFERENCE, 10.78, 9.3, 8.3),
)  # fmt: skip
KEYS = {STEP: "train_step_instructions", INFERENCE: "infer_instructions"}


class Reports:
    """Reports of compilations, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[tuple[str, ...], dict[str, Any]]()

    def of(self, model: str, flags: tuple[str, ...], target: str) -> dict[str, Any]:
        """report.json of a model; raises if it does not compile, or differs from the reference."""
        path, samples = (Path(model), Path()) if model not in MODELS else write_model(model, self._folder)
        rest = [flag.format(samples=samples) for flag in flags]
        command = [sys.executable, "-m", "tinytrain_compile", str(path), *rest, "--target", target, "--stream", "off"]
        if (key := tuple(command)) not in self._made:
            out = self._folder / "out"
            finished = subprocess.run([*command, "--count", "-o", str(out)], capture_output=True, text=True)
            if finished.returncode != 0:
                raise RuntimeError(f"{model}, {target}: {finished.stderr.strip()}")
            self._made[key] = json.loads((out / "report.json").read_text(encoding="utf-8"))
        return self._made[key]

    def figure(self, bar: Bar) -> float:
        """What the bar is about."""
        report = self.of(bar.model, bar.flags, bar.target)
        if bar.what == CODE:
            return report["flash"]["code_bytes"]
        count = report["work"][KEYS[bar.what]]
        if bar.per:
            return count / self.of(bar.per_model or bar.model, bar.per, bar.target)["work"][KEYS[bar.what]]
        return count / 1e6


def main() -> None:
    """Print a line per row, as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that names of rows match")
    pattern = re.compile(parser.parse_args().only)
    print(f"{'':34} {'before':>9} {'must':>9} {'aim':>9} {'now':>10}")
    with tempfile.TemporaryDirectory() as folder:
        reports = Reports(Path(folder))
        for bar in BARS:
            if not pattern.search(bar.name):
                continue
            if bar.model not in MODELS and not Path(bar.model).is_file():
                print(f"{bar.name:34} skipped: {bar.model} is not there")
                continue
            now = reports.figure(bar)
            verdict = "met" if now <= bar.must else f"MISS by {100 * (now / bar.must - 1):.0f} %"
            figure = f"{now:10,.0f}" if bar.what == CODE else f"{now:10.2f}"
            print(f"{bar.name:34} {bar.before:9,g} {bar.must:9,g} {bar.aim:9,g} {figure}  {verdict}", flush=True)
