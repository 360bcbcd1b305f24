"""`tinytrain-compile contribution`: what each part of each layer is worth, measured by short training runs.

A run trains one part beside the last layer. Its gain is the loss on held-back samples that it saves over the last layer
alone, each at the rate that suits it best; the last layer's own is over the file as it is. `--gains` reads the table.
With groups of channels a weight's gain is shared out among its channels by what the groups of an axis gain.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tinytrain_compile.data.own_data import check_classes
from tinytrain_compile.driver.progress import Progress
from tinytrain_compile.files.output_folder import replace_file
from tinytrain_compile.ir.learning import Score, mean_score
from tinytrain_compile.ir.stages import ChannelSlice
from tinytrain_compile.learn.runs import KnownRuns, check_out, unwritten
from tinytrain_compile.learn.short_runs import RATE_STEPS, Desk, Run, make_desk
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.effort import ContributionEffort
from tinytrain_compile.sparse import COLUMNS, Layer, SchemeEntry, axes_of, entry_updates, whole_only
from tinytrain_compile.verify.tools import work_folder


@dataclass(frozen=True)
class Gain:
    """What a part of a layer is worth: loss saved; accuracy: with it (None: labels are values).

    axis, channels: which of a weight's channels were trained alone ("": all of it).
    """

    layer: str
    part: str
    gain: float
    accuracy: float | None
    elements: int
    axis: str = ""
    channels: tuple[int, ...] = ()


Updates = Mapping[str, ChannelSlice | None]
NOTHING: Updates = {}


@dataclass(frozen=True)
class _Part:
    """All of a part of a layer, or of a weight these channels of an axis."""

    layer: Layer
    part: str
    axis: str = ""
    channels: tuple[int, ...] = ()

    @property
    def updates(self) -> dict[str, ChannelSlice | None]:
        if self.channels:
            return entry_updates(self.layer, SchemeEntry(self.layer.name, False, self.channels, self.axis))
        values = self.layer.biases if self.part == "bias" else self.layer.weights
        return dict.fromkeys(value.name for value in values)

    @property
    def elements(self) -> int:
        values = self.layer.biases if self.part == "bias" else self.layer.weights
        if self.channels:
            return values[0].elements * len(self.channels) // axes_of(self.layer)[self.axis]
        return sum(value.elements for value in values)


@dataclass(frozen=True)
class Contribution:
    """What each part is worth, and notes on the samples that say so."""

    gains: list[Gain]
    notes: tuple[str, ...] = ()


def measure(options: CompileOptions, effort: ContributionEffort, out: Path, progress: Progress) -> Contribution:
    """Measure all parts and write the table to `out`. What an earlier call had done already is not done again.

    Deterministic: the same model, options, data and effort give the same table, however many jobs there are.
    """
    check_out(out, ".csv", "the table that --gains will read")
    desk = make_desk(options, effort.updates, progress)
    check_classes(str(options.data and options.data.name), [desk.y, desk.held.y], desk.train)
    plan = _Plan([*_parts(desk, effort.groups)], desk.layers[-1].name, desk.rate, options.seed, effort)
    known = _Known(out, _digest(desk, options, effort))
    runs = {_key(run): run for updates in (NOTHING, *plan.trained) for run in plan.runs(updates)}
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
    return Contribution(gains, desk.notes)


def table(layers: Sequence[Layer], gains: Sequence[Gain]) -> str:
    """Write the CSV that --gains reads: a weight with channels on two axes has rows for each.

    The largest gain is 1000.
    """
    wholes = [gain for gain in gains if not gain.channels]
    most, by_name = max((gain.gain for gain in wholes), default=0.0), {layer.name: layer for layer in layers}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for whole in wholes:
        axes = axes_of(by_name[whole.layer]) if whole.part == "weight" else {}
        for axis in axes or ("",):
            groups = [gain for gain in gains if gain.channels and (gain.layer, gain.axis) == (whole.layer, axis)]
            for channel, share in _shares(groups) if groups and axis else (("*", 1.0),):
                gain = 1000 * share * whole.gain / most if most > 0 else 0.0
                writer.writerow((whole.layer, whole.part, axis, channel, f"{gain:.6f}"))
    return text.getvalue()


def _shares(groups: Sequence[Gain]) -> Iterator[tuple[str, float]]:
    """Yield for every channel of an axis what its group gains, of the sum over groups.

    As much for each if none gains.
    """
    total, count = sum(group.gain for group in groups), sum(len(group.channels) for group in groups)
    for group in groups:
        share = group.gain / total / len(group.channels) if total > 0 else 1 / count
        yield from ((str(channel), share) for channel in group.channels)


def _parts(desk: Desk, groups: int) -> Iterator[_Part]:
    """Yield biases, weights and groups of channels of all layers that have them, but not of the network's outputs."""
    whole, layers = whole_only(desk.model.graph), desk.layers
    for layer in layers:
        if layer.biases:
            yield _Part(layer, "bias")
        if not layer.weights:
            continue
        yield _Part(layer, "weight" if has_trait(layer.node.op, "matrix") else "norm")
        for axis, total in axes_of(layer).items() if layer.weights[0].name not in whole else ():
            count = min(groups, total)
            if count > 1 and not (axis == "out" and layer is layers[-1]):
                for channels in np.array_split(np.arange(total), count):
                    yield _Part(layer, "weight", axis, tuple(channels.tolist()))


@dataclass(frozen=True)
class _Plan:
    """Which runs there are, and what they say. last: the last layer; rate: that the others are multiples of."""

    parts: Sequence[_Part]
    last: str
    rate: float
    seed: int
    effort: ContributionEffort

    @property
    def trained(self) -> list[Updates]:
        """List what the runs train: the last layer whole, its parts alone, and every other part beside it."""
        head: dict[str, ChannelSlice | None] = {}
        for part in self.parts:
            head |= part.updates if part.layer.name == self.last and not part.channels else {}
        each = (part.updates if part.layer.name == self.last else {**head, **part.updates} for part in self.parts)
        return [head, *each]

    def runs(self, updates: Updates) -> list[Run]:
        """Yield a run for every rate and order; one run if nothing is trained."""
        if not updates:
            return [Run({})]
        rates = [self.rate * step for step in RATE_STEPS]
        return [Run(updates, rate, self.seed + order) for rate in rates for order in range(self.effort.orders)]

    def best(self, updates: Updates, known: _Known) -> Score:
        """Return the mean over orders at the rate that suits best."""
        found = [outcome for run in self.runs(updates) if (outcome := known.of(run)) is not None]
        size = self.effort.orders if updates else len(found)
        return min(
            (mean_score(found[first : first + size]) for first in range(0, len(found), size)), key=lambda one: one.loss
        )

    def gains(self, known: _Known) -> list[Gain]:
        """Return each part's gain over the last layer alone; the last layer's own parts, over the file as it is."""
        head, *each = self.trained
        untrained, alone = self.best(NOTHING, known), self.best(head, known)
        gains = list[Gain]()
        for part, updates in zip(self.parts, each, strict=True):
            found, name = self.best(updates, known), part.layer.name
            saved = (untrained if name == self.last else alone).loss - found.loss
            gain = saved if np.isfinite(saved) and saved > 0 else 0.0
            gains.append(Gain(name, part.part, gain, found.accuracy, part.elements, part.axis, part.channels))
        return gains


def _digest(desk: Desk, options: CompileOptions, effort: ContributionEffort) -> str:
    """Return the digest of all that decides outcomes."""
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
    trained = sorted((name, piece and (piece.axis, piece.channels)) for name, piece in run.updates.items())
    return repr((trained, run.rate, run.seed))
