"""QEMU ended at random moments while a model learns and saves; the flash is a file that stays."""

from __future__ import annotations

import random
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testing.power.campaign import build, layout_of
from testing.power.reader import states_in
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import write_files
from tinytrain_compile.verify.firmware import (
    COMPILE_FLAGS,
    model_sources,
    qemu_arguments,
    verification_files,
)

TARGET = "cortex-m7"
SLOTS, SECTOR, UNIT = 3, 4096, 4
"""As in killed.c."""
_LONGEST_S, _BEFORE_ANY_SAVE_S = 0.6, 30.0


@dataclass(frozen=True)
class Kills:
    """kills: how often it was ended. saves: that returned in all. inside: kills in the middle of a save, by what the
    medium then held of it. losses: what was found that should not be, in words."""

    kills: int
    saves: int
    inside: int
    losses: tuple[str, ...]


def kill(made: Project, folder: Path, times: int, seed: int = 0) -> Kills:
    """Start, end at a random time, look at the medium; again on the same medium.

    The state found has to be the last that was saved, or the one that was being saved, of a host that was never ended.
    """
    image = _firmware(made, folder / "board")
    layout = layout_of(made, f"{SLOTS} {_slot_bytes(made)} {UNIT} 255")
    flash, done = image.parent / "flash.bin", image.parent / "done.bin"
    flash.write_bytes(b"\xff" * (layout.slots * layout.slot_bytes))
    done.write_bytes(b"")
    chosen, found, ended = random.Random(seed), list[tuple[int, int, bytes]](), list[str]()
    for _ in range(times):
        status = _run(image, chosen.uniform(0.02, _LONGEST_S))
        said = done.read_bytes()
        last = struct.unpack_from("<I", said, len(said) // 4 * 4 - 4)[0] if len(said) >= 4 else 0
        states = states_in(flash.read_bytes(), layout)
        found.append((last, states[0].sequence, states[0].checkpoint) if states else (last, 0, b""))
        if status is not None:
            ended.append(f"it ended by itself with {status}")
    right = _states(made, folder / "host", max(sequence for _, sequence, _ in found))
    losses = [
        f"kill {number}: state {sequence} behind save {last}"
        for number, (last, sequence, checkpoint) in enumerate(found, 1)
        if sequence not in (last, last + 1) or (sequence > 0 and checkpoint != right[sequence - 1])
    ]
    inside = sum(sequence == last + 1 for last, sequence, _ in found)
    return Kills(times, len(done.read_bytes()) // 4, inside, (*ended, *losses))


def _slot_bytes(made: Project) -> int:
    face = made.bundle.interface
    least = face.persistent_bytes + 20 + 20 + 2 * UNIT  # a checkpoint's head and CRC, a record's
    least = -(-least // SECTOR) * SECTOR
    return (least + SECTOR) // SECTOR * SECTOR


def _run(image: Path, seconds: float) -> int | None:
    """The exit code, if it has ended before."""
    target = load_target(TARGET)
    assert target.toolchain is not None
    command = [target.toolchain.emulator.name, *qemu_arguments(target), "-kernel", image.name]
    with subprocess.Popen(command, cwd=image.parent, stdin=subprocess.DEVNULL) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return None


def _firmware(made: Project, folder: Path) -> Path:
    target = load_target(TARGET)
    build(made, folder, "killed")  # for the host, which also writes all files
    write_files(folder, verification_files(made.bundle, target))
    sources = [*model_sources(made.bundle), "killed.c", "verify/startup.c"]
    assert target.toolchain is not None
    flags = [*target.gcc_flags, *COMPILE_FLAGS, "-DTT_CHECK", "-I.", "-Iverify", *target.toolchain.link_flags]
    flags = [flag.replace("link.ld", "verify/link.ld") for flag in flags]
    compiler = target.toolchain.compiler.name
    subprocess.run([compiler, *flags, *sources, "-o", "killed.elf"], cwd=folder, check=True, timeout=600)
    return folder / "killed.elf"


def _states(made: Project, folder: Path, count: int) -> list[bytes]:
    """The checkpoint after every round, of a host that trains without saving to any medium."""
    program = build(made, folder, "killed")
    done = subprocess.run([str(program), str(count)], check=True, timeout=600, stdout=subprocess.PIPE)
    size = len(done.stdout) // max(count, 1)
    return [done.stdout[i * size : (i + 1) * size] for i in range(count)]
