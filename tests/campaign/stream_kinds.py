"""Random networks over time that listen: m_hear equals the window and, call by call, numpy; or the layer is named that
is in the way.

Rows are random, some calls go to m_rehear, updates come in between (in slices, too, and m_hear between these), some
calls have wrong counts of rows, and checkpoints are loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from testing.networks.streams import random_stream
from tests.campaign.cases import Case, Kind
from tests.campaign.model_kinds import NET
from tests.e2e.command import Outcome
from tinytrain_compile.api import Compiled
from tinytrain_compile.cli.command import command
from tinytrain_compile.cli.options import options_of
from tinytrain_compile.compilation import make_project
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.reference.rounding import changed_runs, scattered
from tinytrain_compile.reference.stream import Stream
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.twin import Twin
from tinytrain_compile.verify.compare import TOLERANCE

CORES = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m55")
UPDATES = ("head", "last:1", "last:2", "last:3", "all", "all", "bias")
FLAWED = 5
"""One in so many networks cannot be streamed."""
TURNS = 12
"""Updates, checkpoints and wrong calls, with rows before each."""


def _case(source: Random, folder: Path, integer: bool) -> Case:
    seed, flawed = source.randrange(1 << 30), source.randrange(FLAWED) == 0
    drawn = random_stream(seed, flawed)
    (folder / NET).write_bytes(drawn.model.SerializeToString())
    words = ["--update", source.choice(UPDATES), "--target", source.choice(CORES)]
    if integer:
        shape = [d.dim_value for d in drawn.model.graph.input[0].type.tensor_type.shape.dim]
        x = np.random.default_rng(seed).standard_normal((6, *shape[1:])).astype(np.float32)
        np.savez(folder / "calib.npz", x=x)
        words += ["--quant", "int8", "--calib", "calib.npz"]
        words += ["--head", "int8"] if source.randrange(3) == 0 else []
        words += ["--rescale", "on"] if source.randrange(6) == 0 else []
    words += ["--input-layout", "lc"] if drawn.channels_last else []
    words += ["--slices", "on"] if source.randrange(3) == 0 else []
    words += ["--features", "on"] if source.randrange(4) == 0 else []
    words += (
        ["--optimizer", source.choice(("momentum", "lion" if integer else "adam"))] if source.randrange(3) == 0 else []
    )
    words += ["--code", "size"] if source.randrange(5) == 0 else []
    batch = source.choice((1, 1, 2))
    words += ["--batch", str(batch)] if batch > 1 else []
    words += ["--accumulate", "inplace"] if batch > 1 and source.randrange(2) else []
    return Case((str(seed), str(drawn.hop), drawn.blamed, *words), sound=True, run=_run, program="stream")


def _run(seed: str, hop: str, blamed: str, *words: str) -> Outcome:
    """PASS, the refusal of a compilation, or an AssertionError with what differs."""
    try:
        made = _compiled(("--verify", "none", "--listen", "on", *words))
    except CompileError as problem:
        said, listens = str(problem), problem.code == "E0113" and "--listen" in str(problem)
        assert not listens or blamed, f"a network that can be streamed is refused: {said}"
        assert not listens or blamed in said, f"not for {blamed}: {said}"
        return Outcome(problem.exit_code, "", f"{problem}\n")
    assert not blamed, f"{blamed} cannot be streamed"
    listening = made.project.summary.plan.listening
    assert listening is not None
    assert int(hop) % listening.frames == 0, f"{listening.frames} rows in a call, and not {hop}"
    try:
        with made.twin() as twin:
            _Ear(made, twin, Random(seed)).live()
        return Outcome(0, "PASS", "")
    finally:
        del made
        gc.collect()  # libraries live as long as what was compiled


def _compiled(words: tuple[str, ...]) -> Compiled:
    with command.make_context("tinytrain-compile", [*words, "--", NET]) as context:
        project = make_project(options_of(context.params))
    assert isinstance(project, Project)
    return Compiled(project)


class _Ear:
    """A twin and numpy that hear the same."""

    def __init__(self, made: Compiled, twin: Twin, source: Random) -> None:
        summary = made.project.summary
        assert summary.plan.listening is not None
        self._twin, self._instance, self._source = twin, twin.instance, source
        self._train, self._listening = summary.train, summary.plan.listening
        self._numpy = Stream(self._listening, Trainer(self._train).run_nodes)
        self._frames, self._slices = self._listening.frames, bool(made.project.bundle.parts)
        self._data = in_slots(self._instance.interface, random_samples(self._train, 8, 5, made.project.model))
        elements = self._train.graph.inputs[0].elements // self._listening.window
        self._history: list[tuple[Array, Mapping[str, Array]]] = []
        samples = self._data.x.reshape(8 * self._listening.window, elements)
        self._rows = np.concatenate([samples[source.randrange(len(samples)) :], samples])
        self._at, self._heard = 0, np.zeros((0, elements), samples.dtype)
        self._settled = 0

    def live(self) -> None:
        """Hear, learn, forget."""
        for _ in range(TURNS):
            for _ in range(self._source.choice((0, 1, 2, self._listening.settle, self._listening.calls))):
                self._hear()
            self._source.choice((self._learn, self._learn, self._learn, self._rehear, self._reload, self._err))()
        for _ in range(self._listening.calls):
            self._hear()
        assert self._settled, "no output was ever that of a window"

    def _next(self, calls: int) -> Array:
        rows = np.take(self._rows, range(self._at, self._at + calls * self._frames), axis=0, mode="wrap")
        self._at += calls * self._frames
        self._heard = np.concatenate([self._heard, rows])[-self._listening.window :]
        return rows

    def _state(self) -> dict[str, Array]:
        shapes = {value.name: value.shape for value in self._train.graph.state}
        return {name: array.reshape(shapes[name]) for name, array in self._instance.state().items()}

    def _hear(self, is_open: bool = False) -> None:
        """One call, in C and numpy; if it is settled, also the window."""
        rows, state = self._next(1), self._state()
        out, due = self._instance.hear_due(rows)
        assert due.all()
        self._history.append((rows, state))
        self._compare(out[0], self._numpy.hear(rows, state))
        unsettled = self._instance.hear_settling()
        assert is_open or unsettled == self._numpy.unsettled, f"{unsettled} calls, numpy: {self._numpy.unsettled}"
        if unsettled == 0 and not is_open:
            window = self._heard.reshape(1, *self._train.graph.inputs[0].shape[1:])
            assert np.array_equal(self._instance.infer(window)[0], out[0]), "settled, and not what the window gives"
            self._settled += 1

    def _compare(self, ours: Array, theirs: Array) -> None:
        if self._train.integer:
            assert np.array_equal(ours, theirs.astype(np.float32)), f"{ours} in C, {theirs} in numpy"
            return
        scale = max(1.0, float(np.max(np.abs(theirs))))
        if np.max(np.abs(ours - theirs)) <= TOLERANCE * scale:
            return
        exact, *others = (self._again(Stream(self._listening, run.run_nodes)) for run in changed_runs(self._train, 0))
        allowed = TOLERANCE * scale + float(scattered(exact[None], [other[None] for other in others])[0])
        assert np.max(np.abs(ours - exact)) <= allowed, f"{ours} in C, {exact} in numpy"

    def _again(self, stream: Stream) -> Array:
        """The last output of all that was heard since the rings were empty."""
        return [stream.hear(rows, state) for rows, state in self._history][-1]

    def _learn(self) -> None:
        """An update; if steps can be open, the model may hear meanwhile."""
        batch = self._train.batch
        first = self._source.randrange(0, 8 - batch + 1)
        x, y = self._data.x[first : first + batch], self._data.y[first : first + batch]
        self._instance.set_rate(self._source.choice((0.01, 0.1)))
        if self._slices and self._source.randrange(2):
            self._in_slices(x, y)
        else:
            self._instance.train(x, y)
        self._numpy.weights_changed()
        assert self._instance.hear_settling() == self._numpy.unsettled

    def _in_slices(self, x: Array, y: Array) -> None:
        for sample, label in zip(x, y, strict=True):
            self._instance.begin_step(sample[None])
            while not self._instance.step_slice(label, self._source.choice((1, 1, 5000))):
                if self._source.randrange(8) == 0:
                    self._hear(is_open=True)
        if self._instance.interface.accumulates:
            self._instance.apply()

    def _rehear(self) -> None:
        calls, state = self._source.randint(1, 2 * self._listening.calls), self._state()
        rows = self._next(calls)
        self._instance.rehear(rows)
        for call in rows.reshape(calls, self._frames, -1):
            self._history.append((call, state))
            self._numpy.hear(call, state)

    def _reload(self) -> None:
        if self._source.randrange(2):
            self._instance.load(self._instance.save())
        else:
            self._instance.reset()
        self._numpy.reset()
        self._history.clear()
        self._heard = self._heard[:0]
        assert self._instance.hear_settling() == self._listening.calls

    def _err(self) -> None:
        """A wrong count of rows leaves the rings alone: the next calls show it."""
        wrong = self._source.choice(
            [n for n in (0, self._frames + 1, 2 * self._frames - 1) if n % self._frames or not n]
        )
        with pytest.raises(CompileError, match="E0105"):
            self._instance.rehear(self._rows[:wrong])
        if not self._train.integer:
            rows = np.array(self._rows[: self._frames])
            rows.flat[-1] = np.inf
            with pytest.raises(CompileError, match="E0603"):
                self._instance.hear(rows)


STREAM_KINDS = (
    Kind("streams: float", 300, partial(_case, integer=False), least_passed=0.6),
    Kind("streams: int8", 300, partial(_case, integer=True), least_passed=0.5),
)
