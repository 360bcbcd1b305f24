"""Compilation of a generated project with its check program, for the host or for the target's board; its sizes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.firmware import (
    CHECK_FLAG,
    COMPILE_FLAGS,
    HOST_FLAGS,
    WARNING_FLAGS,
    file_flags,
    model_sources,
    verification_files,
)
from tinytrain_compile.verify.objects import compile_once
from tinytrain_compile.verify.symbols import defined_functions, read_object
from tinytrain_compile.verify.tools import (
    TOOL_TIMEOUT_S,
    Tools,
    first_line,
    result_of,
    run_program,
    work_folder,
    workers,
)

Mode = Literal["host", "qemu", "debug"]
"""Machine that runs a build. debug: on the host, under AddressSanitizer (for projects emitted with tt_debug.h)."""

NATIVE_FLAGS = ("-march=native",)
LIBRARY_FLAGS = ("-O2", "-fPIC")
"""Additional flags for a library of the host: it trains for long, so optimisation pays off."""

CALL_GRAPH = "-fcallgraph-info=su"
"""Flag with which GCC writes call graph and frames beside an object (.ci)."""
SANITIZE = ("-Og", "-fsanitize=address", "-fno-omit-frame-pointer", "-g1")


@dataclass(frozen=True)
class Compiled:
    """Objects of the model, and of its check program. GCC's call graphs are beside the objects of a board build."""

    mode: Mode
    folder: Path
    model_objects: tuple[Path, ...]
    check_objects: tuple[Path, ...]


@dataclass(frozen=True)
class Built:
    """An image that can be run in its own folder."""

    mode: Mode
    image: Path


def compile_project(
    bundle: SourceBundle,
    target: Target,
    mode: Mode,
    tools: Tools,
    folder: Path,
    check_sources: tuple[str, ...] | None = None,
) -> Compiled:
    """Write all sources into `folder` and compile each once. Errors: E0602 with the compiler's first complaint.

    check_sources: the check program's files, by default its main and the port for `mode`.
    """
    if check_sources is None:
        check_sources = ("verify/main.c", "verify/startup.c" if mode == "qemu" else "verify/host.c")
    write_files(folder, {**bundle.files, **verification_files(bundle, target)})
    models = model_sources(bundle)
    compiler = _compiler(target, mode, tools)
    with workers() as pool:
        more = file_flags(bundle) | dict.fromkeys(check_sources, (CHECK_FLAG,))
        jobs = [
            pool.submit(_compile, [*compiler, *more.get(source, ())], source, folder)
            for source in (*models, *check_sources)
        ]
        objects = tuple(result_of(job) for job in jobs)
    return Compiled(mode, folder, objects[: len(models)], objects[len(models) :])


def link_project(compiled: Compiled, target: Target, tools: Tools) -> Built:
    """Link the check program. Errors: E0602, for instance if the arena does not have the planned size."""
    host = compiled.mode != "qemu"
    image = compiled.folder / "verify" / ("check" if host else "check.elf")
    link_flags = () if target.toolchain is None else target.toolchain.link_flags
    options = ["-no-pie"] if host else [*target.gcc_flags, *link_flags]
    options += SANITIZE if compiled.mode == "debug" else ()
    objects = [str(path) for path in (*compiled.model_objects, *compiled.check_objects)]
    command = [_program(compiled.mode, tools), *options, *objects, "-o", image.name]
    _check_run(command, image.parent, "linking", (image,))
    return Built(compiled.mode, image)


def build_library(bundle: SourceBundle, tools: Tools, folder: Path) -> Path:
    """Build the generated C, without its check program, as a library of the host; return its path. Errors: E0602."""
    write_files(folder, bundle.files)
    program, more = _program("host", tools), file_flags(bundle)
    flags = [*COMPILE_FLAGS, *WARNING_FLAGS, *HOST_FLAGS, *LIBRARY_FLAGS, *_native(program, folder)]
    with workers() as pool:
        sources = model_sources(bundle)
        jobs = [pool.submit(_compile, [program, *flags, *more.get(name, ())], name, folder) for name in sources]
        objects = [str(result_of(job)) for job in jobs]
    library = folder / f"lib{bundle.interface.prefix}.so"
    _check_run([program, "-shared", *objects, "-o", library.name], folder, "linking", (library,))
    return library


