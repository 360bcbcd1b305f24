"""The zoos: networks as their exporters write them, with the losses that their own framework computed.

`../shared/zoo` and `../shared/zoo3` have them; their READMEs say what each file holds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from testing.places import SHARED
from tinytrain_compile.data.samples import load_samples
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.driver.trial import with_exponents
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.training import build_training

ZOO = SHARED / "zoo"
ZOO3 = SHARED / "zoo3"
STEPS = 5
RELATIVE, ABSOLUTE = 2e-4, 1e-4
"""How far a loss may be from the framework's, of itself; and a final weight, of max(1, the largest)."""

_LOSS = {
    **dict.fromkeys(("ce", "nll", "nllp", "ce2d", "nllp2d", "ce_logits"), "cross-entropy"),
    **dict.fromkeys(("bce", "bcep"), "bce"),
    "mse": "mse",
}


@dataclass(frozen=True)
class Golden:
    """One training by the framework. before, after: in its file of weights, how names of both begin.

    how: a word for it, if a network has several.
    """

    losses: tuple[float, ...]
    before: str = "i_"
    after: str = "f_"
    how: str = ""


@dataclass(frozen=True, eq=False)
class Network:
    """One network: where its files are, and what is known of it (`loss`, `lr`, `losses`, `bn`).

    zoo3: one of ../shared/zoo3, where both exporters' files share samples and weights; `loss` may be "graph", the
    file's own, and `opt` another optimizer than SGD.
    """

    path: Path
    known: dict[str, Any]
    zoo3: bool = False

    @property
    def name(self) -> str:
        """Folder and file, as the table shows it."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def data(self) -> Path:
        """Its samples."""
        return _beside(self.path).with_suffix(".npz") if self.zoo3 else self.path.with_suffix(".npz")

    @property
    def reference(self) -> Path:
        """Its weights before and after the steps, by the framework's names."""
        return self.data.with_suffix(".ref.npz")

    @property
    def trains(self) -> bool:
        """Whether the framework computed losses."""
        return bool(self.goldens)

    @property
    def goldens(self) -> tuple[Golden, ...]:
        """What the framework computed: as the module stands, and with BatchNormalization folded first."""
        if not self.zoo3:
            losses = self.known.get("losses")
            return (Golden(tuple(losses)),) if losses else ()
        folded = self.known["LB"]
        plain = Golden(tuple(self.known["LA"]))
        return (plain,) if folded is None else (Golden(tuple(folded), "bi_", "bf_", "folded"), plain)

    def options(self, **more: Any) -> CompileOptions:
        """The options of a command that trains it as the framework did."""
        return CompileOptions(model=self.path, update="all", **{**self.training(), **more})

    def training(self) -> dict[str, Any]:
        """The options of these that say how it is trained."""
        if not self.trains:
            return {}
        loss, optimizer = self.known["loss"], self.known.get("opt", "sgd")
        asked = {} if loss == "graph" else {"loss": _LOSS[loss]}
        return {**asked, "learning_rate": self.known["lr"], "optimizer": optimizer}


@dataclass(frozen=True, eq=False)
class Outcome:
    """losses: ours, of each step; error: why it was refused, instead.

    before, after: parameters as the graph holds them, by name. notes: remarks for the user.
    """

    losses: tuple[float, ...] = ()
    before: Mapping[str, Array] = field(default_factory=dict[str, Array])
    after: Mapping[str, Array] = field(default_factory=dict[str, Array])
    error: CompileError | None = None
    notes: tuple[str, ...] = ()


def networks(pattern: str = "*/*") -> Iterator[Network]:
    """All networks of the first zoo whose folder/name matches."""
    for path in sorted(ZOO.glob(f"{pattern}.onnx")):
        yield Network(path, json.loads(path.with_suffix(".json").read_text()))


def networks3(pattern: str = "*", folder: Path = ZOO3) -> Iterator[Network]:
    """All networks of ../shared/zoo3, or of a folder like it, whose name (g_aux_deep.ts) matches."""
    for path in sorted(folder.glob(f"{pattern}.onnx")):
        yield Network(path, json.loads(_beside(path).with_suffix(".json").read_text()), zoo3=True)


def _beside(path: Path) -> Path:
    """The file name without .onnx and without its exporter."""
    return path.with_suffix("").with_suffix("")


def train_graph(model: ImportedModel, options: CompileOptions) -> TrainGraph:
    """The training graph of a float32 command."""
    return build_training(model, resolve_update(model.graph, options.update), training_options(options, model))


def trained(network: Network, **more: Any) -> Outcome:
    """Five steps of one sample each by the numpy reference, as the command would train it."""
    options = network.options(**more)
    try:
        model = imported(options)
        if not network.trains:
            return Outcome()
        train = train_graph(model, options)
        samples = load_samples(network.data, model, train)
    except CompileError as problem:
        return Outcome(error=problem)
    trainer = Trainer(train)
    before = {value.name: trainer.state[value.name].copy() for value in model.graph.parameters}
    losses = [trainer.step(x[None], y[None])[0] for x, y in zip(samples.x[:STEPS], samples.y[:STEPS], strict=True)]
    after = {name: trainer.state[name] for name in before}
    return Outcome(tuple(losses), before, after, notes=train.graph.notes)


