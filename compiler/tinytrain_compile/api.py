"""The Python API: `import tinytrain_compile as tt`, then tt.compile(..) and the twin of what it has made."""

from __future__ import annotations

import inspect
import json
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tinytrain_compile.cli.python_inputs import Model, as_files, checked_path
from tinytrain_compile.cli.python_options import options_from, options_help
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project, Result
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.output_folder import write_output
from tinytrain_compile.ir.learning import MOST_WARM_UP, SCHEDULES, Finding, RateSchedule
from tinytrain_compile.ir.runtime_parts import MAX_SAMPLES
from tinytrain_compile.learn.finetune import finetune as search
from tinytrain_compile.options.effort import ORDERS, FinetuneEffort, StreamOption
from tinytrain_compile.reference.instance import SAID, ReferenceInstance
from tinytrain_compile.torch_export import c_name, exported
from tinytrain_compile.twin import Instance, Twin
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools, work_folder


class Compiled:
    """A model, compiled. report: what report.json says; files: the output folder, path -> text or bytes."""

    def __init__(self, project: Project) -> None:
        self.files: Mapping[str, str | bytes] = project.files
        self.report: dict[str, Any] = json.loads(project.files["report.json"])
        self.project = project
        self._library: Path | None = None

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, with a word on where the calls of a twin are."""
        of_twin = f"; a twin has it: compiled.twin().{name}" if hasattr(Twin, name) else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{of_twin}", name=name, obj=self)

    def save(self, folder: Path | str, *, force: bool = False) -> tuple[str, ...]:
        """Write the output folder as the command does; the paths in it. force: overwrite files of others."""
        return write_output(checked_path("save", folder), self.files, self.project.inputs, force).paths

    def twin(self, plan: int = -1) -> Twin:
        """Return a new device on the desk, with the weights of the file. Any number may live side by side.

        Without a C compiler it computes by the numpy reference, with a warning that says so.

        plan: its arena is that of this plan of --plans, by size; -1: the largest.
        """
        project = self.project
        plans = (*project.bundle.smaller, project.bundle.interface)
        if not -1 <= plan < len(plans):
            raise CompileError("E0101", f"plan={plan}", f"this build has {len(plans)}, from 0", "leave it out")
        interface, train = plans[plan], project.summary.train
        if find_tools().host_cc is None and interface.trains:
            warnings.warn(SAID, stacklevel=2)
            listening = project.summary.plan.listening
            instance = ReferenceInstance(train.on_windows, project.bundle.interface, listening)
            return Twin(instance, project.model, train)
        return Twin(Instance(self.library(), interface), project.model, train)

    def library(self) -> Path:
        """Return the generated C as a library of this machine; it lives as long as this object.

        Errors: E0114 if no C compiler is installed.
        """
        if self._library is None:
            kept = ExitStack()
            weakref.finalize(self, kept.close)
            self._library = build_library(self.project.bundle, find_tools(), kept.enter_context(work_folder()))
        return self._library


def compile(model: Model, *, arena: int | str | None = None, target: str = "cortex-m7", **options: Any) -> Compiled:
    """Compile an ONNX model as the command does, into memory.

    model: the path of a file, its bytes, or an onnx.ModelProto. Raises CompileError with the command's ids.
    """
    for name in options.keys() & {"out", "force"}:
        way = "leave it out; then compiled.save(folder) writes one, with force=True over files of others"
        raise CompileError("E0101", f"{name}=", "compile writes no folder", way)
    with as_files(model, {"arena": arena, "target": target, **options}) as (path, given):
        found = make_project(options_from(path, given))
    if isinstance(found, Result):
        raise CompileError("E0113", "compile", "a dry run makes no project", "leave dry_run and dump_after out")
    return Compiled(found)


def from_torch(
    module: Any, example: Any, *, arena: int | str | None = None, target: str = "cortex-m7", **options: Any
) -> Compiled:
    """Compile a PyTorch module: export it so that nothing is folded and parameters keep their names.

    example: an input, or a tuple of inputs, of any number of samples; only shapes and types count. The module is
    exported as it infers (`eval()`), and is left as it was. name: its class, unless options say another. Needs PyTorch
    and onnxscript (`pip install 'tinytrain-compile[torch]'`). Raises CompileError.
    """
    name = options.pop("name", None) or c_name(module)
    model = exported(module, example, options.get("dropout") == "on")
    return compile(model, arena=arena, target=target, name=name, **options)


def finetune(
    model: Model,
    data: Any,
    *,
    epochs: int = 30,
    seeds: int = 3,
    replay: int = 100,
    batches: Sequence[int] = (),
    clips: Sequence[float] = (0.0, 1.0),
    jobs: int = -1,
    schedule: RateSchedule = "cosine",
    per_layer: bool = False,
    warm_ups: Sequence[float] = (0.0,),
    averages: Sequence[int] = (0,),
    order: StreamOption = "off",
    out: Path | str = "finetune.toml",
    **options: Any,
) -> Finding:
    """Try training on own samples as `tinytrain-compile finetune` does, by joblib's backend (`joblib.parallel_config`).

    model: as for `compile`. data: an .npz, arrays or batches of x and y; x_test, y_test, x_old and y_old are optional.
    options: of a compilation, as for `compile`. out: a name beside which what was tried is kept until all of it is
    done; nothing else is written. Raises CompileError.
    """
    _check_counts(epochs=epochs, seeds=seeds, replay=replay, jobs=jobs)
    if schedule not in SCHEDULES:
        raise CompileError("E0101", "schedule", f"{schedule!r} is none of {', '.join(SCHEDULES)}", "give one of them")
    if not warm_ups or not all(0 <= share <= MOST_WARM_UP for share in warm_ups):
        raise CompileError("E0101", "warm_ups", f"not shares up to {MOST_WARM_UP}", "give some, or leave it out")
    if not averages or not all(0 <= count <= MAX_SAMPLES for count in averages):
        raise CompileError("E0101", "averages", f"not numbers up to {MAX_SAMPLES}", "give some, or leave it out")
    if order not in ORDERS:
        raise CompileError("E0101", "order", f"{order!r} is none of {', '.join(ORDERS)}", "give one of them")
    norms = tuple(batches), tuple(clips), per_layer
    effort = FinetuneEffort(epochs, seeds, *norms, tuple(warm_ups), tuple(averages), replay, schedule, order, jobs)
    with as_files(model, {"data": data, **options}) as (path, given):
        return search(options_from(path, given), effort, checked_path("out", out), lambda _what, _share: None)


_OPTIONS = """
Example:

    import tinytrain_compile as tt

    compiled = tt.compile("model.onnx", arena="64KB", update="last:2", data=(x, y))
    compiled.save("out")

Options are those of the command by their long names, `_` for `-`. Several values are a list, NAME=VALUE pairs a dict.
Arrays are a dict by name ({"x": x, "y": y}), (x, y), x alone, or an iterable of such batches, as a DataLoader is.

"""
compile.__doc__ = f"{inspect.cleandoc(compile.__doc__ or '')}\n{_OPTIONS}{options_help()}\n"
from_torch.__doc__ = f"{inspect.cleandoc(from_torch.__doc__ or '')}\n\noptions: those of `compile`.\n"


def _check_counts(**counts: Any) -> None:
    """Raise E0101 for an argument that is not a whole number."""
    for name, value in counts.items():
        if not isinstance(value, int):
            raise CompileError("E0101", f"{name}=", f"{value!r} is not a whole number", f"for example {name}=3")
