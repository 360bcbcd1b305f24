"""`tinytrain-compile contribution`: what each part of each layer is worth, measured by short training runs.

A run trains one part beside the last layer. Its gain is the loss on held-back samples that it saves over the last layer
alone, each at the rate that suits it best; the last layer's own is over the file as it is. `--gains` reads the table.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tinytrain_compile.driver.known_runs import KnownRuns, check_out, unwritten
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pipeline import Progress
from tinytrain_compile.driver.short_runs import RATE_STEPS, Desk, Run, make_desk
from tinytrain_compile.files.output_folder import replace_file
from tinytrain_compile.ir.learning import Score, mean_score
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.sparse import COLUMNS, Layer, axes_of
from tinytrain_compile.verify import work_folder


@dataclass(frozen=True)
class Effort:
    """updates: of each run; orders: orders of samples that a gain is the mean of; jobs: processes, -1 for all cores."""

    updates: int = 100
    orders: int = 2
    jobs: int = -1


@dataclass(frozen=True)
class Gain:
    """What a part of a layer is worth: loss saved; accuracy: with it (None: labels are values)."""

    layer: str
    part: str
    gain: float
    accuracy: float | None
    elements: int


@dataclass(frozen=True)
class _Part:
    layer: Layer
    part: str

    @property
    def names(self) -> tuple[str, ...]:
        values = self.layer.biases if self.part == "bias" else self.layer.weights
        return tuple(value.name for value in values)

    @property
    def elements(self) -> int:
        values = self.layer.biases if self.part == "bias" else self.layer.weights
        return sum(value.elements for value in values)


def measure(options: CompileOptions, effort: Effort, out: Path, progress: Progress) -> list[Gain]:
    """Measure all parts and write the table to `out`. What an earlier call had done already is not done again.

    Deterministic: the same model, options, data and effort give the same table, however many jobs there are.
    """
    check_out(out, ".csv", "the table that --gains will read")
    desk = make_desk(options, effort.updates, progress)
    plan = _Plan(_parts(desk), desk.rate, options.seed, effort)
    known = _Known(out, _digest(desk, options, effort))
    runs = {_key(run): run for names in ((), *plan.trained) for run in plan.runs(names)}
    missing = [run for run in runs.values() if known.of(run) is None]

    def done(index: int, outcome: Score) -> None:
        known.add(missing[index], outcome)
        count = len(runs) - len(missing) + index + 1
        progress(f"training, run {count} of {len(runs)}", 0.1 + 0.9 * count / len(runs))

    try:
        with work_folder() as folder:
            desk.run_all(missing, desk.library(folder), effort.jobs, done)
    except KeyboardInterrupt as problem:
        problem.args = (f"what was measured is in {known.runs.path.name}; call it again to go on",)
        raise
    gains = plan.gains(known)
    try:
        replace_file(out, table(desk.layers, gains))
    except OSError as problem:
        raise unwritten(out, problem.strerror or "cannot be written") from problem
    known.runs.forget()
    return gains


def table(layers: Sequence[Layer], gains: Sequence[Gain]) -> str:
    """The CSV that --gains reads: a weight with channels on two axes has a row for each; the largest gain is 1000."""
    most = max((gain.gain for gain in gains), default=0.0)
    text, by_name = io.StringIO(), {layer.name: layer for layer in layers}
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for gain in gains:
        axes = axes_of(by_name[gain.layer]) if gain.part == "weight" else {}
        for axis in axes or ("",):
            writer.writerow((gain.layer, gain.part, axis, "*", f"{1000 * gain.gain / most if most > 0 else 0.0:.6f}"))
    return text.getvalue()


def _parts(desk: Desk) -> list[_Part]:
    """Biases and weights of all layers that have them; the last layer's at the end."""
    found = list[_Part]()
    for layer in desk.layers:
        if layer.biases:
            found.append(_Part(layer, "bias"))
        if layer.weights:
            found.append(_Part(layer, "weight" if has_trait(layer.node.op, "matrix") else "norm"))
    return found


@dataclass(frozen=True)
class _Plan:
    """Which runs there are, and what they say. rate: that the others are multiples of."""

    parts: Sequence[_Part]
    rate: float
    seed: int
    effort: Effort

    @property
    def trained(self) -> list[tuple[str, ...]]:
        """What the runs train: the last layer whole, its parts alone, and every other part beside it."""
        last = self.parts[-1].layer.name
        head = tuple(name for part in self.parts if part.layer.name == last for name in part.names)
        each = (part.names if part.layer.name == last else (*head, *part.names) for part in self.parts)
        return [head, *each]

    def runs(self, names: tuple[str, ...]) -> list[Run]:
        """At every rate and in every order; one where nothing is trained."""
        if not names:
            return [Run({})]
        rates = [self.rate * step for step in RATE_STEPS]
        return [Run(dict.fromkeys(names), r, self.seed + order) for r in rates for order in range(self.effort.orders)]

    def best(self, names: tuple[str, ...], known: _Known) -> Score:
        """The mean over orders at the rate that suits best."""
        found = [outcome for run in self.runs(names) if (outcome := known.of(run)) is not None]
        size = self.effort.orders if names else len(found)
        return min(
            (mean_score(found[first : first + size]) for first in range(0, len(found), size)), key=lambda one: one.loss
        )

    def gains(self, known: _Known) -> list[Gain]:
        """Of every part, over the last layer alone; of its own, over the file as it is."""
        head, *each = self.trained
        untrained, alone, last = self.best((), known), self.best(head, known), self.parts[-1].layer.name
        gains = list[Gain]()
        for part, names in zip(self.parts, each, strict=True):
            found = self.best(names, known)
            saved = (untrained if part.layer.name == last else alone).loss - found.loss
            gain = saved if np.isfinite(saved) and saved > 0 else 0.0
            gains.append(Gain(part.layer.name, part.part, gain, found.accuracy, part.elements))
        return gains


def _digest(desk: Desk, options: CompileOptions, effort: Effort) -> str:
    """Of all that decides outcomes."""
    hashed = hashlib.sha256(repr((sorted(desk.bundle.files.items()), effort.updates, options.seed)).encode())
    for array in (desk.x, desk.y, desk.held.x, desk.held.y):
        hashed.update(array.tobytes())
    return hashed.hexdigest()


class _Known:
    """Scores by run."""

    def __init__(self, out: Path, digest: str) -> None:
        self.runs = KnownRuns(out, digest)

    def of(self, run: Run) -> Score | None:
        found = self.runs.of(_key(run))
        return None if found is None else Score(**found)

    def add(self, run: Run, outcome: Score) -> None:
        self.runs.add(_key(run), asdict(outcome))


def _key(run: Run) -> str:
    return repr((sorted(run.updates), run.rate, run.seed))
