"""The comparison: one training step against central differences of the loss of the model file.

Joint directions over all tensors come first: a wrong tensor shows in each. Only if one disagrees are tensors judged one
by one, and what disagrees is judged again at other points before it is called wrong: a kink (a ReLU at 0, two equal
numbers in a MaxPool) is met once, a fault always.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.driver.derivative.clipping import Clipped, unclipped
from tinytrain_compile.driver.derivative.file_loss import FileLoss, Point, Sample, output_saturates
from tinytrain_compile.driver.derivative.integers import check_integers
from tinytrain_compile.driver.derivative.judged import JudgedStep, Part, norm
from tinytrain_compile.driver.derivative.optimizers import Step
from tinytrain_compile.driver.derivative.samples import sample_of
from tinytrain_compile.driver.derivative.slopes import LEAST_SIZE, SMALL, TOLERANCE, Slopes, agrees_loosely, few_numbers
from tinytrain_compile.driver.derivative.update_rule import State, check_initial, check_rule, gradients_of
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FileFunction
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import DerivativeAgreement
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions

POINTS = 3
"""Points at which a tensor that disagrees is judged before it is called wrong."""
SHAKE = 0.05
"""How far numbers are moved from the file's, of their root mean square: its own make ties and exact zeros."""
MICROSCOPE = 4096.0
"""Learning rate of a judged step of SGD: what float32 rounds off a weight vanishes beside such an update."""
LOSS_TOLERANCE = 1e-4
"""Largest difference of the losses, times max(1, |loss|), as in the comparison with the C."""
CLOSENESS = f"within {TOLERANCE:.1%}"
FOR_COPIES = 12.0
"""Evaluations after which no more gradients of low-rank copies are judged: 40 is the limit of a check."""
DISTINCT = 2
"""Different samples in a judged batch; the rest are copies of them, which cost no evaluation."""


def check_derivative(
    model: ImportedModel, train: TrainGraph, samples: Samples, options: CompileOptions
) -> DerivativeAgreement | None:
    """Judge a training step; E0607 with the tensor that differs. None if nothing is to be verified.

    train: what the C is compared with. samples: as for verification, in the graph's layout.
    """
    if options.verify == "none" or train.reads_state_of is not None:
        return None
    start = time.process_time()
    try:
        trained = [model.sources[part.parameter].tensor for part in train.trained.values()]
        file = FileFunction(options.model, options.model_output, options.weights, (*trained, *model.fresh))
        if train.integer:
            return check_integers(file, model, train, samples, options)
        return _Check(file, model, train, samples, options).run(start)
    except EvaluatorLacksError as lacks:
        return DerivativeAgreement(0, len(train.trained), None, "", 0.0, (str(lacks),), time.process_time() - start)


@dataclass(frozen=True, eq=False)
class _Batch:
    """What the judged step takes, in the graph's layout, and the same for the file."""

    x: Array
    y: Array
    samples: tuple[Sample, ...]


