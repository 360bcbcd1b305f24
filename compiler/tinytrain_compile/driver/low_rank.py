"""Which layers keep their inputs in subspaces, as --activations or a scheme says, with ranks that samples measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.rank_choice import FLOAT_BYTES, LayerRanks, Pair
from tinytrain_compile.driver.reference import Trainer
from tinytrain_compile.driver.training_options import training_options
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.samples import load_samples
from tinytrain_compile.ir.activations import ActivationKind, LowRank
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import ChannelSlice, Samples, TrainGraph, UpdatePlan
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.conv_form import ConvAttrs
from tinytrain_compile.ops.names import operand
from tinytrain_compile.plan import Lock
from tinytrain_compile.sparse import LOW_RANK_LAYERS, layers_of
from tinytrain_compile.training import GRADIENTS, build_training

SAMPLES = 12
"""That ranks are measured on, about: in micro-batches of which there are two at least."""


class LowRankChoice:
    """Completes updates of one model under one set of options; what was measured is kept."""

    def __init__(self, model: ImportedModel, options: CompileOptions) -> None:
        self._model, self._options = model, options
        self._known: dict[tuple[int, str, str, tuple[int, ...]], LowRank | None] = {}

    def applied(self, update: UpdatePlan, micro_batch: int) -> UpdatePlan:
        """The update with ranks, and bases where they are fixed, for every layer that keeps a low-rank copy.

        Errors: E0101 for what cannot be honoured.
        """
        wanted = self._wanted(update)
        if not wanted:
            return update
        found = dict(update.activations) if self._options.data is None else self._measured(update, wanted, micro_batch)
        for name, how in wanted.items():
            if self._options.data is None and (how.kind == "subspace" or not how.ranks):
                what = f"{how.kind} measures its ranks on samples"
                raise CompileError("E0101", "--activations", what, "add --data FILE.npz, or ranks to a scheme file")
            found.setdefault(name, how)
        return replace(update, activations=found)

    def _wanted(self, update: UpdatePlan) -> dict[str, LowRank]:
        """By weight: as the scheme says, else as --activations does, where the gradient reads whole inputs."""
        kind = self._options.activations
        found = {name: how for name, how in update.activations.items() if how is not None and not how.trials}
        return found if kind in ("exact", "auto") else found | self._open(update, kind)

    def _open(self, update: UpdatePlan, kind: ActivationKind) -> dict[str, LowRank]:
        """Of layers of which the scheme says nothing."""
        found = dict[str, LowRank]()
        for layer in layers_of(self._model.graph):
            name = layer.weights[0].name if layer.weights else ""
            open_ = name in update.updates and name not in update.activations
            if open_ and layer.node.op in LOW_RANK_LAYERS and _reads_whole(update.updates[name], layer.node.attrs):
                found[name] = LowRank((), kind)
        return found

    def measured(self, update: UpdatePlan, kind: ActivationKind, size: int) -> dict[str, LowRank | None]:
        """By weight: the fewest bytes of this kind within --rank-error; None where exactly takes no more.

        Of layers of which the scheme says nothing. size: samples in a step.
        """
        wanted = self._open(update, kind)
        found = self._measured(update, wanted, size)
        return {name: found[name] for name in wanted}

    def _measured(self, update: UpdatePlan, wanted: Mapping[str, LowRank], size: int) -> dict[str, LowRank | None]:
        keys = {name: (size, name, how.kind, how.ranks) for name, how in wanted.items()}
        missing = {name: wanted[name] for name, key in keys.items() if key not in self._known}
        if missing:
            for name, how in self._look(update, missing, size).items():
                self._known[keys[name]] = how
        return {**update.activations, **{name: self._known[key] for name, key in keys.items()}}

    def _look(self, update: UpdatePlan, wanted: Mapping[str, LowRank], size: int) -> dict[str, LowRank | None]:
        """Run exact steps and measure; a layer whose weight others read too keeps its input exactly."""
        options = training_options(self._options, self._model, size, size)
        exact = build_training(self._model, replace(update, activations={}), options)
        nodes = gradient_nodes(self._model, exact)
        pairs = _pairs(exact, {name: nodes[name] for name in wanted if name in nodes}, self._samples(exact))
        found: dict[str, LowRank | None] = dict.fromkeys(wanted)
        for name, how in wanted.items():
            if name in pairs:
                element_bytes = 1 if self._options.quant == "int8" else FLOAT_BYTES
                ranks = LayerRanks(nodes[name], pairs.pop(name), how.kind, self._options.seed, element_bytes)
                found[name] = ranks.measured(how.ranks) if how.ranks else ranks.choose(self._options.rank_error)
        return found

    def _samples(self, train: TrainGraph) -> Samples:
        assert self._options.data is not None
        return load_samples(self._options.data, self._model, train)


def as_locked(model: ImportedModel, update: UpdatePlan, lock: Lock) -> UpdatePlan:
    """The update with the copies that a lock's plan is of: which layers keep one may have been chosen on samples.

    CompileError E0106 for a layer that there is not, or that has no such form.
    """
    layers = {layer.node.origin or layer.node.name: layer for layer in reversed(layers_of(model.graph))}
    able = {name: layer for name, layer in layers.items() if layer.weights and layer.node.op in LOW_RANK_LAYERS}
    strange = next((name for name in lock.copies if name not in able), None)
    if strange is not None:
        what = f"no layer {strange!r} keeps a low-rank copy of its input"
        raise CompileError("E0106", lock.file, what, "compile without --lock, then use the new plan.json")
    copies = {able[name].weights[0].name: how for name, how in lock.copies.items()}
    return replace(update, activations={**update.activations, **copies})


def _reads_whole(piece: ChannelSlice | None, attrs: object) -> bool:
    """Whether the gradient of a weight, or of some of its channels, reads all of the layer's input."""
    grouped = isinstance(attrs, ConvAttrs) and attrs.groups > 1
    return piece is None or (piece.axis == "out" and not grouped and not piece.on_device)


def gradient_nodes(model: ImportedModel, train: TrainGraph) -> dict[str, Node]:
    """Weight -> the node that makes its gradient, of layers whose weight no other node reads."""
    readers = model.graph.consumers()
    known = {node.name: node for node in train.graph.nodes}
    found: dict[str, Node] = {}
    for layer in layers_of(model.graph):
        names = (f"{layer.node.name}.{op}" for op in GRADIENTS)
        node = next((known[name] for name in names if name in known), None)
        if node is not None and layer.weights and len(readers[layer.weights[0].name]) == 1:
            found[layer.weights[0].name] = node
    return found


def _pairs(train: TrainGraph, nodes: Mapping[str, Node], samples: Samples) -> dict[str, list[Pair]]:
    """What each gradient is made of, on several micro-batches of the samples."""
    trainer, size, found = Trainer(train), train.micro_batch, {name: list[Pair]() for name in nodes}
    for index in range(max(2, SAMPLES // size)):
        chosen = [(index * size + i) % len(samples.x) for i in range(size)]
        values = trainer.values(samples.x[chosen], samples.y[chosen])
        for name, node in nodes.items():
            x, dy = (np.asarray(values[operand(node, each).name], np.float64) for each in ("x", "dy"))
            found[name].append(Pair(x, dy))
    return found
