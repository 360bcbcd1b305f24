"""Running of a generated project's training steps, on the host or under QEMU, and reading of their output."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.build import Built
from tinytrain_compile.verify.firmware import qemu_arguments
from tinytrain_compile.verify.tools import Tools, first_line, run_program

# ---- reading output.bin ----------------------------------------------------------------------------------------------

FloatArray = NDArray[Any]
_INIT, _INFER, _SAMPLE, _APPLY, _STATE, _CHECKPOINT, _GUARDS, _STACK, _END, _ARENA, _INFER_BATCH, _HEAR, _OPEN = range(
    1, 14
)
"""TAG_ constants of main.c.j2, in its order."""
_CHECKPOINT_FAULTS = {
    1: "no room for a checkpoint and a second instance",
    2: "m_save failed, or did not write m_state_size bytes",
    3: "m_init_memories of a second instance failed",
    4: "m_load of a fresh checkpoint failed",
    5: "the state after m_load differs from the state that m_save wrote",
    6: "m_load accepted a damaged checkpoint",
    7: "m_load of a damaged checkpoint did not leave the initial state",
}


@dataclass(frozen=True, eq=False)
class RunResult:
    """Results of one run.

    losses: one per micro-batch (steps * batch samples), float32.
    output_first, output_last: outputs of m_infer before and after training, then those of m_infer_batch if it exists,
        float32.
    states: after every step, slot name -> bytes.
    faults: found by the check program itself (a status, the guards, the checkpoint); empty if there are none.
    stack_measured_bytes: deepest stack of any API call except save and load; None on the host.
    arena_measured_bytes: high-water mark of the painted arena: end of the highest byte that a call changed.
    heard: outputs of m_hear on a stream that ends with the sample inferred, before and after training, each (calls,
        elements) in float32; () without --listen on.
    """

    losses: FloatArray
    output_first: FloatArray
    output_last: FloatArray
    states: tuple[Mapping[str, bytes], ...]
    faults: tuple[str, ...]
    stack_measured_bytes: int | None
    arena_measured_bytes: int = 0
    heard: tuple[FloatArray, ...] = ()

    @property
    def heard_all(self) -> FloatArray:
        """All outputs of m_hear, flat."""
        return np.concatenate([np.zeros(0, np.float32), *(outputs.ravel() for outputs in self.heard)])

    @property
    def status(self) -> str:
        """`ok`, or the first fault."""
        return self.faults[0] if self.faults else "ok"


def parse_output(data: bytes, interface: Interface, where: str) -> RunResult:
    """Read the records of output.bin; E0602 if they are incomplete."""
    reader = _Reader(interface)
    try:
        for tag, payload in _records(data):
            reader.record(tag, payload)
    except (struct.error, ValueError) as error:
        raise _incomplete(where) from error
    if not reader.complete:
        raise _incomplete(where)
    return reader.result()


def _incomplete(where: str) -> CompileError:
    return CompileError("E0602", where, "the check program's output is incomplete", "please report this with the model")


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        tag, size = struct.unpack_from("<II", data, position)
        position += 8
        if position + size > len(data):
            raise ValueError("short record")
        yield tag, data[position : position + size]
        position += size


class _Reader:
    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._losses: list[bytes] = []
        self._outputs: list[FloatArray] = []
        self._heard: tuple[list[FloatArray], list[FloatArray]] = ([], [])
        self._states: list[dict[str, bytes]] = []
        self._faults: list[str] = []
        self._stack: int | None = None
        self._arena = 0
        self._ended = False

    @property
    def complete(self) -> bool:
        return self._ended and len(self._outputs) == 2

    def record(self, tag: int, payload: bytes) -> None:
        step = len(self._states)
        if tag == _INIT:
            self._status(payload, "m_init_memories")
        elif tag == _INFER:
            self._status(payload, "m_infer")
            self._outputs.append(np.frombuffer(payload[4:], dtype="<f4"))
        elif tag == _INFER_BATCH:
            self._status(payload, "m_infer_batch")
            self._outputs[-1] = np.concatenate([self._outputs[-1], np.frombuffer(payload[4:], dtype="<f4")])
        elif tag == _HEAR:
            self._status(payload, "m_hear")
            _, wrong, again = struct.unpack_from("<III", payload)
            if wrong:
                self._faults.append("m_hear_settling gives another number of calls than there are until rings settle")
            self._heard[again].append(np.frombuffer(payload[12:], dtype="<f4"))
        elif tag == _OPEN:
            self._status(payload, "m_infer_open")
            if payload[4:] != self._outputs[-1].tobytes():
                self._faults.append("m_infer_open differs from m_infer")
        elif tag == _SAMPLE:
            self._status(payload, f"training, step {step}")
            self._losses.append(payload[4:8])
        elif tag == _APPLY:
            self._status(payload, f"m_apply, step {step}")
        elif tag == _STATE:
            self._states.append(self._slots(payload))
        else:
            self._final(tag, payload)

    def _final(self, tag: int, payload: bytes) -> None:
        if tag == _CHECKPOINT:
            (code,) = struct.unpack("<I", payload)
            if code:
                self._faults.append(f"checkpoint: {_CHECKPOINT_FAULTS.get(code, code)}")
        elif tag == _GUARDS:
            below, above, free = struct.unpack("<III", payload)
            if below or above or free:
                where = f"{below} guard bytes below it, {above} above it, {free} in free RAM"
                self._faults.append(f"writes outside the arena or the stack: {where}")
        elif tag == _ARENA:
            (self._arena,) = struct.unpack("<I", payload)
        elif tag == _STACK:
            (self._stack,) = struct.unpack("<I", payload)
        elif tag == _END:
            self._ended = True
        else:
            raise ValueError(f"unknown record {tag}")

    def _status(self, payload: bytes, call: str) -> None:
        (status,) = struct.unpack_from("<I", payload)
        if status:
            self._faults.append(f"{call}: status {status}")

    def _slots(self, payload: bytes) -> dict[str, bytes]:
        slots: dict[str, bytes] = {}
        position = 0
        for slot in self._interface.state:
            slots[slot.name] = payload[position : position + slot.size_bytes]
            position += slot.size_bytes
        if position != len(payload):
            raise ValueError("state record of the wrong size")
        return slots

    def result(self) -> RunResult:
        losses = np.frombuffer(b"".join(self._losses), dtype="<f4")
        first, last = self._outputs
        heard = tuple(np.stack(outputs) for outputs in self._heard if outputs)
        for outputs, window in zip(heard, (first, last), strict=False):
            if outputs[-1].tobytes() != window.tobytes():
                self._faults.append("m_hear on the stream differs from m_infer on the window")
        faults = tuple(self._faults)
        return RunResult(losses, first, last, tuple(self._states), faults, self._stack, self._arena, heard)


# ---- running ---------------------------------------------------------------------------------------------------------

RUN_TIMEOUT_S = 600.0
"""Time limit, in seconds, of a run whose work is not known."""
BASE_S, _CYCLES_PER_S = 60, 10_000_000
"""Base time limit of a run in seconds, and the cycles that add one second: twenty times the time that QEMU took for
digits, keywords and MCUNet on a busy machine (docs/verification.md)."""
_EXIT_FAULT = 99
"""Exit code EXIT_FAULT of runtime_c/ports/semihosting.c."""


@dataclass(frozen=True)
class RunLimit:
    """Time limit of a run of the check program, in seconds, and its derivation for messages."""

    seconds: float = RUN_TIMEOUT_S
    why: str = ""


def limit_of(cycles: int, counted: bool) -> RunLimit:
    """Return the limit of a run of `cycles` cycles by the target's model; counted: the plugin counts them.

    QEMU takes a second for 100 million of these (MCUNet on the M7) to 500 million (keywords on the M0+). With the
    plugin it takes several times as long. The margin is for a wrong model and a busy machine.
    """
    millions, times = cycles / 1e6, 4 if counted else 1
    why = f"{BASE_S} s, and {times} for every 10 M of the {millions:.1f} M cycles that the target's model expects"
    return RunLimit(BASE_S + times * cycles / _CYCLES_PER_S, why)


def execute(
    built: Built,
    interface: Interface,
    target: Target,
    tools: Tools,
    vectors: bytes,
    limit: RunLimit = RunLimit(),
    extra: Sequence[str] = (),
    makes: Sequence[str] = (),
) -> RunResult:
    """Run a built check program on a vector file. Errors: E0602 if it crashes, faults or takes too long.

    makes: files besides its output that a plugin of QEMU (`extra`) writes.
    """
    where, _ = _command(built, target, tools)
    output = run_image(built, target, tools, vectors, limit.seconds, extra, limit.why, makes)
    return parse_output(output, interface, where)


def run_image(
    built: Built,
    target: Target,
    tools: Tools,
    vectors: bytes,
    timeout_s: float = RUN_TIMEOUT_S,
    extra: Sequence[str] = (),
    why: str = "",
    makes: Sequence[str] = (),
) -> bytes:
    """Run an image with `vectors` as input.bin; return its output.bin. Errors as `execute`. extra: for QEMU."""
    folder = built.image.parent
    (folder / "input.bin").write_bytes(vectors)
    where, command = _command(built, target, tools)
    loop = "look for a loop without an end in kernels of yours (--kernels), or report this with the model"
    works = "" if tools.qemu is None else f"check that {Path(tools.qemu).name} works, or use --verify host; else "
    hint = loop if built.mode != "qemu" else f"{works}{loop}"
    files = [folder / name for name in ("output.bin", *makes)]
    finished = run_program([*command, *extra], folder, timeout_s, where, makes=files, why=why, hint=hint)
    if finished.exit_code != 0:
        raise CompileError(
            "E0602", where, _failure(finished.exit_code, finished.output), "please report this with the model"
        )
    return (folder / "output.bin").read_bytes()


def _command(built: Built, target: Target, tools: Tools) -> tuple[str, list[str]]:
    if built.mode != "qemu":
        return "host check", [str(built.image)]
    if target.qemu is None or tools.qemu is None:
        what = "no board" if target.qemu is None else tools.missing_for_qemu()
        raise CompileError("E0602", "QEMU check", what, "use --verify host")
    return f"QEMU check on {target.qemu.machine}", [tools.qemu, *qemu_arguments(target), "-kernel", built.image.name]


def _failure(exit_code: int, output: str) -> str:
    if exit_code < 0:
        return f"ended by signal {-exit_code} ({first_line(output)})"
    kind = "hardware fault" if exit_code == _EXIT_FAULT else f"exit code {exit_code}"
    return f"{kind} ({first_line(output)})"
