"""`--inference-only`: of a training step what its outputs need, and the state that this reads.

The step is built as the training build has it, because it says what a checkpoint holds; then all is left out that an
inference does not need. What is left is planned, lowered and written like any other graph (ADR 41).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.emit.checkpoint import checkpoint_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Samples, TrainedPart, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.option import meant_kilobytes
from tinytrain_compile.reference.rounding import StepwiseReference
from tinytrain_compile.reference.trainer import Trainer, run_inference
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.verify.compare import LoadedReference, ReferenceRun

FLAG = "--inference-only"


def inference_candidate(planner: Planner) -> Candidate:
    """Return the inference that belongs to the training step of --update, planned. E0113 where it reads nothing
    trained."""
    options = planner.options
    update = resolve_update(planner.model.graph, options.update)
    without_dropout = planner.with_options(dropout="off").train(update)
    if (options.activations != "exact" or update.activations) and options.micro_batch not in (None, 1):
        what = "ranks of low-rank copies are state, and those of several samples in a step are others"
        raise CompileError("E0113", FLAG, what, "leave --micro-batch out here and in the build that trains")
    inference = inference_of(planner.train(update), without_dropout)
    if not inference.graph.state:
        what = "an inference reads nothing that is trained"
        raise CompileError("E0113", f"{FLAG} --update {options.update}", what, "name layers before the output")
    return planner.planned(update, planner.heard(inference))


def inference_of(train: TrainGraph, one: TrainGraph) -> TrainGraph:
    """Return the forward pass alone of a step of one sample. one: the same step without dropout."""
    graph = one.graph
    needed = graph.ancestors(graph.outputs)
    nodes = tuple(node for node in graph.nodes if node.name in needed)
    read = {value.name for node in nodes for value in node.inputs}
    forward = replace(
        graph,
        nodes=nodes,
        inputs=one.data,
        constants={name: data for name, data in graph.constants.items() if name in read},
        parameters=tuple(value for value in graph.parameters if value.name in read),
        state=tuple(value for value in graph.state if value.name in read),
        accumulators=(),
        updates=(),
        guard="",
    )
    return TrainGraph(
        forward,
        forward.outputs[0],
        one.label,
        one.logits,
        one.learning_rate,
        integer=one.integer,
        formats=one.formats,
        forms=one.forms,
        terms=one.terms,
        identity=train.identity,
        trained={name: _without_fraction(part, read) for name, part in train.trained.items() if name in read},
        reads_state_of=train,
        stored_output=train.stored_output,
    )


def _without_fraction(part: TrainedPart, read: set[str]) -> TrainedPart:
    """Return a parameter by its integers alone, where an inference reads no more of it."""
    if part.unit is None or part.unit.fraction in read:
        return part
    return replace(part, unit=replace(part.unit, fraction=""))


def trained_state(train: TrainGraph, samples: Samples, steps: int) -> dict[str, Array]:
    """Return what so many steps of the numpy reference make of the state."""
    trainer, count = Trainer(train), len(samples.x)
    for step in range(steps):
        chosen = [(step * train.batch + i) % count for i in range(train.batch)]
        trainer.step(samples.x[chosen], samples.y[chosen])
    return trainer.state


def with_checkpoint(
    train: TrainGraph, samples: Samples, options: CompileOptions
) -> tuple[Samples, LoadedReference | None]:
    """Return the samples with a checkpoint that an inference loads, and what that is compared with: numpy has trained
    it.

    With --verify none it is of the initial state. A training step loads none.
    """
    whole = train.reads_state_of
    if whole is None:
        return samples, None
    state = trained_state(whole, samples, 0 if options.verify == "none" else options.verify_steps)
    loaded = {value.name: state[value.name] for value in train.graph.state}
    reference = _reference(train, samples, loaded, options.seed)
    return replace(samples, checkpoint=checkpoint_of(whole, state)), LoadedReference(reference, loaded)


def _reference(
    train: TrainGraph, samples: Samples, loaded: dict[str, Array], seed: int
) -> ReferenceRun | StepwiseReference:
    """Return all that a run gives, of integers; what judges it, of float32."""
    if not train.integer:
        return StepwiseReference(train, samples, seed)
    first = {value.name: train.graph.constants[value.name] for value in train.graph.state}
    before, after = (run_inference(train, samples.x[:1], state) for state in (first, loaded))
    return ReferenceRun((), before, after, (loaded,))


def check_room(candidate: Candidate, options: CompileOptions, details: Sequence[str]) -> None:
    """Raise E0401 if the arena is too small."""
    limit, needed = options.arena_bytes, candidate.plan.arena_bytes
    if limit is not None and needed > limit:
        what = f"inference needs {needed} B, the arena is {limit} B (over by {needed - limit} B)"
        way = meant_kilobytes(limit, needed) or f"try --arena {needed}"
        raise CompileError("E0401", FLAG, what, way, tuple(details))
