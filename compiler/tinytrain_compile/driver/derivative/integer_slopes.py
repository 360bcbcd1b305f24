"""Both sides in integers: the gradients that int8 updates show, and the slopes of the model file at the same numbers.

Two figures tell a fault from rounding, for each trained tensor: how long the file's derivative is along the gradient of
the update (1 if they are equal, 0.5 if the update is twice too large, -1 if its sign is wrong), and how far they are
apart in other directions (a part that the update lacks). The file is evaluated without rounding, at the numbers that
the integer graph rounds to: what rounding adds to a tensor is a constant there, and the ends of a range stay ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.file_loss import FileLoss, Point
from tinytrain_compile.driver.derivative.integer_step import FINER, IntegerStep, Pass
from tinytrain_compile.driver.derivative.judged import Part, norm
from tinytrain_compile.driver.derivative.rates import Shown
from tinytrain_compile.driver.derivative.samples import Batch, JudgedSamples, RoundedValues
from tinytrain_compile.frontend import FileFunction, Rounded
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.training import TrainingOptions

SMALL = 1e-5
"""Length of a step, of a tensor's own: in float64 a one-sided difference is exact to 1e-4 there."""
LEAST_SIZE = 1e-3
"""Root mean square that a tensor of zeros is taken to have in that."""
EVALUATIONS = 6
"""Evaluations for the tensors of a layer on one sample: one along each gradient, the others along random directions."""
COARSER = 1
"""Bits that errors lose to show what their rounding adds."""
CHANCES = 3
"""Passes whose errors are rounded by chance, to show what that adds."""
TIE, MOST_TIES = 4e-4, 0.25
"""Between neighbours of which the first counts as larger, and in all: shares of a format's step."""
BELOW = 0.01
"""Distance below zero at which a stored zero is evaluated if a function bends there: a share of its format's step."""
_BENT = ("Celu", "Elu", "LeakyRelu", "PRelu", "Selu")
"""Functions that bend at zero; the gradient there is that of the negative side (ops/activation.py: x > 0)."""
NOISE = 5.0
"""The difference of two gradients, one of which rounds twice as coarsely, has 1 + 4 times the energy of the finer one's
rounding."""
_FORMS = ("Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that an exporter writes between a weight and its layer."""


@dataclass(eq=False)
class Compared:
    """What was found of one tensor, on one batch after the other.

    ours: squared norm of its gradient. along: its product with the file's. apart: squared differences along random
    directions, each with `ours`. rounding: squared norm of what the rounding of errors adds. file: norm of the file's
    gradient, about, where there is none of ours; finer: ours if errors have more bits then. size: of the parameter.
    earlier: how many of `apart` are of the batches before. cut: on how many batches errors did not pass at the end of a
    range inside of an operator of the file, or of its output, on their way to it. coarse: on how many batches a tensor
    lost much of its numbers as it was stored, but was read unrounded as well.
    """

    part: Part
    ours: list[float] = field(default_factory=list[float])
    along: list[float] = field(default_factory=list[float])
    apart: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    rounding: list[float] = field(default_factory=list[float])
    file: list[float] = field(default_factory=list[float])
    finer: list[float] = field(default_factory=list[float])
    size: float = 0.0
    earlier: int = 0
    cut: int = 0
    coarse: int = 0

    def latest(self) -> Compared:
        """Return what the last batch alone has shown."""
        last, apart = (self.ours[-1:], self.along[-1:]), self.apart[self.earlier :]
        return Compared(self.part, *last, apart, self.rounding[-1:], self.file[-1:], self.finer, self.size)

    @property
    def length(self) -> float:
        """Return how long the file's derivative is along the update's gradient, of the latter."""
        return sum(self.along) / (sum(self.ours) or 1e-300)

    @property
    def distance(self) -> float:
        """Return the squared distance of the gradients, of the update's own square."""
        return sum(d for d, _ in self.apart) / (sum(square for _, square in self.apart) or 1e-300)

    @property
    def noise(self) -> float:
        """Return the share of rounding in the update's gradient."""
        return sum(self.rounding) / (sum(self.ours) or 1e-300)

    @property
    def strength(self) -> float:
        """Return how much a change of the whole tensor would do to the loss, by our gradient."""
        return float(np.sqrt(max(self.ours, default=0.0))) * self.size


class IntegerSlopes:
    """Compares tensors on one batch after the other."""

    def __init__(
        self, file: FileFunction, model: ImportedModel, train: TrainGraph, samples: Samples, how: TrainingOptions
    ) -> None:
        self._file = file
        self._loss = FileLoss(file, model, how.loss)
        self.step = IntegerStep(train, model, how)
        self._samples = JudgedSamples(model, train, samples, self._loss)
        self._rounded = RoundedValues(model, train)
        stored = {name for node in file.nodes if node.op == "QuantizeLinear" for name in (node.inputs[0],)}
        self._free = stored | set(file.outputs if model.loss is not None else ())
        """Tensors that may lie beyond the range of their format, and the loss, which is compared."""
        self._pooled = {node.inputs[0] for node in file.nodes if node.meaning in ("MaxPool", "GlobalMaxPool")}
        self._bent = {node.inputs[0] for node in file.nodes if node.meaning in _BENT}
        moved = self.step.judged.in_file(self.step.change(), file.constants)
        self._start = {name: file.constants[name] + step for name, step in moved.items()}
        self.found = {part.name: Compared(part) for part in self.step.parts}
        self._rng = np.random.default_rng(len(self.found))
        self.groups = self._layers()

    @property
    def batches(self) -> int:
        """Return how many different batches there are."""
        return self._samples.batches

    def run(self, number: int) -> tuple[Batch, Pass, Point]:
        """Run both sides on the batch of this number."""
        batch = self._samples.batch(number)
        found = self.step.run(batch.x, batch.y)
        rounded = [self._held(self._rounded.of(found.calls[call], place)) for call, place in batch.places()]
        return batch, found, self._loss.near(batch.samples, self._start, rounded)

    def compare(self, batch: Batch, point: Point, shown: Mapping[str, Shown], groups: Sequence[Sequence[Part]]) -> None:
        """Compare tensors at a point. groups: those that share random directions."""

        def rise(steps: Mapping[str, Array]) -> float:
            return self._loss.rise(point, batch.samples, self.step.judged.in_file(steps, point.known[0]))

        along = {p.name: self._along(p, point, shown[p.name], rise) for group in groups for p in group}
        for group in groups:
            for part in group:
                row = self.found[part.name]
                row.ours.append(shown[part.name].square)
                row.along.append(along[part.name])
            each = max(EVALUATIONS // len(batch.samples) - len(group), 1)
            for _ in range(each):
                self._apart(group, shown, rise)

    def rounding(self, batch: Batch, shown: Mapping[str, Shown], parts: Sequence[Part]) -> None:
        """Find out what rounding does to gradients.

        The rounding of errors shows if they have fewer or more bits, or are rounded by chance. The rounding of the
        updated numbers is known from the rates that showed them.
        """
        coarse = self.step.gradients(self.step.run(batch.x, batch.y, COARSER), parts)
        passes = [self.step.run(batch.x, batch.y, otherwise=seed) for seed in range(CHANCES)]
        by_chance = [self.step.gradients(found, parts) for found in passes]
        for part in parts:
            mine, row = shown[part.name], self.found[part.name]
            chance = sum(_distance(mine, others[part.name]) for others in by_chance) / CHANCES
            off = self._rounded_off(batch, part, mine)
            errors = max(_distance(mine, coarse[part.name]) / NOISE, chance, off)
            row.rounding.append(errors + float((mine.noise**2)[mine.known].sum()))
            if not mine.square and not sum(row.finer):
                row.finer.append(self._hidden(batch, part))

    def note_cut(self, found: Pass, rows: Sequence[Compared], all_rows: bool) -> None:
        """Count for tensors if the file has no tensor where errors are cut off on their way, or numbers are lost.

        all_rows: errors are cut off at the output, on their way to every tensor.
        """
        coarse = self._rounded.rounds_away(found.calls)
        graph = self.step.train.graph
        names = set(self._rounded.cut_inside(found.calls))
        cuts = tuple(value for node in graph.nodes for value in node.outputs if value.name in names)
        behind = graph.ancestors(cuts) if cuts else frozenset[str]()
        beside = {node.name for value in cuts for node in graph.consumers().get(value.name, ())}
        read = {value.name for node in graph.nodes if node.name in behind | beside for value in node.inputs}
        for row in rows:
            row.cut += all_rows or row.part.name in read
            row.coarse += coarse

    def _rounded_off(self, batch: Batch, part: Part, mine: Shown) -> float:
        """Return the squared norm of what rounding takes off a gradient, in channels whose errors are all small."""
        channels = part.shape[0] if part.shape else 1
        off, left = 0.0, np.ones(channels, bool)
        for exponent in self.step.own_exponents(part):
            for bits in FINER:
                found = self.step.run(batch.x, batch.y, finer=(exponent, bits))
                clear = self.step.uncut(found, exponent, channels) & left
                if clear.any():
                    fine, left = self.step.gradients(found, (part,))[part.name], left & ~clear
                    off += _distance(mine, fine, clear.reshape(part.shape[:1] + (1,) * (len(part.shape) - 1)))
        return off

    def _hidden(self, batch: Batch, part: Part) -> float:
        """Return the squared norm of a gradient that appears once an error on the way has more bits.

        0 if there is none.
        """
        for exponent in self.step.exponents:
            found = self.step.run(batch.x, batch.y, finer=(exponent, FINER[0]))
            square = self.step.gradients(found, (part,))[part.name].square
            if square:
                return square
        return 0.0

    def _held(self, rounded: Mapping[str, Rounded]) -> dict[str, Rounded]:
        held = {name: one for name, one in rounded.items() if name not in self._free}
        held |= {name: replace(held[name], array=_below_zero(held[name].array)) for name in self._bent & held.keys()}
        return held | {
            name: replace(held[name], array=_untied(held[name].array)) for name in self._pooled & held.keys()
        }

    def _along(self, part: Part, point: Point, shown: Shown, rise: Callable[[Mapping[str, Array]], float]) -> float:
        """Return the product of both gradients. If ours is nothing, the file's along a random direction is kept."""
        row, length, own = self.found[part.name], float(np.sqrt(shown.square)), self._size(part, point)
        row.size = own
        if length:
            scale = SMALL * own / length
            return rise({part.name: np.where(shown.known, shown.gradient * scale, 0)}) / scale
        scale = SMALL * own / np.sqrt(part.source.places.size)
        row.file.append(abs(rise({part.name: self._signs(part, shown) * scale})) / scale)
        return 0.0

    def _apart(
        self,
        group: Sequence[Part],
        shown: Mapping[str, Shown],
        rise: Callable[[Mapping[str, Array]], float],
    ) -> None:
        """Compare along one random direction, in which all tensors of a layer count alike."""
        lengths = {part.name: float(np.sqrt(shown[part.name].square)) for part in group}
        counted = [part for part in group if lengths[part.name]]
        if not counted:
            return
        sizes = [lengths[p.name] * self.found[p.name].size / np.sqrt(p.source.places.size) for p in counted]
        reach, ours, steps = SMALL * min(sizes), 0.0, dict[str, Array]()
        for part in counted:
            steps[part.name] = self._signs(part, shown[part.name]) * (reach / lengths[part.name])
            ours += float((shown[part.name].gradient * steps[part.name]).sum())
        difference = ((rise(steps) - ours) / reach) ** 2
        for part in counted:
            square = shown[part.name].square
            self.found[part.name].apart.append((difference * square, square))

    def _signs(self, part: Part, shown: Shown) -> Array:
        return np.where(shown.known, self._rng.integers(0, 2, part.shape) * 2.0 - 1.0, 0)

    def _size(self, part: Part, point: Point) -> float:
        """Return the norm of a parameter, as the file's numbers have it."""
        numbers = point.known[0][part.origin].reshape(-1)[part.source.places.reshape(-1)]
        factor = np.abs(np.broadcast_to(part.factor(), part.shape)).reshape(-1)
        return max(norm((numbers * factor,)), LEAST_SIZE * float(np.sqrt(numbers.size)))

    def _layers(self) -> list[list[Part]]:
        """Group parts by the node of the file that reads them: the same nodes are evaluated again after it."""
        groups: dict[str, list[Part]] = {}
        for part in self.step.parts:
            groups.setdefault(self._reader(part.origin), []).append(part)
        return list(groups.values())

    def _reader(self, name: str) -> str:
        while True:
            readers = [node for node in self._file.nodes if name in node.inputs]
            layers = [node for node in readers if node.op not in _FORMS]
            if layers or not readers:
                return layers[0].outputs[0] if layers else name
            name = readers[0].outputs[0]


def _distance(one: Shown, other: Shown, places: NDArray[np.bool_] | bool = True) -> float:
    """Return the squared distance of two gradients of a part, where both are known."""
    both = one.known & other.known & places
    return float((np.where(both, one.gradient - other.gradient, 0) ** 2).sum())


def _below_zero(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move zeros below zero, by little of the smallest difference of these numbers."""
    levels = np.unique(np.append(array, 0.0))
    step = np.diff(levels).min() if len(levels) > 1 else LEAST_SIZE
    return np.where(array == 0, -BELOW * step, array)


def _untied(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Make numbers smaller the later they come, by much less than a step of their format: the first of equals wins.

    That one gets the error of a window in which integers are equal.
    """
    levels = np.unique(array)
    if len(levels) < 2:
        return array
    places = int(np.prod(array.shape[2:]))
    ramp = np.arange(places).reshape(array.shape[2:]) * min(TIE, MOST_TIES / places)
    return array - ramp * np.diff(levels).min()