def _native(program: str, folder: Path) -> tuple[str, ...]:
    """Return flags for instructions of this machine, if the compiler knows them.

    Fused multiply-add instructions are several times faster than calls of fmaf, with the same results.
    """
    (folder / "empty.c").write_text("typedef int empty;\n", encoding="utf-8")
    tried = run_program([program, *NATIVE_FLAGS, "-E", "empty.c"], folder, TOOL_TIMEOUT_S, "compiling")
    return NATIVE_FLAGS if tried.exit_code == 0 else ()


def _program(mode: Mode, tools: Tools) -> str:
    program = tools.cross_cc if mode == "qemu" else tools.host_cc
    if program is None:
        raise CompileError(
            "E0114", "verify", f"no C compiler for the {mode} check", "install gcc, or use --verify none"
        )
    return program


def _compiler(target: Target, mode: Mode, tools: Tools) -> list[str]:
    if mode != "qemu":
        sanitize = SANITIZE if mode == "debug" else ()
        return [_program(mode, tools), *COMPILE_FLAGS, *WARNING_FLAGS, *HOST_FLAGS, *sanitize]
    stack = ("-fstack-usage", CALL_GRAPH)
    return [_program(mode, tools), *target.gcc_flags, *COMPILE_FLAGS, *WARNING_FLAGS, *stack]


def _compile(compiler: list[str], source: str, folder: Path) -> Path:
    output = folder / Path(source).with_suffix(".o")
    command = [*compiler, "-I.", "-Iverify", "-c", source]

    def compile_now() -> None:
        size = (folder / source).stat().st_size
        limit = TOOL_TIMEOUT_S + size / _BYTES_PER_S
        made = [output.with_suffix(end) for end in (".o", ".ci")[: 1 + (CALL_GRAPH in compiler)]]
        _check_run([*command, "-o", str(output)], folder, f"compiling {source}", made, limit)

    compile_once(command, source, folder, compile_now)
    return output


_BYTES_PER_S = 4096
"""Bytes of C per second of the time limit: GCC takes a twentieth of that time on one busy core, for kernels of large
networks and for tables of weights."""


def _check_run(
    command: list[str], folder: Path, what: str, makes: Sequence[Path], timeout_s: float = TOOL_TIMEOUT_S
) -> None:
    """Run a compiler or linker in a folder. E0602 with its first complaint."""
    why = (
        f"{TOOL_TIMEOUT_S:.0f} s, and one for every {_BYTES_PER_S >> 10} KB of C" if timeout_s > TOOL_TIMEOUT_S else ""
    )
    finished = run_program(command, folder, timeout_s, what, makes=makes, why=why)
    if finished.exit_code != 0:
        if os.strerror(errno.ENOSPC) in finished.output:  # not the compiler's fault, nor ours
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        message = first_line(finished.output)
        too_big = any(text in message for text in ("overflowed by", "not fit in region", "do not fit the board"))
        hint = "too big for the check board: use --verify host" if too_big else "please report this with the model"
        raise CompileError("E0602", what, message, hint)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts below `folder`, making sub-folders as needed."""
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


# ---- sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlashSizes:
    """Bytes of all objects of a project; functions: bytes of every external function, by name."""

    code_bytes: int
    const_bytes: int
    functions: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Code and constants."""
        return self.code_bytes + self.const_bytes


def flash_sizes(bundle: SourceBundle, target: Target, tools: Tools) -> FlashSizes:
    """Compile for the target and add up. Errors: E0602."""
    with work_folder() as folder:
        objects = compile_project(bundle, target, "qemu", tools, folder, ()).model_objects
        infos = [read_object(path) for path in objects]
        functions = dict(functions_in(objects))
    return FlashSizes(sum(i.code_bytes for i in infos), sum(i.const_bytes for i in infos), functions)


def functions_in(objects: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yield (name, bytes) of every external function of these objects."""
    for path in objects:
        yield from ((function.name, function.size_bytes) for function in defined_functions(path) if function.external)
