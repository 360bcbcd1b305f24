"""What the options ask of training."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import FileTraining, ImportedModel
from tinytrain_compile.ops.update import OPTIMIZERS
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.training import TrainingOptions

_SAID = ("loss", "optimizer", "momentum", "nesterov", "dampening", "betas", "alpha", "centered", "epsilon", "clip_norm")
"""Options that a file which says how it is trained leaves nothing to say; so do epsilon_place and weight_decay."""


def with_file_training(o: CompileOptions, model: ImportedModel) -> tuple[CompileOptions, tuple[str, ...]]:
    """The options with what the file says of its training, and remarks. E0101 for those that would contradict it.

    --lr goes before the file's learning rate, which a program may set as well; --update may choose among what the file
    trains, else all of that is trained.
    """
    training = model.training
    if training is None:
        return o, ()
    update = o.update if "update" in o.given else "all"
    if not training.optimizer:
        return replace(o, update=update), training.notes
    for name in (*_SAID, "epsilon_place", "weight_decay"):
        if name in o.given:
            what = f"the file says how it is trained ({training.optimizer})"
            raise CompileError("E0101", OPTIONS[name].flag, what, "leave it out, or give the forward model")
    rate = o.learning_rate if "learning_rate" in o.given or training.learning_rate is None else training.learning_rate
    names = ("momentum", "nesterov", "dampening", "betas", "epsilon", "weight_decay")
    known = {name: training.settings[name] for name in names if name in training.settings}
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
    """For so many samples an update, of which a step takes so many. fpu: whether the target has one."""
    chosen = replace(_from_options(o, batch, micro_batch), fpu=fpu)
    training = model.training
    if training is None or not training.optimizer:
        return chosen
    return replace(chosen, **training.settings, initial=training.initial)


def _from_options(o: CompileOptions, batch: int, micro_batch: int) -> TrainingOptions:
    own = OPTIMIZERS[o.optimizer].momentum
    momentum = o.momentum if own is None or "momentum" in o.given else own
    return TrainingOptions(
        loss=o.loss,
        optimizer=o.optimizer,
        learning_rate=o.learning_rate,
        momentum=momentum,
        weight_decay=o.weight_decay,
        batch=batch,
        accumulate=o.accumulate,
        micro_batch=micro_batch,
        nesterov=o.nesterov,
        dampening=o.dampening,
        alpha=o.alpha,
        centered=o.centered,
        betas=o.betas,
        epsilon=o.epsilon,
        raw_epsilon=o.epsilon_place == "raw",
        clip_norm=o.clip_norm,
        clip_per=o.clip_per,
        dropout=o.seed if o.dropout == "on" else None,
        seed=o.seed,
        integer=o.quant == "int8",
    )
