"""Updates on a device with a journal: its records and its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.parts.journal.twin import Layout
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import Mode, compile_project, link_project
from tinytrain_compile.verify.count import Call, functions_of, prepare_count, read_calls
from tinytrain_compile.verify.firmware import GUARD_BYTES, fill
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.symbols import defined_functions, read_object
from tinytrain_compile.verify.tools import find_tools

PROGRAM = Path(__file__).with_name("journal.c")


@dataclass(frozen=True)
class Recorded:
    """What a device has written. calls: its calls with their instructions, if they were counted; functions: of the
    journal's C file, and its code and constants in bytes."""

    journal: bytes
    checkpoint: bytes
    calls: Sequence[Call] = ()
    functions: frozenset[str] = frozenset()
    flash_bytes: int = 0


def record(
    made: Project,
    target_name: str,
    slots: Samples,
    rates: Sequence[float],
    folder: Path,
    mode: Mode = "qemu",
    key: bytes | None = None,
    count: bool = False,
) -> Recorded:
    """Make an update at each rate. slots: samples as the calls take them, those of an update after another.

    Errors: CompileError E0602 if the program does not end well.
    """
    target, prefix = load_target(target_name), made.bundle.interface.prefix
    tools = find_tools(target)
    text = fill(PROGRAM.read_text(encoding="utf-8"), {"UPDATES": str(len(rates)), "GUARD": str(GUARD_BYTES)})
    text = re.sub(r"\bM_", f"{prefix.upper()}_", re.sub(r"\bm_", f"{prefix}_", text))
    bundle = replace(made.bundle, files={**made.bundle.files, "verify/journal.c": text})
    port = "verify/host.c" if mode == "host" else "verify/startup.c"
    objects = compile_project(bundle, target, mode, tools, folder, ("verify/journal.c", port))
    built = link_project(objects, target, tools)
    functions = functions_of(built.image, objects.model_objects, prefix) if count else []
    extra = prepare_count(functions, tools, built.image.parent) if count else ()
    found = run_image(built, target, tools, _input(made, slots, rates, key), 1800, extra)
    at = len(rates) * Layout(made.summary.train.batch).record_bytes
    own = next(path for path in objects.model_objects if path.stem == f"{prefix}_journal")
    sizes = read_object(own)
    return Recorded(
        found[:at],
        found[at:],
        read_calls(built.image.parent, functions) if count else (),
        frozenset(function.name for function in defined_functions(own)),
        sizes.code_bytes + sizes.const_bytes,
    )


def _input(made: Project, slots: Samples, rates: Sequence[float], key: bytes | None) -> bytes:
    """Return input.bin."""
    train = made.summary.train
    pieces, at = [bytes([key is not None]), key or bytes(32)], 0
    for rate in rates:
        pieces.append(np.float32(rate).tobytes())
        for _ in range(train.batch // train.micro_batch):
            call = slice(at, at + train.micro_batch)
            pieces += [slots.x[call].tobytes(), slots.y[call].tobytes()]
            at += train.micro_batch
    return b"".join(pieces)
