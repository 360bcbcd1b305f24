"""Options that a model decides: how its file says that it is trained, and the number format it is made for."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import FileTraining, ImportedModel
from tinytrain_compile.ops.update import OPTIMIZER_OPTIONS, OPTIMIZERS
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions, taken
from tinytrain_compile.training import TrainingOptions

_SAID = sorted({*OPTIMIZER_OPTIONS, "loss", "optimizer", "weight_decay", "clip_norm"})
"""Options that a file which says how it is trained leaves nothing to say."""


def with_file_training(o: CompileOptions, model: ImportedModel) -> tuple[CompileOptions, tuple[str, ...]]:
    """Return the options with what the file says of its training, and remarks. E0113 for those that contradict it.

    --lr goes before the file's learning rate, which a program may set as well; --update may choose among what the file
    trains, else all of that is trained.
    """
    training = model.training
    if training is None:
        return o, ()
    update = o.update if "update" in o.given else "all"
    if not training.optimizer:
        return replace(o, update=update), training.notes
    for name in _SAID:
        if name in o.given:
            what = f"the file says how it is trained ({training.optimizer})"
            raise CompileError("E0113", OPTIONS[name].flag, what, "leave it out, or give the forward model")
    rate = o.learning_rate if "learning_rate" in o.given or training.learning_rate is None else training.learning_rate
    known = {name: value for name, value in training.settings.items() if name in OPTIONS}
    made = replace(o, optimizer=training.optimizer, learning_rate=rate, update=update, **known)  # type: ignore[arg-type]
    return made, (*training.notes, *_notes(o, training))


def _notes(o: CompileOptions, training: FileTraining) -> tuple[str, ...]:
    count = len(training.trained)
    notes = [f"training: the file says {training.optimizer}, of {count} weights"]
    if "update" in o.given:
        notes.append(f"--update {o.update} chooses among the {count} weights that the file trains")
    if training.learning_rate is None:
        notes.append(f"--lr: the file leaves the learning rate open; it is {o.learning_rate:g}")
    elif training.contract == 4 and o.batch > 1 and o.accumulate == "exact" and "learning_rate" not in o.given:
        what = f"its optimizer adds up gradients, --batch {o.batch} averages them"
        notes.append(
            f"--lr: {training.learning_rate:g} is the file's; {what}: --lr {o.batch * training.learning_rate:g}"
        )
    elif "learning_rate" in o.given:
        notes.append(f"--lr {o.learning_rate:g} goes before the file's learning rate, {training.learning_rate:g}")
    return tuple(notes)


def training_options(
    o: CompileOptions, model: ImportedModel, batch: int = 1, micro_batch: int = 1, fpu: bool = True
) -> TrainingOptions:
    """Return the options of training for so many samples an update, of which a step takes so many.

    fpu: whether the target has one. What the file says of its training overrides the options.
    """
    momentum = OPTIMIZERS[o.optimizer].momentum
    chosen = taken(
        TrainingOptions,
        o,
        batch=batch,
        micro_batch=micro_batch,
        momentum=o.momentum if momentum is None or "momentum" in o.given else momentum,
        raw_epsilon=o.epsilon_place == "raw",
        dropout=o.seed if o.dropout == "on" else None,
        integer=o.quant == "int8",
        fpu=fpu,
    )
    training = model.training
    if training is None or not training.optimizer:
        return chosen
    return replace(chosen, **training.settings, initial=training.initial)


def has_formats(model: ImportedModel) -> bool:
    """Tell whether the model says how its activations are stored (QDQ form, or QLinear operators)."""
    values = (*model.graph.inputs, *(value for node in model.graph.nodes for value in node.outputs))
    return model.quantised and any(value.quant is not None for value in values)


def with_number_format(options: CompileOptions, model: ImportedModel) -> tuple[CompileOptions, tuple[str, ...]]:
    """Return the options with --quant decided, and a note if the user left it open and gets integers.

    E0113 for a flag that only int8 has a meaning for, given with a float model.
    """
    if options.quant != "auto":
        return options, ()
    if has_formats(model):
        note = "int8, because the model is quantised (QDQ): --quant fp32 trains it in float32"
        return replace(options, quant="int8"), (note,)
    given = options.int8_flags or (("--calib",) if options.calib is not None else ())
    check_int8_flags("fp32", given)
    return replace(options, quant="fp32"), ()


def check_int8_flags(quant: str, given: tuple[str, ...]) -> None:
    """Raise E0113 for a flag that only int8 has a meaning for."""
    if quant == "fp32" and given:
        way = f"add --quant int8, or leave {given[0]} out"
        raise CompileError("E0113", given[0], "has no meaning for --quant fp32 (auto, for a float model)", way)
