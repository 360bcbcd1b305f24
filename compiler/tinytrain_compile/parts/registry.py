"""Registry of parts. A part is imported only if it is requested (ADR 49)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.options.compile_options import CompileOptions

if TYPE_CHECKING:
    from tinytrain_compile.parts.part import Part

PARTS: Mapping[str, Callable[[CompileOptions, TrainGraph | None], bool]] = {
    "features": lambda options, _train: options.features == "on",
    "slices": lambda options, _train: options.slices != "off",
    "infer_open": lambda options, _train: options.slices == "infer",
    "listening": lambda options, _train: options.listen != "off",
    "plans": lambda options, _train: bool(options.plans),
    "guard": lambda options, _train: options.guard is not None,
    "input_lines": lambda options, _train: options.input_lines,
    "inference_only": lambda options, _train: options.inference_only,
}
"""Folder of parts/ -> condition for a project to have it, in the order of their fragments in the C. Those of --runtime,
which are requested by name, are in ir/runtime_parts.py."""


def asked_parts(options: CompileOptions) -> tuple[Part, ...]:
    """Make the parts that the options alone request."""
    return _parts(options, None)


def parts_of(options: CompileOptions, train: TrainGraph) -> tuple[Part, ...]:
    """Make the parts that a project of this training step has."""
    return _parts(options, train)


def _parts(options: CompileOptions, train: TrainGraph | None) -> tuple[Part, ...]:
    asked = tuple(_made(name, options) for name, is_on in PARTS.items() if is_on(options, train))
    return (*asked, *runtime_parts(options.runtime))


def runtime_parts(runtime: RuntimeParts) -> tuple[Part, ...]:
    """Make the parts of the loop around the step."""
    return tuple(_made(name, runtime) for name in runtime.names)


# By name, because an import statement would load every part to find out which are on.
def _made(name: str, asked: object) -> Part:
    part: type[Part] = import_module(f"tinytrain_compile.parts.{name}.part").PART
    return part(asked)
