"""Which layers keep their inputs in subspaces, as --activations or a scheme says, with ranks that samples measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tinytrain_compile.data.samples import load_samples, names_in, read_arrays
from tinytrain_compile.driver.candidates.ranks import FLOAT_BYTES, LayerRanks, Pair
from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.activations import ActivationKind, LowRank
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import ChannelSlice, Samples, TrainGraph, UpdatePlan
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.conv_form import ConvAttrs
from tinytrain_compile.ops.names import operand
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.lock import Lock
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import layers_of
from tinytrain_compile.training import build_training

SAMPLES, MOST_SAMPLES, MOST_BYTES = 12, 48, 64 << 20
"""Samples that ranks are measured on, about: MOST_SAMPLES if what they leave in memory is below MOST_BYTES, but SAMPLES
in any case; in micro-batches of which there are two at least, and two of each domain."""
MOST_DOMAINS = MOST_SAMPLES // 2
"""Domains that are judged apart; more of them share a judgement, so that a file cannot ask for any number of steps."""


@dataclass(frozen=True, eq=False)
class LowRankChoice:
    """Completes updates of one model under one set of options; what was measured is kept."""

    _model: ImportedModel
    _options: CompileOptions
    _known: dict[tuple[int, str, str, tuple[int, ...]], LowRank | None] = field(
        default_factory=dict[tuple[int, str, str, tuple[int, ...]], LowRank | None]
    )

    def applied(self, update: UpdatePlan, micro_batch: int) -> UpdatePlan:
        """Return the update with ranks, and bases where they are fixed, for every layer that keeps a low-rank copy.

        Errors: E0113 for what cannot be honoured.
        """
        wanted = self._wanted(update)
        if not wanted:
            return update
        found = dict(update.activations) if self._options.data is None else self._measured(update, wanted, micro_batch)
        for name, how in wanted.items():
            if self._options.data is None and (how.kind == "subspace" or not how.ranks):
                what = f"{how.kind} measures its ranks on samples"
                raise CompileError("E0113", "--activations", what, "add --data FILE.npz, or ranks to a scheme file")
            found.setdefault(name, how)
        return replace(update, activations=found)

    def _wanted(self, update: UpdatePlan) -> dict[str, LowRank]:
        """Return by weight: as the scheme says, else as --activations does, where the gradient reads whole inputs."""
        kind = self._options.activations
        found = {name: how for name, how in update.activations.items() if how is not None and not how.trials}
        return found if kind == "exact" else found | self._open(update, kind)

    def _open(self, update: UpdatePlan, kind: ActivationKind) -> dict[str, LowRank]:
        """Return those of layers of which the scheme says nothing."""
        found = dict[str, LowRank]()
        for layer in layers_of(self._model.graph):
            name = layer.weights[0].name if layer.weights else ""
            open_ = name in update.updates and name not in update.activations
            if open_ and has_trait(layer.node.op, "layer") and _reads_whole(update.updates[name], layer.node.attrs):
                found[name] = LowRank((), kind)
        return found

    def _measured(self, update: UpdatePlan, wanted: Mapping[str, LowRank], size: int) -> dict[str, LowRank | None]:
        keys = {name: (size, name, how.kind, how.ranks) for name, how in wanted.items()}
        missing = {name: wanted[name] for name, key in keys.items() if key not in self._known}
        if missing:
            for name, how in self._look(update, missing, size).items():
                self._known[keys[name]] = how
        return {**update.activations, **{name: self._known[key] for name, key in keys.items()}}

    def _look(self, update: UpdatePlan, wanted: Mapping[str, LowRank], size: int) -> dict[str, LowRank | None]:
        """Run exact steps and measure; layers whose weight is also read otherwise keep their inputs exactly."""
        options = training_options(self._options, self._model, size, size)
        exact = build_training(self._model, replace(update, activations={}), options)
        nodes = gradient_nodes(self._model, exact)
        asked = {name: nodes[name] for name in wanted if name in nodes}
        batches, domains = self._batches(exact, asked)
        pairs = _pairs(exact, asked, self._samples(exact), batches)
        sizes, found = _sizes(exact, self._options), dict[str, LowRank | None].fromkeys(wanted)
        for name, how in wanted.items():
            if name in pairs:
                given = self._options.seed, *sizes(nodes[name][0]), domains
                ranks = LayerRanks(nodes[name], pairs.pop(name), how.kind, *given)
                found[name] = ranks.measured(how.ranks) if how.ranks else ranks.choose(self._options.rank_error)
        return found

    def _batches(self, train: TrainGraph, nodes: Mapping[str, Sequence[Node]]) -> tuple[list[Array], list[int]]:
        """Return micro-batches as numbers of samples, spread over those of each domain, and their domains if known."""
        assert self._options.data is not None
        size, count = train.micro_batch, len(self._samples(train).x)
        domains = domains_of(self._options.data, count)
        operands = (operand(node, name) for each in nodes.values() for node in each for name in ("x", "dy"))
        step_bytes = 8 * sum(value.elements for value in operands)  # float64
        most = min(MOST_SAMPLES, max(SAMPLES, MOST_BYTES * size // max(step_bytes, 1)))
        return micro_batches(domains, size, most)

    def _samples(self, train: TrainGraph) -> Samples:
        assert self._options.data is not None
        return load_samples(self._options.data, self._model, train)


def as_locked(model: ImportedModel, update: UpdatePlan, lock: Lock) -> UpdatePlan:
    """Return the update with the copies that a lock's plan is of: which layers keep one may have been chosen on
    samples.

    CompileError E0106 for a layer that there is not, or that has no such form.
    """
    readers, layers = model.graph.consumers(), layers_of(model.graph)
    weights = [layer.weights[0].name for layer in layers if layer.weights and has_trait(layer.node.op, "layer")]
    able = {node.origin or node.name: weight for weight in weights for node in readers[weight]}
    strange = next((name for name in lock.copies if name not in able), None)
    if strange is not None:
        what = f"no layer {strange!r} keeps a low-rank copy of its input"
        raise CompileError("E0106", lock.file, what, "compile without --lock, then use the new plan.json")
    copies = {able[name]: how for name, how in lock.copies.items()}
    return replace(update, activations={**update.activations, **copies})


def _reads_whole(piece: ChannelSlice | None, attrs: object) -> bool:
    """Tell whether the gradient of a weight, or of some of its channels, reads all of the layer's input."""
    grouped = isinstance(attrs, ConvAttrs) and attrs.groups > 1
    return piece is None or (piece.axis == "out" and not grouped)


