"""The files of a project, how they are called, and what they record of the options that made them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from tinytrain_compile.emit.c_text import c_identifier
from tinytrain_compile.emit.example import example_paths
from tinytrain_compile.emit.packages import SOURCES, PackageFacts, package_files
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import read_text
from tinytrain_compile.ir.runtime_parts import JOURNAL
from tinytrain_compile.ir.stages import Samples, SourceBundle, TrainGraph
from tinytrain_compile.options.compile_options import OF_THE_MODEL, OPTIONS, CompileOptions
from tinytrain_compile.target.loader import list_targets
from tinytrain_compile.target.model import BoardNames, Target

REPORT = "report.json"
_RECORDED = OF_THE_MODEL - {"data", "gains", "pareto", "target", "batch", "accumulate", "activations", "rank_error"}
"""What decides which numbers a step makes and how they are stored. Samples and targets come and go; what layers keep of
their inputs is part of the scheme."""
_OF_CLIPPING = frozenset(("batch", "accumulate"))
"""With --clip-norm these decide whether the squares of the step before are stored."""


def recorded(options: CompileOptions, told: bool, train: TrainGraph) -> dict[str, Any]:
    """Return the options that decide what a checkpoint means, by long names, `_` for `-`; of a file its name alone.

    told: the model says how it is trained.

    With a journal its tensor is in the checkpoint, and an audit makes every update again by the same calls.
    A subspace of samples that follows is as long as a step takes samples: where there may be one, their number counts.
    """
    found: dict[str, Any] = {}
    names = _RECORDED | (_OF_CLIPPING if options.clip_norm is not None else frozenset[str]())
    if train.micro_batch > 1 and any(item.state_bytes for item in train.low_rank):
        found |= {"batch": train.batch, "micro_batch": train.micro_batch}
    if JOURNAL in options.runtime.names:
        found |= {"runtime": JOURNAL, "batch": train.batch}
        found |= {"micro_batch": train.micro_batch} if train.batch > 1 else {}
    for item in fields(CompileOptions):
        value, known = getattr(options, item.name), item.name in options.given
        if item.name in names and (known or (value != item.default and not told)) and value not in (None, (), {}):
            found[_long(item.name)] = _plain(value)
    return found


def _long(name: str) -> str:
    return OPTIONS[name].flag.removeprefix("--").replace("-", "_")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return {key: list(each) for key, each in cast("Mapping[str, tuple[int, ...]]", value).items()}
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def read_project(folder: Path, files: Mapping[str, Path | None]) -> tuple[dict[str, Any], str]:
    """Return the options that a project was made with, as `tinytrain_compile.compile` takes them, and its scheme.

    target is the core, on which a step's float32 numbers depend (has it a fused multiply-add?); without a board's
    memories, which are no limit on the desk. It is left out if the target was a file.
    files: those that the caller has again, by the names of their options. Raises CompileError E0105, and E0101 for a
    file that was not given again.
    """
    report = folder / REPORT

    def wrong(why: str, way: str = "give the output folder of that build with --project") -> CompileError:
        return CompileError("E0105", str(report), why, way)

    text = read_text(report, wrong)
    try:
        content: Any = json.loads(text)
        options, scheme = dict(content["options"]), str(content["scheme"])
        core = content["target"] if content["board"] is None else content["board"]["core"]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        way = "compile again with the options of that build, and name the new folder (docs/upgrading.md)"
        raise wrong("records no options: 0.1.0 wrote it, or it is damaged", way) from problem
    unknown = sorted(set(options) - {_long(name) for name in _RECORDED | _OF_CLIPPING | {"micro_batch", "runtime"}})
    if unknown:
        raise wrong(f"has the unknown option {unknown[0]!r}")
    for name, path in files.items():
        if path is None and name in options:
            flag = f"--{name.replace('_', '-')}"
            raise CompileError("E0101", flag, f"the project was made with {options[name]}", f"give {flag} FILE again")
        if path is not None:
            options[name] = path
    return options | ({"target": core} if core in list_targets() else {}), scheme


def expected_files(options: CompileOptions) -> tuple[str, ...]:
    """Name the files that every run writes; the output folder is checked for them before anything takes time."""
    prefix, place = prefix_of(options), _place(options)
    made = (f"{prefix}_{name}" for name in ("train.h", "train.c", "internal.h", "kernels.c", "weights.c"))
    sources = (f"{place}{name}" for name in ("tt_runtime.h", *made))
    example = example_paths(options.package, prefix, not options.inference_only)
    build = () if options.package else ("CMakeLists.txt",)
    return ("report.json", "plan.json", *build, *sources, *example)


def project_files(bundle: SourceBundle, options: CompileOptions, target: Target) -> Mapping[str, str]:
    """Return the C project in the form that is asked for: path in the output folder -> text."""
    if options.package is None:
        return {**bundle.files, **bundle.example(None, BoardNames())}
    return package_files(options.package, bundle, PackageFacts(options.model.stem, target))


def check_files(
    bundle: SourceBundle, samples: Samples, options: CompileOptions, target: Target, batch: int
) -> dict[str, str | bytes]:
    """Return the check program, beside the sources, and the samples that it reads."""
    from tinytrain_compile.verify.firmware import verification_files, verification_input

    files: dict[str, str | bytes] = dict(verification_files(bundle, target, _place(options)))
    files["verify/vectors.bin"] = verification_input(bundle.interface, samples, options.verify_steps, batch, None)
    return files


def _place(options: CompileOptions) -> str:
    return SOURCES if options.package else ""


def prefix_of(options: CompileOptions) -> str:
    """Return --name, or the name of the model's file; CompileError E0101 for one that C or a library has already."""
    if options.name and c_identifier(options.name) != options.name:
        what = f"{options.name!r} cannot stand in front of C names"
        raise CompileError("E0101", "--name", what, f"for example {c_identifier(options.name)}")
    return options.name or c_identifier(options.model.stem)