class _Check:
    def __init__(
        self, file: FileFunction, model: ImportedModel, train: TrainGraph, samples: Samples, options: CompileOptions
    ) -> None:
        self._file, self._model, self._train = file, model, train
        self._loss = FileLoss(file, model, options.loss)
        self._judged = JudgedStep(unclipped(train), model)
        self._how = training_options(options, model, train.batch)
        self._values = ImportedValues(model, train, model.graph)
        self._batch = self._chosen(samples)
        self._rank_error = options.rank_error
        self._worst = 0.0
        self._loosely: list[Part] = []

    def run(self, start: float) -> DerivativeAgreement:
        """Judge at one point, and what disagrees at further ones. start: CPU time at the beginning."""
        check_initial(self._judged, self._how)
        if not self._batch.samples:
            return self._agreed(start, ("no label of these samples counts",))
        suspects: tuple[Part, ...] | None = None
        here: Slopes | None = None
        seeds = iter(range(2 * POINTS))
        for _ in range(POINTS):
            found = (self._at_point(seed, suspects is None) for seed in seeds)
            here = next((slopes for slopes in found if slopes is not None), None)
            if here is None:
                return self._agreed(start, (NO_LOSS,))
            if suspects is None:
                self._check_list(here.point)
                self._worst = here.together()
                self._judge_copies(here)
                if self._worst <= 1.0:
                    return self._agreed(start)
                self._worst = 1.0  # from here on tensors are judged one by one, by the tolerance alone
                suspects = self._judged.exact
            suspects = tuple(part for part in suspects if not here.agrees(part))
            if not suspects:
                return self._agreed(start)
        assert here is not None and suspects
        raise here.differs(suspects)

    def _judge_copies(self, here: Slopes) -> None:
        """Judge gradients of low-rank copies along themselves, as many as the budget allows. E0607."""
        begin = self._file.work
        for part in self._judged.approximate:
            if self._file.work - begin >= FOR_COPIES:
                break
            if few_numbers(part):
                continue
            self._loosely.append(part)
            if not agrees_loosely(here.length(part), self._rank_error):
                raise here.differs((part,))

    def _check_list(self, point: Point) -> None:
        """Check that no initializer changes the loss unless the report lists it. E0607."""
        listed = {choice.name for choice in self._model.choices} | set(self._model.copies)
        listed |= {part.origin for part in self._judged.parts}
        floats = {name for name, array in self._file.constants.items() if array.dtype.kind == "f" and array.size}
        steps = {name: self._little(name) for name in sorted(floats - listed)}
        samples = self._batch.samples
        if not steps or self._loss.slope(point, samples, steps) == 0:
            return
        name = next((one for one in steps if self._loss.slope(point, samples, {one: steps[one]}) != 0), "")
        if name:
            what = "the loss of the model file depends on it, and the report does not list it"
            raise CompileError("E0607", f"initializer {name}", what, REPORT)

    def _little(self, name: str) -> Array:
        """Return a small step of a tensor, in a random direction."""
        array = self._file.constants[name]
        size = max(float(np.sqrt(np.mean(array**2))), LEAST_SIZE)
        return np.random.default_rng(array.size).standard_normal(array.shape) * SMALL * size

    def _agreed(self, start: float, unjudged: tuple[str, ...] = ()) -> DerivativeAgreement:
        copies = self._judged.approximate
        how = {part.name: "judged loosely" if part in self._loosely else "not judged" for part in copies}
        left = [f"{how[part.name]}: {part.origin}, whose gradient is of a low-rank copy" for part in copies]
        if self._train.dropout is not None:
            left.append("dropout: judged with nothing dropped")
        tensors, worst = (0, None) if unjudged else (len(self._judged.exact) + len(self._loosely), self._worst)
        rest, seconds = len(self._judged.parts) - tensors, time.process_time() - start
        return DerivativeAgreement(tensors, rest, worst, CLOSENESS, self._file.work, (*unjudged, *left), seconds)

    def _at_point(self, number: int, first: bool) -> Slopes | None:
        """Take a step from numbers near the file's, and the file's loss there; None if that cannot be compared."""
        train, batch = self._train, self._batch
        begin = self._judged.shaken(SHAKE / (1 + number) if number < 2 * POINTS - 1 else 0.0, number)
        begin = self._judged.settled(begin, batch.x, batch.y)
        rate = MICROSCOPE if self._how.optimizer in ("sgd", "momentum") else 1.0
        after, losses = self._judged.step(begin, batch.x, batch.y, rate)
        moved = self._judged.in_file(self._judged.change(begin), self._file.constants)
        point = self._loss.at(batch.samples, {name: self._file.constants[name] + step for name, step in moved.items()})
        if not np.isfinite(losses).all() and not np.isfinite(point.losses).all():
            return None
        problem = self._other_loss(losses, point)
        if problem is not None and self._model.loss is None and output_saturates(self._file, point):
            return None
        if problem is not None:
            raise problem
        update = Step(rate / train.batch if train.in_place and self._divides else rate, self._how.steps_before)
        gradients = gradients_of(self._judged, self._how, update, begin, after)
        if first:
            self._check_updates((begin, after), rate, update, gradients)
        return Slopes(self._judged, self._loss, point, batch.samples, gradients)

    def _check_updates(
        self, states: tuple[State, State], rate: float, update: Step, gradients: Mapping[str, Array]
    ) -> None:
        """Check two updates on the same samples against the optimizer's formula, and again as they are clipped.

        states: before and after the first one, unclipped.
        """
        judged, how, begin = self._judged, self._how, states[0]
        exact = {part.name: gradients[part.name] for part in judged.exact}  # the subspaces of copies move
        three = (*states, self._again(judged, states, rate))
        found = check_rule(judged, how, update, three, (gradients, exact), "the first")
        if how.clip_norm is None:
            return
        norms = [{name: norm((array,)) for name, array in each.items()} for each in found]
        factors = Clipped(how, self._model, judged.parts).factors(norms[0], norms[1])
        first, second = ({n: f[n] * g for n, g in each.items()} for f, each in zip(factors, found, strict=True))
        clipped = JudgedStep(self._train, self._model)
        after, _ = clipped.step(begin, self._batch.x, self._batch.y, rate)
        three = (begin, after, self._again(clipped, (begin, after), rate))
        check_rule(clipped, how, update, three, (first, second), "its norm clips it to")

    def _again(self, judged: JudgedStep, states: tuple[State, State], rate: float) -> State:
        """Update a second time on the same samples, from the numbers of the first, and return the state."""
        begin, after = states
        return judged.step({**after, **judged.numbers(begin)}, self._batch.x, self._batch.y, rate)[0]

    @property
    def _divides(self) -> bool:
        return self._train.terms.divisor != "one"

    def _chosen(self, samples: Samples) -> _Batch:
        """Choose the batch that is judged: few different samples, the first of them most often."""
        train = self._train
        size = train.micro_batch if train.in_place else train.batch
        found: list[tuple[int, Sample]] = []
        for index in range(len(samples.x)):
            sample = sample_of(self._values, self._model, samples, index)
            if self._loss.counts(sample):
                found.append((index, sample))
            if len(found) == min(DISTINCT, size):
                break
        rest = size // 3 if len(found) > 1 else 0
        rest = max(rest, 1) if len(found) > 1 else 0
        counts = (size - rest, rest)
        order = [index for (index, _), count in zip(found, counts, strict=False) for _ in range(count)]
        different = (Sample(s.x, s.y, count) for (_, s), count in zip(found, counts, strict=False))
        return _Batch(samples.x[order], samples.y[order], tuple(different))

    def _other_loss(self, losses: Sequence[float], point: Point) -> CompileError | None:
        """Return E0607 if a call's loss is not the file's: it would look like wrong gradients later."""
        together = self._train.micro_batch
        each = np.repeat(point.losses, [sample.count for sample in self._batch.samples])
        weights = np.repeat(
            [share / sample.count for share, sample in zip(point.shares, self._batch.samples, strict=True)],
            [sample.count for sample in self._batch.samples],
        )
        for call, ours in enumerate(losses):
            part = slice(call * together, (call + 1) * together)
            scale = 1.0 if not self._divides else 1 / weights[part].sum()
            theirs = float(np.dot(each[part], weights[part]) * scale)
            if not abs(ours - theirs) <= LOSS_TOLERANCE * max(1.0, abs(theirs)):
                what = f"{theirs:.7g} by the model file, {ours:.7g} in the training step"
                return CompileError("E0607", f"loss of call {call + 1}", what, REPORT)
        return None


NO_LOSS = "the loss of these samples is not finite, or their outputs are beyond the range of their format"
REPORT = "please report this with the model; see --explain E0607"
