"""Print the table of results in the README, as Markdown.

Everything is compiled for a Cortex-M7, checked and counted in QEMU. The examples are trained on the host for the last
column (run.py shows that QEMU computes the same bytes); MCUNet, in float32 and in int8, trains the steps of the check.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testing.compile_once import MODELS, SETTINGS, compile_once
from testing.places import ROOT, SHARED

SCHEMES = SHARED / "schemes"
EXAMPLES = ROOT / "examples"
LINEAR = ("--loss", "mse", "--lr", "0.1")
DIGITS = {
    "fp32": ("--arena", "256KB"),
    "int8": ("--arena", "256KB", "--quant", "int8", "--calib", str(EXAMPLES / "digits" / "calib.npz")),
}
_SCHEME = ("--quant", "int8", "--update", str(SCHEMES / "mcunet-5fps-49kb.toml"))
LARGE = {
    "MCUNet float32": (MODELS[0], SETTINGS[0]),
    "MCUNet int8": (f"{MODELS[0]}-qdq", (*_SCHEME, "--arena", "256KB")),
    "MCUNet int8, streams": (f"{MODELS[0]}-qdq", (*_SCHEME, "--arena", "96KB", "--stream", "min")),
}
"""Models of ../shared and flags, by row. The tests compare each row if they run its network anyway."""
COUNTED = 4
"""Column of the instructions, which the tests do not count."""
HEAD = ("model", "flags", "trains", "RAM", "instructions per step", "flash", "result")


def row(name: str, model: Path, flags: tuple[str, ...], outcome: str = "") -> str:
    """Return a line of the table, of a compilation."""
    return line(name, flags, compile_once(model, (*flags, "--count"), "qemu")[1], outcome)


def line(name: str, flags: tuple[str, ...], report: dict[str, Any], outcome: str = "") -> str:
    """Return a line of the table, of report.json; the outcome of a model without one is that of its check."""
    memory, flash, work, totals = (report[key] for key in ("memory", "flash", "work", "update_totals"))
    checked = report["verify"]["mode"] == "qemu"
    outcome = outcome or f"{report['verify']['steps']} steps, QEMU {'== host' if checked else 'not run'}"
    size = "not measured" if flash["code_bytes"] is None else f"{flash['code_bytes'] + flash['const_bytes']:,} B"
    trained = f"{totals['parameters']:,} of {totals['total_parameters']:,}"
    counted = work["train_step_instructions"]
    asked = " ".join(flags).replace(f"{SCHEMES}/", "").replace(f"{EXAMPLES}/digits/", "")
    number = "not counted" if counted is None else f"{counted:,}"
    return f"| {name} | `{asked}` | {trained} | {memory['arena_bytes']:,} B | {number} | {size} | {outcome} |"


def digits_outcome(quant: str) -> str:
    """Accuracy before and after training on the device's samples."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, str(EXAMPLES / "digits" / "run.py"), "--host", "--quant", quant, "--work", work]
        return accuracies(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def accuracies(text: str) -> str:
    """Before and after training, of what run.py prints."""
    return "accuracy " + text.partition("\naccuracy   ")[2].partition("  (")[0]


def linear_outcome(flags: tuple[str, ...]) -> str:
    """Loss of the first and of the last sample of examples/linear/main.c."""
    model = EXAMPLES / "linear" / "linear.onnx"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_command = [sys.executable, "-m", "tinytrain_compile", str(model), *flags, "--verify", "none"]
        subprocess.run([*compile_command, "-o", str(folder / "out")], check=True, capture_output=True)
        sources = [str(path) for path in (*sorted((folder / "out").glob("*.c")), EXAMPLES / "linear" / "main.c")]
        build = ["cc", "-std=c11", "-O2", f"-I{folder / 'out'}", *sources, "-o", name + "/linear"]
        subprocess.run(build, check=True)
        text = subprocess.run([name + "/linear"], check=True, capture_output=True, text=True).stdout
    losses = [line.split()[1] for line in text.splitlines()[1:]]
    return f"loss {losses[0]} -> {losses[-1]}"


def main() -> None:
    """Print the table; without ../shared, only the rows of examples/."""
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    print(row("linear", EXAMPLES / "linear" / "linear.onnx", LINEAR, linear_outcome(LINEAR)), flush=True)
    for quant, flags in DIGITS.items():
        digits = EXAMPLES / "digits" / "digits.onnx"
        print(row(f"digits {quant}", digits, flags, digits_outcome(quant)), flush=True)
    for name, (model, flags) in LARGE.items() if (SHARED / "models").is_dir() else ():
        print(row(name, SHARED / "models" / f"{model}.onnx", flags), flush=True)


if __name__ == "__main__":
    main()