def gradient_nodes(model: ImportedModel, train: TrainGraph) -> dict[str, list[Node]]:
    """Return weight -> the nodes that make its gradient, one for each node that reads it, where these are alike: layers
    on inputs of one shape. A weight that is also read in another arrangement has none."""
    gradients = [node for node in train.graph.nodes if has_trait(node.op, "weight_gradient")]
    readers, known = model.graph.consumers(), {node.name.removesuffix(f".{node.op}"): node for node in gradients}
    found = dict[str, list[Node]]()
    for layer in layers_of(model.graph):
        weight = layer.weights[0].name if layer.weights else ""
        each = readers.get(weight, [])
        nodes = [known[reader.name] for reader in each if reader.name in known]
        alike = len({(node.op, node.attrs, operand(node, "x").shape) for node in nodes}) == 1
        if alike and len(nodes) == len(each):
            found[weight] = nodes
    return found


def _sizes(exact: TrainGraph, options: CompileOptions) -> Callable[[Node], tuple[int, int]]:
    """Return by gradient the bytes of an element of its input that is kept exactly, and of a core in fixed
    subspaces.

    In int8 networks a gradient may stay float32, a head's: it reads float32 numbers, and a copy of its input can be
    int8 all the same. It is known by its layer: where a step takes several samples, each has a node of its own.
    """
    if options.quant != "int8":
        return lambda _node: (FLOAT_BYTES, FLOAT_BYTES)
    integer = quantise(exact, QuantOptions(options.seed, options.weight_store))
    floats = {node.origin or node.name for node in integer.graph.nodes if has_trait(node.op, "weight_gradient")}

    def sizes(node: Node) -> tuple[int, int]:
        x = operand(node, "x").name
        stored = integer.forms.get(x, (x,))[0] in integer.formats
        return FLOAT_BYTES if (node.origin or node.name) in floats else 1, 1 if stored else FLOAT_BYTES

    return sizes


def domains_of(path: Path, count: int) -> Array:
    """Return the domain of each sample, as the array `domain` of an .npz names it; one for all without. Errors: E0105.

    count: of the samples.
    """
    if "domain" not in names_in(path):
        return np.zeros(count, int)
    (found,) = read_arrays(path, ("domain",))
    if found.shape != (count,):
        what = f"domain has shape {found.shape}, and there are {count} samples"
        raise CompileError("E0105", path.name, what, "give a number for each sample")
    return found


def micro_batches(domains: Array, size: int, most: int) -> tuple[list[Array], list[int]]:
    """Return micro-batches of `size` samples of a domain, as their numbers; and their domains, [] if there is only one.

    most: samples in all, about; there are at least two micro-batches of each domain.
    """
    own = np.unique(domains, return_inverse=True)[1] % MOST_DOMAINS
    count = int(own.max()) + 1
    each = max(2, most // (size * count))
    batches = [part for kind in range(count) for part in _spread_over(np.flatnonzero(own == kind), each, size)]
    return batches, np.repeat(np.arange(count), each).tolist() if count > 1 else []


def _spread_over(samples: Array, count: int, size: int) -> list[Array]:
    """Return so many micro-batches of these samples, evenly spread; few samples are taken again."""
    places = np.arange(count * size)
    chosen = samples[places * len(samples) // len(places) if len(samples) > len(places) else places % len(samples)]
    return [chosen[first : first + size] for first in range(0, len(chosen), size)]


def _pairs(
    train: TrainGraph, nodes: Mapping[str, Sequence[Node]], samples: Samples, batches: Sequence[Array]
) -> dict[str, list[tuple[Pair, ...]]]:
    """Return what each gradient is made of, on several micro-batches of the samples."""
    trainer, found = Trainer(train), {name: list[tuple[Pair, ...]]() for name in nodes}
    for chosen in batches:
        values = trainer.values(samples.x[chosen], samples.y[chosen])
        for name, each in nodes.items():
            found[name].append(tuple(_pair(node, values) for node in each))
    return found


def _pair(node: Node, values: Mapping[str, Array]) -> Pair:
    return Pair(*(np.asarray(values[operand(node, name).name], np.float64) for name in ("x", "dy")))