def loss_error(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    """Largest relative difference of the losses of the same steps."""
    a, b = np.array(ours), np.array(theirs[: len(ours)])
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1e-6)))


def weight_errors(network: Network, outcome: Outcome, golden: Golden) -> dict[str, float]:
    """By the framework's names: how far each final weight is from ours, of max(1, the largest), where it gives them.

    The same parameter is the one with the same numbers at the start; inf if we train none and the framework does. A
    weight that several have at the start (fresh ones) counts by the nearest of them.
    """
    if not network.reference.exists():
        return {}
    reference, found = np.load(network.reference), dict[str, float]()
    for key in (key for key in reference.files if key.startswith(golden.before)):
        name = key.removeprefix(golden.before)
        first, last = reference[key], reference[golden.after + name]
        pairs = ((data, outcome.after[name]) for name, data in outcome.before.items())
        errors = [error for pair in pairs for error in _apart((first, last), pair)]
        moved = not np.array_equal(first, last)
        error = min(errors) if errors else np.inf if moved else 0.0
        found[name] = error / max(1.0, float(np.abs(last).max()))
    return found


def _apart(theirs: tuple[Array, Array], ours: tuple[Array, Array]) -> Iterator[float]:
    """Largest difference at the end between two weights (start, end) that hold the same numbers at the start.

    Ours may be some rows of theirs, if the rest has not moved. Numbers that all differ say by themselves where each of
    them is; for others every order of axes is tried.
    """
    (first, last), (data, after) = theirs, ours
    if np.unique(first).size == first.size:
        order = np.argsort(first, axis=None)
        known, wanted = first.reshape(-1)[order], data.reshape(-1)
        place = np.searchsorted(known, wanted).clip(1, known.size - 1) if known.size > 1 else np.zeros(1, np.intp)
        place = place - (np.abs(known[place - 1] - wanted) < np.abs(known[place] - wanted))
        index = order[place]
        if np.allclose(first.reshape(-1)[index], data.reshape(-1), rtol=1e-5, atol=1e-5):
            rest = np.setdiff1d(order, index)
            if np.array_equal(first.reshape(-1)[rest], last.reshape(-1)[rest]):
                yield float(np.abs(last.reshape(-1)[index] - after.reshape(-1)).max())
        return
    for perm in itertools.permutations(range(last.ndim)):
        if first.size == data.size and np.allclose(first.transpose(perm).reshape(-1), data.reshape(-1), atol=1e-5):
            yield float(np.abs(last.transpose(perm).reshape(-1) - after.reshape(-1)).max())


@dataclass(frozen=True)
class Integer:
    """int8: the first loss, with the float32 one; error: why it was refused, instead.

    worst: the first tensor (in the order of the graph) whose error exceeds a tenth of its range, and that error.
    """

    loss: float = 0.0
    expected: float = 0.0
    worst: tuple[str, float] | None = None
    error: CompileError | None = None

    @property
    def apart(self) -> float:
        """How far the loss is from the float32 one, of that."""
        return abs(self.loss - self.expected) / max(abs(self.expected), 1e-6)


def trained_in_integers(network: Network, **more: Any) -> Integer:
    """The first step of `--quant int8 --calib` with the network's own six samples, by the numpy reference."""
    data = network.data
    options = network.options(quant="int8", calib=data, data=data, **more)
    try:
        floats = imported(options)
        model = stored(floats, options)
        train = Planner(model, options, load_target(options.target), Externals()).train(
            resolve_update(model.graph, "all")
        )
        train = with_exponents(train, model, options)
        samples = load_samples(data, model, train)
    except CompileError as problem:
        return Integer(error=problem)
    plain = train_graph(floats, options)
    x, y = load_samples(data, floats, plain).x[:1], load_samples(data, floats, plain).y[:1]
    reference = Trainer(plain)
    loss = Trainer(train).step(samples.x[:1], samples.y[:1])[0]
    return Integer(loss, reference.step(x, y)[0], _first_error(train, samples.x[:1], floats, x))


def _first_error(train: TrainGraph, stored_x: Array, floats: ImportedModel, x: Array) -> tuple[str, float] | None:
    """Tensors of the forward pass that both graphs name alike, real numbers against real numbers."""
    graph = train.graph
    forward = graph.ancestors(graph.outputs)
    nodes = [node for node in graph.nodes if node.name in forward]
    source = graph.inputs[0]
    ours = run_nodes(nodes, {**graph.constants, source.name: stored_x.reshape(source.shape)}, train.integer)
    entry = floats.graph.inputs[0]
    theirs = run_nodes(floats.graph.nodes, {**floats.graph.constants, entry.name: x.reshape(entry.shape)})
    for node in nodes:
        for value in node.outputs:
            real = theirs.get(value.name)
            if real is None or value.shape != real.shape or (value.dtype == "int8") != (value.quant is not None):
                continue
            found = ours[value.name].astype(np.float64)
            if value.dtype == "int8" and value.quant is not None:
                found = (found - value.quant.zero) * value.quant.scale[0]
            elif value.dtype != "float32":
                continue
            error = float(np.abs(found - real).max()) / max(float(np.ptp(real)), 1e-9)
            if error > 0.1:
                return value.name, error
    return None
