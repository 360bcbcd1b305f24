"""Compiles a generated project with its check program, for the host or for the target's board."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.target import Target
from tinytrain_compile.verify.firmware import (
    COMPILE_FLAGS,
    LINK_FLAGS,
    WARNING_FLAGS,
    host_flags,
    model_sources,
    verification_files,
)
from tinytrain_compile.verify.tools import COMPILE_TIMEOUT_S, Tools, first_line, run_program

Mode = Literal["host", "qemu"]


@dataclass(frozen=True)
class Built:
    """An image and the objects of the model in it (not those of the check program). Call graphs lie beside objects."""

    mode: Mode
    image: Path
    model_objects: tuple[Path, ...]


def build(bundle: SourceBundle, target: Target, mode: Mode, tools: Tools, folder: Path) -> Built:
    """Write all sources into `folder` and build there. Errors: E0602 with the compiler's first complaint."""
    port = "verify/host.c" if mode == "host" else "verify/startup.c"
    write_files(folder, {**bundle.files, **verification_files(bundle, target)})
    models = model_sources(bundle)
    compiler = _compiler(target, mode, tools)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = [pool.submit(_compile, compiler, source, folder) for source in (*models, "verify/main.c", port)]
        compiled = [job.result() for job in jobs]
    image = folder / "verify" / ("check" if mode == "host" else "check.elf")
    machine = target.gcc_flags if mode == "qemu" else ()
    tail = ["-lm"] if mode == "host" and target.features.fma else []
    link = [*LINK_FLAGS] if mode == "qemu" else ["-no-pie"]
    objects = [str(path) for path in compiled]
    _check_run([compiler[0], *machine, *link, *objects, *tail, "-o", str(image)], image.parent, "linking")
    return Built(mode, image, tuple(compiled[: len(models)]))


def _compiler(target: Target, mode: Mode, tools: Tools) -> list[str]:
    program = tools.host_cc if mode == "host" else tools.cross_cc
    if program is None:
        raise CompileError(
            "E0602", "verify", f"no C compiler for the {mode} check", "install gcc, or use --verify none"
        )
    if mode == "host":
        return [program, *COMPILE_FLAGS, *WARNING_FLAGS, *host_flags(target)]
    stack = ("-fstack-usage", "-fcallgraph-info=su")
    return [program, *target.gcc_flags, *COMPILE_FLAGS, *WARNING_FLAGS, *stack]


def _compile(compiler: list[str], source: str, folder: Path) -> Path:
    output = folder / Path(source).with_suffix(".o")
    include = ["-I.", "-Iverify"] if source.startswith("verify/") else ["-I."]
    _check_run([*compiler, *include, "-c", source, "-o", str(output)], folder, f"compiling {source}")
    return output


def _check_run(command: list[str], folder: Path, what: str) -> None:
    finished = run_program(command, folder, COMPILE_TIMEOUT_S, what)
    if finished.exit_code != 0:
        message = first_line(finished.output).replace(f"{folder}/", "")
        raise CompileError("E0602", what, message, "please report this with the model")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts below `folder`, making sub-folders as needed."""
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
