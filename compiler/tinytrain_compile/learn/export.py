"""`tinytrain-compile export`: the model file with what a device has learned in it.

The project says how the file was compiled; so it is compiled again, for this machine, and the checkpoint is loaded as
on the device, by the generated C. What was learned goes back into the file the way the import recorded. The file that
would be written is read again and judged before it is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tinytrain_compile.data.samples import in_input_slot, random_samples
from tinytrain_compile.driver.file_check.check import check_file
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.driver.pipeline import Project, Result, imported, make_project, stored
from tinytrain_compile.driver.progress import Progress
from tinytrain_compile.emit.checkpoint import ANOTHER_BUILD
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.output_folder import replace_files
from tinytrain_compile.frontend import EvaluatorLacksError
from tinytrain_compile.frontend.file.foreign import is_tflite
from tinytrain_compile.frontend.written.file import data_name, written_file
from tinytrain_compile.frontend.written.result import WrittenFile
from tinytrain_compile.ir.imported import FileNumbers, ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.export_outputs import (
    OnSamples,
    compare,
    device_outputs,
    file_outputs,
    litert_outputs,
    own_samples,
)
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse import load_scheme, scheme_text
from tinytrain_compile.twin import Instance, Twin
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools, work_folder


@dataclass(frozen=True, eq=False)
class Exported:
    """tensors: of the file that have learned, and how many numbers of each; notes: what the user should know."""

    tensors: Mapping[str, int]
    agreement: Agreement
    notes: tuple[str, ...]
    file: WrittenFile


@dataclass(frozen=True)
class Place:
    """Where the file goes. force: whatever file is there."""

    path: Path
    force: bool

    def check(self) -> None:
        """Raise E0104 for what may not be written."""
        for path in (self.path, self.path.with_name(data_name(self.path.name))):
            if path.is_dir() or not path.resolve().parent.is_dir():
                what = "is a folder" if path.is_dir() else "its folder is not there"
                raise CompileError("E0104", str(path), what, "name a file in a folder that can be written")
            if os.path.lexists(path) and not self.force:
                raise CompileError("E0104", str(path), "is there already", "choose another name, or add --force")

    def write(self, file: WrittenFile) -> None:
        """Write the model, and its external data before it."""
        files = {self.path.with_name(data_name(self.path.name)): file.data, self.path: file.model}
        try:
            replace_files({path: content for path, content in files.items() if content})
        except OSError as problem:
            what = problem.strerror or "cannot be written"
            raise CompileError("E0104", str(self.path), what, "name a file that can be written") from problem


def export(options: CompileOptions, scheme: str, checkpoint: Path, place: Place, progress: Progress) -> Exported:
    """Write options.model with what a checkpoint has learned.

    options, scheme: of the project that the checkpoint is of. Raises CompileError; then nothing was written.
    """
    place.check()
    if {options.model.suffix, place.path.suffix} == {".onnx", ".tflite"}:
        what = f"{options.model.name} has another format, which stays"
        raise CompileError("E0104", str(place.path), what, f"name a file *{options.model.suffix}")
    with work_folder() as folder:
        path = folder / "scheme.toml"
        path.write_text(scheme, encoding="utf-8")
        left_out = options.data is None and _without_subspaces(path)
        project = compiled_again(options, path, progress)
        progress("building the device for this machine", 0.6)
        library = build_library(project.bundle, find_tools(), folder)
        with Twin(Instance(library, project.bundle.interface), project.model, project.summary.train) as twin:
            load_checkpoint(twin, checkpoint, left_out, options.calib is not None)
            progress("comparing the file with the device", 0.8)
            done = judged_file(project, twin, options, folder / place.path.name)
    place.write(done.file)
    return done


def judged_file(project: Project, twin: Twin, options: CompileOptions, path: Path) -> Exported:
    """Return the file with what a twin of options.model has learned, once it is judged. path: to try it out."""
    learned = twin.state_dict()
    written = written_file(options.model, path.name, project.model, learned)
    Place(path, True).write(written)
    agreement = check_export(project, twin, replace(options, model=path), written.learned)
    initial = {source.tensor.name: source.tensor.initial for source in project.model.sources.values()}
    moved = {name: int((array != initial[name]).sum()) for name, array in learned.items()}
    return Exported(moved, agreement, (*written.notes, *agreement.notes), written)


def _without_subspaces(path: Path) -> bool:
    """Take fixed subspaces, which samples make, out of a scheme file; whether it had any.

    They are no state, and only in some int8 projects does any that is depend on them.
    """
    entries = load_scheme(path)
    exact = [replace(one, activation="", ranks=()) if one.activation == "subspace" else one for one in entries]
    path.write_text(scheme_text(exact, ""), encoding="utf-8")
    return exact != list(entries)


def compiled_again(options: CompileOptions, scheme: Path, progress: Progress) -> Project:
    """Compile the project again, without what only the board needs."""
    plain = replace(
        options, update=str(scheme), remat="off", stream="off", verify="none", given=options.given | {"update"}
    )
    try:
        made = make_project(plain, lambda what, share: progress(what, share * 0.6))
    except CompileError as problem:
        if problem.code not in ("E0301", "E0302"):
            raise
        what = f"is not the model of this project: {problem.where} {problem.what}"
        way = "give the model file that the project was compiled from, or its project with --project"
        raise CompileError("E0105", options.model.name, what, way) from problem
    assert not isinstance(made, Result)
    return made


def load_checkpoint(twin: Twin, checkpoint: Path, left_out: bool, calibrated: bool) -> None:
    """Load a checkpoint. left_out: whether the project has fixed subspaces and the twin has none.

    calibrated: whether --calib decided its scales.
    """
    try:
        twin.load(checkpoint)
    except CompileError as problem:
        if not problem.what.startswith(ANOTHER_BUILD):
            raise
        files = ["the model file", *["the same --calib file"] * calibrated]
        files += ["--data, if that has made its subspaces"] * left_out
        way = f"give with --project the folder of the build that saved it, and {', '.join(files)} of that build"
        raise CompileError("E0105", str(checkpoint), problem.what, way) from problem


_FLOAT = (
    "the file computes in float32 what the device computes in int8, whose activations stop at the ends of their ranges"
)
_COMPARE = "; --data FILE.npz compares the two on your samples"
SAMPLES = 4
"""On which the file and the device are compared: each runs the whole file in onnx.reference."""
TOLERANCE = 1e-5
"""Tolerance of float32 outputs: |file - twin| <= TOLERANCE max(1, max |twin|)."""


@dataclass(frozen=True)
class Agreement:
    """outputs: the largest difference of an output from the twin's; None where the evaluator lacks an operator.

    largest: of the twin's outputs. steps: the largest of a tensor of a quantised file, in its steps. notes: what
    storing has rounded, and the like. on_samples: on the user's samples, if there are any. litert: as `outputs`, of a
    .tflite file as LiteRT runs it; None without.
    """

    outputs: float | None
    largest: float
    steps: float | None
    notes: tuple[str, ...]
    on_samples: OnSamples | None = None
    litert: float | None = None


def check_export(project: Project, twin: Twin, options: CompileOptions, learned: Mapping[str, Array]) -> Agreement:
    """Judge options.model, the file that would be written. E0606 where it is not what the twin has learned."""
    again = _read_again(project.model, options, learned)
    own = None if options.data is None else own_samples(options.data, project.model, project.one, twin)
    ours = None if own is None else device_outputs(twin, own, project.one)  # before its numbers are rounded below
    notes = _as_learned(project.model, again, learned)
    now = twin.state_dict()
    if notes or any(
        (now[name] != numbers).any() for name, numbers in learned.items()
    ):  # the device, with the numbers that the file has room for
        tensors = _tensors(again)
        twin.load_state_dict({name: tensors[name].initial for name in learned})
    train, quant = project.one, project.summary.quant
    samples = random_samples(train, SAMPLES, options.seed, project.model)
    graph = replace(train.graph, constants={**train.graph.constants, **twin.state_dict(raw=True)})
    held, checked = replace(train, graph=graph), replace(options, quant=quant)
    if not train.integer:
        model = stored(again, checked)
        found = check_file(model, model.graph, held, samples, checked)
    elif again.quantised:
        found = check_file(project.model, None, held, samples, checked)
    else:
        found = check_file(again, again.graph, held, samples, checked)
        notes.append(_FLOAT + ("" if options.data is not None else _COMPARE))
    exact = not train.integer and not again.quantised
    error, largest, litert = _outputs_differ(twin, again, held, samples, checked, exact)
    if isinstance(litert, EvaluatorLacksError):
        notes.append(f"the outputs were not compared with LiteRT's: {litert}")
    if error is None:
        notes.append("the outputs were not compared: onnx.reference cannot run the whole file")
    on_samples = None
    if own is not None and ours is not None and error is not None:
        on_samples = compare(own, ours, again, held, checked)
    by_litert = None if isinstance(litert, EvaluatorLacksError) else litert
    return Agreement(error, largest, found.steps, tuple(notes), on_samples, by_litert)


def _read_again(model: ImportedModel, options: CompileOptions, learned: Mapping[str, Array]) -> ImportedModel:
    """Read the file as it was imported, but for its numbers: rules that look at these do not choose parameters anew."""
    chosen = {choice.name: choice.trained for choice in model.choices} | dict.fromkeys(learned, True)
    return imported(replace(options, classes=None, untie=False, trainable=(), frozen=()), chosen)


def _tensors(model: ImportedModel) -> dict[str, FileNumbers]:
    return {source.tensor.name: source.tensor for source in model.sources.values()}


def _as_learned(model: ImportedModel, again: ImportedModel, learned: Mapping[str, Array]) -> list[str]:
    """Read back, the file holds what was learned, as it rounds it, and all else as it was. Notes on that rounding."""
    held, rounded = _tensors(again), dict[str, list[str]]()
    for name, wanted in learned.items():
        if name not in held or held[name].initial.shape != wanted.shape:
            raise _differs(name, "is not read back as it was written")
        off = np.abs(held[name].initial.astype(np.float64) - wanted)
        step = _step(held[name], wanted)
        if (off > step / 2).any():
            what = f"a number that was learned ({wanted.reshape(-1)[np.argmax(off)]:.6g}) is beyond what the file holds"
            raise CompileError("E0112", f"weight {name}", what, "train at a lower rate, or export the float model")
        if (off > step / 64).any():
            rounded.setdefault(held[name].kind, []).append(name)
    for name, array in model.graph.constants.items():
        found = again.graph.constants.get(name)
        wanted = array
        if name in model.sources and model.sources[name].tensor.name in learned:
            wanted = model.sources[name].in_graph(held[model.sources[name].tensor.name].initial)
        if found is None or not np.array_equal(found, wanted):
            raise _differs(name, "is read back with other numbers")
    return [f"rounded to {kind}, the nearest that it has: {_listed(names)}" for kind, names in rounded.items()]


def _step(tensor: FileNumbers, real: Array) -> Array:
    """Return how far numbers of a tensor of the file are apart, next to these.

    0 if all of float32 are numbers of it.
    """
    close = np.abs(real.astype(np.float64))
    if tensor.stored is not None:  # and both were rounded to float32
        return tensor.stored.scale + close * 2.0**-22
    return np.zeros_like(close) if tensor.kind in ("float32", "float64") else close * 2.0**-7 + 2.0**-23


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")


def _outputs_differ(
    twin: Twin, model: ImportedModel, train: TrainGraph, samples: Samples, options: CompileOptions, exact: bool
) -> tuple[float | None, float, float | EvaluatorLacksError | None]:
    """Return how far outputs are from the twin's, the largest of the twin's, and how far they are as LiteRT runs it.

    The first is None where the evaluator lacks an operator. The last is why LiteRT does not run it, and None for an
    ONNX file. E0606 for a difference that is too large, if `exact`.
    """
    values = ImportedValues(model, train, None)
    raw = twin.instance.infer(in_input_slot(twin.instance.interface, samples.x))
    ours = [twin.as_output(each[None]) for each in raw]
    largest = max(float(np.abs(one).max()) for one in ours)
    each = [values.onnx_inputs(samples.x[at : at + 1]) for at in range(len(samples.x))]
    litert: float | EvaluatorLacksError | None = None
    if is_tflite(options.model):
        found = litert_outputs(options, model, each)
        litert = found if isinstance(found, EvaluatorLacksError) else max(map(_distance, ours, found))
    try:
        theirs = file_outputs(options, model, each)
    except EvaluatorLacksError:
        return None, largest, litert
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        error = _distance(one, other)
        if exact and not error <= TOLERANCE * max(1.0, float(np.abs(one).max())):
            raise _differs(model.output_name, f"an output differs from the device's by {error:.3g}")
        worst = max(worst, error)
    return worst, largest, litert


def _distance(ours: Array, theirs: Array) -> float:
    return float(np.abs(ours.astype(np.float64) - theirs[: len(ours)].reshape(ours.shape)).max())


def _differs(name: str, what: str) -> CompileError:
    return CompileError("E0606", name, what, "please report this with the model and the checkpoint")
