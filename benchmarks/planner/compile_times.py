"""Print compile times and arenas of three real networks, the file's check, equal bytes, code sizes.

A row of the first is one run of the command line, verification excluded; nothing here asserts a time. The second says
what the comparison with the model file costs. The third runs an int8 network on every core that QEMU has, where a byte
that differs from numpy would end it. The fourth compares --code speed with --code size.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from testing.compile_once import MODELS, SETTINGS, TARGET, compile_once
from testing.cores import NAMES
from testing.places import SHARED

CORES = NAMES
INT8 = ("--quant", "int8", "--update", str(SHARED / "schemes" / "mcunet-5fps-49kb.toml"))
CODE_SIZES = (
    *(("mcunet-5fps-10c-qdq", core) for core in ("cortex-m7", "cortex-m0plus", "cortex-m55")),
    ("mcunet-5fps-10c", "cortex-m7"),
)


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


def equal_bytes() -> None:
    """int8 MCUNet on all cores of QEMU: every tensor after every step, numpy == host == QEMU (100 steps on the M7)."""
    print(f"{'core':16} {'steps':>5} {'result':>7} {'arena B':>10} {'stack B':>8} {'code B':>8} {'const B':>8}")
    for core in CORES:
        steps = 100 if core == TARGET else 10
        model = SHARED / "models" / "mcunet-5fps-10c-qdq.onnx"
        _, report = compile_once(model, (*INT8, "--verify-steps", str(steps)), "qemu", core)
        verified, flash = report["verify"], report["flash"]
        sizes = f"{report['memory']['arena_bytes']:>10,} {report['memory']['stack_bytes']:>8,}"
        sizes += f" {flash['code_bytes']:>8,} {flash['const_bytes']:>8,}"
        print(f"{core:16} {verified['steps']:>5} {verified['result']:>7} {sizes}", flush=True)


def file_check() -> None:
    """What the comparison with the model file adds to a compilation that verifies, as --verbose says it."""
    print(f"{'model':22} {'tensors':>7} {'CPU s':>8} {'wall s of all':>14}  {'agreement'}")
    for name in (*MODELS, *(f"{name.removesuffix('-10c')}-qdq" for name in MODELS)):
        flags = ("--quant", "int8") if name.endswith("qdq") else ()
        with tempfile.TemporaryDirectory() as folder:
            model, out = SHARED / "models" / f"{name}.onnx", Path(folder) / "out"
            command = [sys.executable, "-m", "tinytrain_compile", str(model), *flags, "--update", "last:6", "-v"]
            start = time.monotonic()
            finished = subprocess.run([*command, "--verify", "host", "-o", str(out)], capture_output=True, text=True)
            whole = time.monotonic() - start
            line = re.search(r"file compared .*?, ([0-9.]+) s of CPU time", " ".join(finished.stdout.split()))
            if finished.returncode != 0 or line is None:
                sys.exit(f"{name}: {finished.stderr.strip() or finished.stdout}")
            found = json.loads((out / "report.json").read_text(encoding="utf-8"))["verify"]["file"]
            error = f"max |err| {found['max_error']:.1e}"
            if found["steps"] is not None:
                error = f"within {found['steps']:g} step, {100 * found['equal_bytes']:.2f} % equal"
            print(f"{name:22} {found['tensors']:>7} {float(line[1]):8.2f} {whole:14.1f}  {error}", flush=True)


def code_sizes() -> None:
    """Whole projects with --code speed and --code size, side by side: bytes of code, instructions of a step."""
    heads = f"{'speed: code B':>13} {'step':>12} {'size: code B':>13} {'step':>12} {'bytes':>6} {'step':>6}"
    print(f"{'model':22} {'core':14} {heads}")
    for model, core in CODE_SIZES:
        flags = INT8 if model.endswith("qdq") else ("--update", "last:6")
        found: list[int] = []
        for code in ("speed", "size"):
            path = SHARED / "models" / f"{model}.onnx"
            _, report = compile_once(path, (*flags, "--code", code, "--count"), "qemu", core)
            found += [report["flash"]["code_bytes"], report["work"]["train_step_instructions"]]
        cells = f"{found[0]:>13,} {found[1]:>12,} {found[2]:>13,} {found[3]:>12,}"
        print(f"{model:22} {core:14} {cells} {found[2] / found[0]:6.2f} {found[3] / found[1]:6.2f}", flush=True)


def main() -> None:
    """Print the tables; without the models, say so."""
    if (SHARED / "models").is_dir():
        times()
        file_check()
        equal_bytes()
        code_sizes()
    else:
        print(f"skipped: no models in {SHARED / 'models'} (set TINYTRAIN_SHARED)")
