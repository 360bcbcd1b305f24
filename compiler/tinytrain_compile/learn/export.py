"""`tinytrain-compile export`: the model file with what a device has learned in it.

The project says how the file was compiled; so it is compiled again, for this machine, and the checkpoint is loaded as
on the device, by the generated C. What was learned goes back into the file the way the import recorded. The file that
would be written is read again and judged (learn/export_check.py) before it is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tinytrain_compile.driver.pipeline import Progress, Project, Result, make_project
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.output_folder import replace_files
from tinytrain_compile.frontend.written.file import WrittenFile, data_name, written_file
from tinytrain_compile.learn.export_check import Agreement, check_export
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse import load_scheme, scheme_text
from tinytrain_compile.twin import Instance, Twin
from tinytrain_compile.verify import build_library, find_tools, work_folder


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
    with work_folder() as folder:
        path = folder / "scheme.toml"
        path.write_text(scheme, encoding="utf-8")
        left_out = options.data is None and _without_subspaces(path)
        project = _compiled(options, path, progress)
        progress("building the device for this machine", 0.6)
        library = build_library(project.bundle, find_tools(), folder)
        with Twin(Instance(library, project.bundle.interface), project.model, project.summary.train) as twin:
            _load(twin, checkpoint, left_out)
            progress("comparing the file with the device", 0.8)
            done = judged_file(project, twin, options, folder / place.path.name)
    place.write(done.file)
    return done


def judged_file(project: Project, twin: Twin, options: CompileOptions, path: Path) -> Exported:
    """Return the file with what a twin of options.model has learned, once it is judged. path: to try it out."""
    learned = twin.state_dict()
    written = written_file(options.model, path.name, project.model, learned)
    Place(path, True).write(written)
    agreement = check_export(project, twin, replace(options, model=path), learned)
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


def _compiled(options: CompileOptions, scheme: Path, progress: Progress) -> Project:
    """Compile the project again, without what only the board needs."""
    plain = replace(
        options, update=str(scheme), remat="off", stream="off", verify="none", given=options.given | {"update"}
    )
    made = make_project(plain, lambda what, share: progress(what, share * 0.6))
    assert not isinstance(made, Result)
    return made


def _load(twin: Twin, checkpoint: Path, left_out: bool) -> None:
    """Load a checkpoint. left_out: whether the project has fixed subspaces and the twin has none."""
    try:
        twin.load(checkpoint)
    except CompileError as problem:
        if problem.code != "E0105" or isinstance(problem.__cause__, OSError):
            raise
        way = "give a checkpoint of this project, and the model file that it was compiled from"
        way += ", with --data if that has made its subspaces" if left_out else ""
        raise CompileError("E0105", str(checkpoint), problem.what, way) from problem
