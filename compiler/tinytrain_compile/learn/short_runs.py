"""Short training runs on this machine: what is gained if only this is trained?

One build trains everything. After every update all that the run does not train gets its first numbers back, so a run of
it computes what a build for that update would, and hundreds of updates can be tried without compiling any of them. Its
memory is that of this machine: which updates fit a board is not asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.data.samples import in_slots, is_written, load_samples
from tinytrain_compile.driver.checks.data_notes import data_notes
from tinytrain_compile.driver.pipeline import Result, make_project
from tinytrain_compile.driver.progress import Progress
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.learning import Score
from tinytrain_compile.ir.stages import ChannelSlice, Interface, Samples, SourceBundle, TrainGraph, channel_axis
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.runs import in_processes
from tinytrain_compile.options.compile_options import OF_THE_MODEL, CompileOptions
from tinytrain_compile.sparse import Layer, layers_of, parameter_of
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.twin import Instance
from tinytrain_compile.twin.scores import scores
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools

RATE_STEPS = (0.25, 1.0, 4.0, 16.0)
"""Learning rates that everything is tried at, times the one that the options or the file say."""
HELD_SHARE, MOST_HELD = 0.3, 256
"""Of the samples, that runs are judged on and never trained on; at most so many."""

Updates = Mapping[str, ChannelSlice | None]
"""As in UpdatePlan."""


@dataclass(frozen=True)
class Run:
    """One short training: what it trains (nothing: the file as it is), at which rate, in which order of samples."""

    updates: Updates
    rate: float = 0.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Desk:
    """A model that trains everything, with samples, on this machine.

    x, y: what runs train on, held: what they are judged by; both as the calls take them. count: updates of a run.
    rate: the learning rate that the file or the options say. start: parameters that runs begin with, where these are
    not the file's. clip: the largest norm of a step's gradients, of what the run trains (0: any); for plain SGD alone,
    where it is what the step moves: other optimizers, int8, and a norm per layer run without. notes: on the samples.
    """

    model: ImportedModel
    train: TrainGraph
    bundle: SourceBundle
    x: Array
    y: Array
    held: Samples
    count: int
    rate: float
    start: Mapping[str, Array] = field(default_factory=dict[str, Array])
    clip: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers with parameters."""
        return layers_of(self.model.graph)

    @property
    def weights(self) -> dict[str, Array]:
        """Parameters that runs begin with."""
        known = (value.name for layer in self.layers for value in layer.parameters)
        return {name: self.start.get(name, self.train.graph.constants[name]) for name in known}

    def judged_by(self, part: int, parts: int) -> Desk:
        """Hold back every so-many-th of the samples (at most MOST_HELD): another part for every number."""
        x, y = np.concatenate([self.held.x, self.x]), np.concatenate([self.held.y, self.y])
        held = np.arange(part, len(x), parts)[:MOST_HELD]
        rest = np.setdiff1d(np.arange(len(x)), held)
        return replace(self, x=x[rest], y=y[rest], held=Samples(x[held], y[held]))

    def run_all(self, runs: Sequence[Run], library: Path, jobs: int, done: Callable[[int, Score], None]) -> list[Score]:
        """Run all, by so many processes (joblib), and return scores on held-back samples in order.

        `done` gets each as it comes.
        """
        found = list[Score]()
        for index, outputs in enumerate(
            in_processes(train_for_a_while, ((library, self.job(run)) for run in runs), jobs)
        ):
            found.append(self._judged(outputs))
            done(index, found[-1])
        return found

    def library(self, folder: Path) -> Path:
        """Build its C as a library of this machine."""
        return build_library(self.bundle, find_tools(), folder)

    def _judged(self, outputs: Array | None) -> Score:
        if outputs is None or not np.isfinite(outputs).all():
            return Score(float("inf"))
        if is_written(self.model):
            return Score(float(outputs.mean()))
        found = scores(self.model, self.train, outputs, self.held.y)
        return Score(found["loss"], found.get("accuracy"))

    def job(self, run: Run) -> Job:
        """Return what a process needs for a run."""
        order = np.random.default_rng((run.seed, 1)).permutation
        passes = -(-self.count * self.train.batch // len(self.x))
        chosen = np.concatenate([order(len(self.x)) for _ in range(passes)])[: self.count * self.train.batch]
        known = {value.name: value.shape for layer in self.layers for value in layer.parameters}
        masks = dict[str, Array | bool]()
        for slot in self.bundle.interface.state:
            owner = parameter_of(known, slot.name)
            if owner is not None:
                masks[slot.name] = _frozen(run.updates, owner, known[owner])
        count = self.count if run.updates else 0
        face = self.bundle.interface
        own = self.held.y if is_written(self.model) else None
        piece = self.train.micro_batch if self.train.in_place else self.train.batch
        calls = count * self.train.batch // piece
        return Job(face, self.x, self.y, self.held.x, own, chosen, piece, calls, run.rate, masks, self.start, self.clip)


@dataclass(frozen=True, eq=False)
class Job:
    """What a process is sent. piece: samples after which weights have moved; count: how many pieces are trained on.

    frozen: state -> which of its elements stay, or whether all or none do; all other state is free. labels: of what is
    held back, where only the C knows the loss.
    """

    interface: Interface
    x: Array
    y: Array
    held: Array
    labels: Array | None
    order: Array
    piece: int
    count: int
    rate: float
    frozen: Mapping[str, Array | bool]
    start: Mapping[str, Array]
    clip: float


def begun(library: Path, interface: Interface, start: Mapping[str, Array]) -> Instance:
    """Make an instance with these parameters in place of the file's."""
    instance = Instance(library, interface)
    for name, array in start.items():
        instance.tensor(name)[:] = array.ravel()
    return instance


def train_for_a_while(library: Path, job: Job) -> Array | None:
    """Train, and return the outputs (or losses: see `Job.labels`) of what is held back; None if a loss was NaN."""
    instance = begun(library, job.interface, job.start)
    first = instance.state()
    kept = [(name, mask, first[name]) for name, mask in job.frozen.items() if mask is not False]
    moving = [instance.tensor(name) for name, mask in job.frozen.items() if mask is not True] if job.clip else []
    instance.set_rate(job.rate)
    try:
        for step in range(job.count):
            chosen = job.order[step * job.piece : (step + 1) * job.piece]
            before = [array.copy() for array in moving]
            instance.train(job.x[chosen], job.y[chosen])
            for name, mask, numbers in kept:
                held = instance.tensor(name)
                if mask is True or (not isinstance(mask, bool) and mask.size == held.size):
                    np.copyto(held, numbers, where=mask)  # tables by channel of what is trained in part are free
            _clip(moving, before, job.clip * job.rate)
        return instance.infer(job.held) if job.labels is None else instance.losses(job.held, job.labels)
    except CompileError:
        return None


def _clip(now: Sequence[Array], before: Sequence[Array], limit: float) -> None:
    """Bring a move of several arrays together down to a length."""
    length = np.sqrt(sum(float(np.square(a - b).sum()) for a, b in zip(now, before, strict=True)))
    if length > limit:
        for after, first in zip(now, before, strict=True):
            after[:] = first + (after - first) * np.float32(limit / length)


def _frozen(updates: Updates, name: str, shape: tuple[int, ...]) -> Array | bool:
    """Tell which elements of a parameter a run leaves as they are, or whether all."""
    if name not in updates:
        return True
    piece = updates[name]
    if piece is None:
        return False
    stays = np.ones(shape, bool)
    np.moveaxis(stays, channel_axis(piece.axis, len(shape)), 0)[list(piece.channels)] = False
    return stays.ravel()


def make_desk(options: CompileOptions, count: int, progress: Progress) -> Desk:
    """Compile a model so that it trains everything, and split the samples of --data. Raises CompileError."""
    if options.data is None:
        raise CompileError("E0101", "--data", "short runs need samples", "give --data FILE.npz with arrays x and y")
    same: dict[str, Any] = {name: getattr(options, name) for name in OF_THE_MODEL}
    target = load_target(options.target)
    same["target"] = target.base or options.target  # a board's memories are no limit here
    given = options.given & OF_THE_MODEL
    same |= {"clip_norm": None, "clip_per": "model"}  # which would count the gradients of what a run does not train
    given -= {"clip_norm", "clip_per"}
    free = CompileOptions(options.model, update="all", remat="off", stream="off", verify="none", given=given, **same)
    made = make_project(free, lambda what, share: progress(what, share * 0.1))
    assert not isinstance(made, Result)
    train, found = made.summary.train, load_samples(options.data, made.model, made.summary.train)
    order = np.random.default_rng(options.seed).permutation(len(found.x))
    held = min(MOST_HELD, round(HELD_SHARE * len(order)))
    if held < 1 or len(order) - held < train.batch:
        what = f"{len(order)} samples are too few to train on some and judge by others"
        raise CompileError("E0105", options.data.name, what, f"give at least {2 * train.batch + 2}")
    samples = in_slots(made.bundle.interface, found)
    kept, rest = order[:held], order[held:]
    rate = made.summary.learning_rate
    judged = Samples(samples.x[kept], samples.y[kept])
    plain = (
        options.optimizer == "sgd" and not options.weight_decay and not train.integer and options.clip_per == "model"
    )
    clip = (options.clip_norm or 0.0) if plain else 0.0
    notes = data_notes(made.model, train, options)
    x, y = samples.x[rest], samples.y[rest]
    return Desk(made.model, train, made.bundle, x, y, judged, count, rate, clip=clip, notes=notes)
