"""What a generated project takes of the target's flash, without running it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.target import Target
from tinytrain_compile.verify.build import compile_project
from tinytrain_compile.verify.elf import defined_functions
from tinytrain_compile.verify.symbols import read_object
from tinytrain_compile.verify.temporary import work_folder
from tinytrain_compile.verify.tools import Tools


@dataclass(frozen=True)
class FlashSizes:
    """Bytes of all objects of a project; functions: of every external function, by name."""

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
    """(name, bytes) of every external function of these objects."""
    for path in objects:
        yield from ((function.name, function.size_bytes) for function in defined_functions(path) if function.external)
