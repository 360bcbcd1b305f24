"""Compiles digits.onnx, builds main.c with the result, trains it in QEMU and on the host, and compares the two.

    python examples/digits/run.py        (or `make demo`)
    python examples/digits/run.py --quant int8

Without arm-none-eabi-gcc or qemu-system-arm it trains on the host alone, and says so.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinytrain_compile.target import Target, load_target
from tinytrain_compile.verify import find_tools
from tinytrain_compile.verify.firmware import (
    CHECK_FLAG,
    COMPILE_FLAGS,
    HOST_FLAGS,
    LINK_FLAGS,
    WARNING_FLAGS,
    qemu_arguments,
)

HERE = Path(__file__).resolve().parent
TARGET = "cortex-m7"
TIME_LIMIT_S = 600
LOSS, ACCURACY, BAR_WIDTH = r"loss ([0-9.]+)", r"accuracy ([0-9.]+) %", 40


@dataclass(frozen=True)
class Run:
    """What the firmware printed and the checkpoint that it wrote."""

    text: str
    checkpoint: bytes
    seconds: float

    def accuracies(self) -> list[float]:
        """Held-back accuracy in percent: before training, then after every epoch."""
        return [float(number) for number in re.findall(ACCURACY, self.text)]

    def losses(self) -> list[float]:
        """Mean loss of every epoch."""
        return [float(number) for number in re.findall(LOSS, self.text)]


def say(text: str = "") -> None:
    print(text, flush=True)


def show(path: Path) -> str:
    """A path as a user would type it from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def compile_model(out: Path, flags: list[str]) -> None:
    """tinytrain-compile, verification included."""
    fixed = ["--target", TARGET, "--data", show(HERE / "data.npz"), "-o", show(out)]
    arguments = [show(HERE / "digits.onnx"), *flags, *fixed]
    say(f"running: tinytrain-compile {shlex.join(arguments)}")
    finished = subprocess.run([sys.executable, "-m", "tinytrain_compile", *arguments], check=False)
    if finished.returncode != 0:
        sys.exit(finished.returncode)


def write_samples(folder: Path) -> None:
    """train.bin and test.bin: what main.c reads instead of a camera."""
    with np.load(HERE / "data.npz") as data:
        for part, name in (("", "train"), ("_test", "test")):
            pixels = np.rint(data[f"x{part}"].reshape(-1, 64) * 255).astype(np.uint8)
            labels = data[f"y{part}"].astype(np.uint8)[:, None]
            (folder / f"{name}.bin").write_bytes(np.hstack([pixels, labels]).tobytes())


def build_command(compiler: str, out: Path, board: Target | None) -> list[str]:
    """The compiler's command line; `board` None builds for the host what the board computes."""
    sources = [str(path) for path in (*sorted(out.glob("*.c")), HERE / "main.c")]
    common = [*COMPILE_FLAGS, *WARNING_FLAGS, CHECK_FLAG, f"-I{out}", f"-I{out / 'verify'}", *sources]
    if board is None:
        tail = [str(out / "verify" / "host.c"), "-no-pie", "-o", "firmware"]
        return [compiler, *HOST_FLAGS, *common, *tail]
    link = [flag.replace("link.ld", str(out / "verify" / "link.ld")) for flag in LINK_FLAGS]
    return [compiler, *board.gcc_flags, *common, str(out / "verify" / "startup.c"), *link, "-o", "firmware.elf"]


def with_bar(line: str, so_far: str) -> str:
    """A line of the firmware; where it tells a loss, with a bar that shows the curve (the first one is the longest)."""
    losses = [float(number) for number in re.findall(LOSS, so_far)]
    bar = "#" * max(1, round(BAR_WIDTH * losses[-1] / losses[0])) if re.search(LOSS, line) else ""
    return f"  {line:52}{bar}".rstrip()


def run(build: list[str], execute: list[str], folder: Path, live: bool) -> Run:
    """Build and run the firmware in a fresh folder; `live` shows what it prints while it runs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_samples(folder)
    subprocess.run(build, cwd=folder, check=True, timeout=TIME_LIMIT_S)
    start, lines = time.monotonic(), list[str]()
    with subprocess.Popen(
        execute, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if live:
                say(with_bar(line.rstrip(), "".join(lines)))
    if process.returncode != 0:
        sys.exit(f"{execute[0]} ended with exit code {process.returncode}: {''.join(lines[-1:])}")
    return Run("".join(lines), (folder / "trained.bin").read_bytes(), time.monotonic() - start)


def train(out: Path, build: Path, host_only: bool) -> tuple[Run, Run | None]:
    """(the run to report, the host's run if the first is the board's): the board's where its tools are installed."""
    tools, target = find_tools(), load_target(TARGET)
    if tools.host_cc is None:
        sys.exit("no C compiler found (apt-get install gcc)")
    host_build = build_command(tools.host_cc, out, None)
    if host_only or tools.cross_cc is None or tools.qemu is None or target.qemu is None:
        say(f"\nQEMU skipped: {'--host' if host_only else tools.missing_for_qemu()}; training on the host instead\n")
        return run(host_build, ["./firmware"], build / "host", live=True), None
    say(f"\nmain.c + {show(out)}/*.c in QEMU ({target.qemu.machine}):\n")
    emulator = [tools.qemu, *qemu_arguments(target.qemu), "-kernel", "firmware.elf"]
    with ThreadPoolExecutor() as pool:
        host = pool.submit(run, host_build, ["./firmware"], build / "host", live=False)
        board = run(build_command(tools.cross_cc, out, target), emulator, build / "qemu", live=True)
        return board, host.result()


def summary(result: Run, host: Run | None, report: dict[str, dict[str, int]]) -> list[str]:
    """The block at the end."""
    accuracies, losses = result.accuracies(), result.losses()
    memory, flash = report["memory"], report["flash"]
    machine = "host" if host is None else "QEMU"
    lines = [
        f"accuracy   {accuracies[0]:.1f} % -> {accuracies[-1]:.1f} %  (+{accuracies[-1] - accuracies[0]:.1f} points,"
        " on images it never trained on)",
        f"loss       {losses[0]:.3f} -> {losses[-1]:.3f}  ({len(losses)} epochs)",
        f"memory     arena {memory['arena_bytes']:,} B, all of the model's RAM but its stack",
    ]
    if flash["code_bytes"] is not None:
        total = flash["code_bytes"] + flash["const_bytes"]
        lines.append(f"flash      {total:,} B (code {flash['code_bytes']:,} + const {flash['const_bytes']:,})")
    if host is not None:
        same = result.text == host.text and result.checkpoint == host.checkpoint
        what = f"every printed number and all {len(host.checkpoint):,} bytes of the trained checkpoint"
        lines.append(f"equal      {'yes' if same else 'NO'}: {what}, QEMU against host")
    lines.append(f"time       {result.seconds:.1f} s in {machine}")
    return lines


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
    compile_model(out, [*config, *quant, *(["--arena", arena] if arena else []), *update, *verify])
    result, host = train(out, work, arguments.host)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    say("\n" + "\n".join(summary(result, host, report)))
    if host is not None and (result.text, result.checkpoint) != (host.text, host.checkpoint):
        sys.exit("the board and the host computed different bytes: please report this")


if __name__ == "__main__":
    main()
