"""Training graphs: the parameters are those that the file trains, with the optimizer state that it begins with."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.training_file.proto import refused
from tinytrain_compile.frontend.weights.parameters import Trainables
from tinytrain_compile.ir.imported import FileTraining, ImportedModel
from tinytrain_compile.ir.types import Array


def as_the_file_says(trainables: Trainables, training: FileTraining, options: FrontendOptions) -> Trainables:
    """Return what the file trains, instead of what rules say; E0113 for options that would say it again."""
    if options.trainable or options.frozen:
        flag = "--trainable" if options.trainable else "--frozen"
        raise CompileError("E0113", flag, "the file says which weights it trains", "leave it out, or use --update")
    choices = {
        name: replace(choice, trained=name in training.trained, why="the file says so")
        for name, choice in trainables.choices.items()
    }
    return Trainables(choices, trainables.remarks)


def trained_as_the_file(ctx: ImportContext, model: ImportedModel, training: FileTraining) -> ImportedModel:
    """Return the model with the file's trained set. E0231 for a weight that is no parameter of the graph.

    A weight may be several parameters: those of a recurrent layer are cut into gates.
    """
    wanted = frozenset(training.trained)
    found = {value: wanted & _names(ctx, model, value.name) for value in model.graph.parameters}
    missing = [name for name in training.trained if not any(name in names for names in found.values())]
    if missing:
        what = "the file trains it, and it is no weight of a layer of its own here"
        raise refused(f"weight {missing[0]}", what, "--batch-norm keep, where it belongs to a normalisation")
    kept = tuple(value for value, names in found.items() if names)
    initial: dict[tuple[str, str], Array] = {}
    for value in kept:
        for (weight, kind), array in training.initial.items():
            if weight in found[value] and array.any():
                initial[value.name, kind] = ctx.laid_like(value.name, array)
    contract = training.contract
    graph = replace(model.graph, parameters=kept)
    return replace(model, graph=graph, contract=contract, training=replace(training, initial=initial))


def _names(ctx: ImportContext, model: ImportedModel, parameter: str) -> frozenset[str]:
    """Return the tensors of the file that a parameter may be named after, or whose numbers it holds."""
    source = model.sources.get(parameter)
    return frozenset((ctx.sources.get(parameter, ""), *(() if source is None else (source.tensor.name,))))
