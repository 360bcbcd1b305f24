"""Facts about a compilation that no single stage knows."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.data.samples import names_in
from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.ir.imported import ImportedModel, ParameterChoice
from tinytrain_compile.ir.stages import ChannelSlice, TrainGraph, UpdatePlan
from tinytrain_compile.ir.summary import Fate, LayerUpdate
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops import op_def
from tinytrain_compile.sparse import Layer, layers_of
from tinytrain_compile.sparse.select import channel_axes, weight_axis
from tinytrain_compile.target.model import Target


def layer_updates(graph: Graph, plan: UpdatePlan) -> tuple[LayerUpdate, ...]:
    """List what is updated of every layer, in the user's own names."""
    return tuple(_layer_update(layer, plan) for layer in layers_of(graph))


def fates_of(model: ImportedModel, plan: UpdatePlan) -> tuple[Fate, ...]:
    """Return what becomes of every floating-point initializer under these updates."""
    layers = layers_of(model.graph)
    updated = {value.name: _updated(layer, value, plan) for layer in layers for value in layer.parameters}
    return tuple(_fate(choice, sum(updated.get(name, 0) for name in choice.values)) for choice in model.choices)


def _fate(choice: ParameterChoice, updated: int) -> Fate:
    """Return what becomes of an initializer. updated: how many elements of the parameters that hold the initializer are
    trained."""
    if not choice.values:
        return Fate(choice.name, "other", choice.why, choice.elements)
    if not updated:
        return Fate(choice.name, "update", choice.why, choice.elements, into=choice.into)
    if choice.into:
        return Fate(choice.name, "absorbed", choice.why, choice.elements, into=choice.into)
    return Fate(choice.name, "trained", choice.why, choice.elements, min(updated, choice.elements))


def _layer_update(layer: Layer, plan: UpdatePlan) -> LayerUpdate:
    pieces = [plan.updates[w.name] for w in layer.weights if w.name in plan.updates]
    cut = next((piece for piece in pieces if piece is not None), None)
    return LayerUpdate(
        name=layer.name,
        bias=any(b.name in plan.updates for b in layer.biases),
        weight=bool(pieces),
        channels=len(cut.channels) if cut else None,
        axis=weight_axis(layer.node, cut.axis) if cut else None,
        elements=sum(_updated(layer, value, plan) for value in layer.parameters),
        total_elements=sum(value.elements for value in layer.parameters),
        module=layer.module,
    )


def _updated(layer: Layer, value: Value, plan: UpdatePlan) -> int:
    if value.name not in plan.updates:
        return 0
    piece: ChannelSlice | None = plan.updates[value.name]
    if piece is None:
        return value.elements
    total = channel_axes(layer.node, value)[weight_axis(layer.node, piece.axis)]
    return value.elements * len(piece.channels) // total


LARGE_ERROR = 0.15
"""Error of a gradient from which accuracy suffers: on development tasks copies with 10 % lost 0.7 points at most, and
with 30 % up to 5.9 (`make bench NAME=copy-errors`)."""


def activation_notes(planner: Planner, candidate: Candidate) -> tuple[str, ...]:
    """Return a note where low-rank copies were asked for: copies that are smaller need not make the arena smaller."""
    asked = planner.options.activations != "exact"
    if not candidate.train.low_rank:
        what = "no layer keeps fewer bytes with an error of at most"
        return (
            (f"--activations: {what} {planner.options.rank_error:g}: all keep their inputs exactly",) if asked else ()
        )
    exact = planner.with_options(activations="exact")
    update = replace(candidate.update, activations={})
    plain = exact.planned(update, exact.train(update, candidate.train.micro_batch))
    difference = plain.plan.arena_bytes - candidate.plan.arena_bytes
    verdict = f"{abs(difference):,} B {'more' if difference > 0 else 'less'}" if difference else "as much"
    notes = (f"with all inputs kept exactly the arena is {plain.plan.arena_bytes:,} B, {verdict}",)
    return notes + _error_notes(planner, candidate)


def _error_notes(planner: Planner, candidate: Candidate) -> tuple[str, ...]:
    """Return notes on errors that are large, and on those of samples of one domain."""
    known = [kept for kept in candidate.train.low_rank if kept.error is not None]
    notes, worst = tuple[str, ...](), max((kept.error or 0.0 for kept in known), default=0.0)
    if worst > LARGE_ERROR:
        what = f"gradients of copies are off by up to {100 * worst:.0f} %"
        notes += (f"{what}: on development tasks 10 % cost at most 1 point of accuracy, 30 % 6, 60 % 30",)
    one = planner.options.data is None or "domain" not in names_in(planner.options.data)
    if one and any(kept.kind == "subspace" for kept in known):
        notes += (
            "subspaces and their errors are those of --data: on domains that it has no samples of the error is larger,"
            " and accuracy fell by up to 26 points; name the domains of its samples in an array `domain`, so that each"
            " is judged by the others (docs/activations.md)",
        )
    return notes


FLOAT_SHARE = 0.1
"""Share of a step's multiply-accumulates from which float32 regions may make int8 the slower format on an FPU. The
digits example has 0.08 at most and takes 0.86 times the instructions of float32 on a Cortex-M7, a compact transformer
has 0.3 and takes 1.26 times as many."""


def format_notes(train: TrainGraph, target: Target) -> tuple[str, ...]:
    """Return a note if much of an int8 step is computed in float32, on a core with an FPU."""
    macs = {True: 0, False: 0}
    for node in train.graph.nodes:
        in_floats = any(value.dtype == "float32" for value in (*node.inputs, *node.outputs))
        macs[in_floats] += op_def(node.op).macs(node)
    if not train.integer or not target.features.fpu or macs[True] < FLOAT_SHARE * max(sum(macs.values()), 1):
        return ()
    share = f"{100 * macs[True] / sum(macs.values()):.0f} %"
    what = f"--quant int8: {share} of a step's multiply-accumulates stay in float32, with conversions around them"
    return (f"{what}; compare RAM and --count with --quant fp32, which may be faster",)
