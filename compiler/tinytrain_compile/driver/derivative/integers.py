"""The comparison in integers: slope and distance of the gradients of both sides, tensor by tensor.

Every tensor is judged on one batch. What disagrees is judged on further ones, by itself, and then what the rounding of
errors adds to its gradient is measured: by backward passes whose errors have fewer bits, more bits, or are rounded by
chance. A tensor that agrees on one of these batches is right: rounding differs from batch to batch, a fault is in all.
Not judged, but listed in the report: a tensor whose gradient is mostly rounding, one whose error does not pass a range
inside of an operator of the file, and one beside numbers that are read both unrounded and stored, where storing loses
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.driver.derivative.clipping import Clipped, unclipped
from tinytrain_compile.driver.derivative.file_loss import Point, output_saturates
from tinytrain_compile.driver.derivative.integer_rule import check_clipped, check_later
from tinytrain_compile.driver.derivative.integer_slopes import Compared, IntegerSlopes
from tinytrain_compile.driver.derivative.integer_step import IntegerStep
from tinytrain_compile.driver.derivative.judged import Part
from tinytrain_compile.driver.derivative.samples import Batch
from tinytrain_compile.driver.derivative.slopes import agrees_loosely, few_numbers
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FileFunction
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import DerivativeAgreement
from tinytrain_compile.ops.int8.targets import TargetAttrs
from tinytrain_compile.ops.names import operand
from tinytrain_compile.options.compile_options import CompileOptions

SHORTEST, LONGEST = 0.75, 1.3
"""Of the file's derivative along the gradient of an update, of the latter's length."""
APART = 0.25
"""Largest squared distance of the two, of the update's gradient squared."""
ALLOWED = 4.0
"""Times what rounding adds to a gradient, squared: further off than these bounds."""
NOISY = 0.08
"""A tensor with more rounding than that in its gradient, squared, is not judged if it disagrees."""
MORE = 3
"""Further batches on which a tensor that disagrees is judged."""
WEAKEST = 1e-3
"""A tensor without a gradient is right if the file's is below this share of the strongest."""
NOTHING = 1e-6
"""A tensor without a gradient is also right if a change by its own size changes the file's loss by less than this share
of max(1, |loss|): a softmax saturates earlier in int8 than in the file (campaign, seed 65, case 399: 4e-7)."""
RESIDUE = 1e-6
"""Share of the strongest gradient that float32 leaves of opposite numbers: some units of its last place, 6e-8."""
REACH = 2.0**13
"""Steps of an output's format that a difference of mse reaches in integers."""
LOSS = 2e-3
"""Largest difference of the losses, times max(1, |loss|): at the same rounded outputs."""
CLOSENESS = "by slope"


def check_integers(
    file: FileFunction, model: ImportedModel, train: TrainGraph, samples: Samples, options: CompileOptions
) -> DerivativeAgreement:
    """Judge a training step in integers; E0607 with the tensor that differs."""
    return IntegerCheck(file, model, train, samples, options).run()


class IntegerCheck:
    """One check; `slopes`: what it has found; `disagreed`: tensors that were judged again."""

    def __init__(
        self, file: FileFunction, model: ImportedModel, train: TrainGraph, samples: Samples, options: CompileOptions
    ) -> None:
        self._start = time.process_time()
        self._file, self._train, self._model = file, train, model
        self._how = training_options(options, model, train.batch)
        self._rank_error = options.rank_error
        self.slopes = IntegerSlopes(file, model, unclipped(train), samples, self._how)
        self._step = self.slopes.step
        self._hidden: tuple[str, ...] = ()
        self._nothing = NOTHING
        self.disagreed = 0

    def run(self) -> DerivativeAgreement:
        """Judge all tensors on one batch; what disagrees there again by itself, and on further ones."""
        if not self.slopes.batches:
            return self._agreed((), ("no label of these samples counts",))
        suspects = self._first()
        for copy in self._step.copies:
            copy.check()
        if suspects is None:
            return self._agreed((), ("the loss of these samples is not finite, or beyond what their formats hold",))
        self.disagreed = len(suspects)
        left = suspects
        for number in range(MORE + 1):
            if not left:
                break
            self._again(left, number)
            left = [row for row in left if not (self._agrees(row) or self._agrees(row.latest()))]
        wrong = [row for row in left if not self._excused(row)]
        if wrong:
            raise self._differs(wrong)
        noisy = [row for row in suspects if row.noise > NOISY or not sum(row.ours) or row in left]
        signs = [part for part in self._step.parts if self._by_sign(part)]
        return self._agreed(
            [
                *(f"not judged: {row.part.origin}, {self._why(row)}" for row in noisy),
                *(f"not judged: {part.origin}, whose int8 update is a sign: it hides the gradient" for part in signs),
            ]
        )

    def _by_sign(self, part: Part) -> bool:
        """Tell whether a tensor moves by the sign of its gradient alone: int8 weights with Lion."""
        velocity = self._train.velocity
        return velocity is not None and velocity.signed and not self.is_real(part)

    def is_real(self, part: Part) -> bool:
        """Tell whether a tensor is float32."""
        return self._step.unit(part) is None

    def _first(self) -> list[Compared] | None:
        """Judge all tensors on the first batch; those that disagree. None if the loss is not finite, or cut short."""
        batch, found, point = self.slopes.run(0)
        if not np.isfinite(point.losses).all() or self._cut_short(batch, point):
            return None
        self._nothing = NOTHING * max(1.0, abs(point.loss))
        if not self._same_loss(found.losses, point):
            if self._output_saturates(point):
                return None
            raise self._other_loss(found.losses, point)
        groups = [[part for part in group if not self._by_sign(part)] for group in self.slopes.groups]
        shown = self._step.gradients(found, [part for group in groups for part in group])
        if self._train.velocity is not None and not self._train.velocity.signed:
            self._hidden = check_later(self._step, found, {})
        if self._how.clip_norm is not None:
            clipping = IntegerStep(self._train, self._model, self._how)
            clipped = Clipped(self._how, self._model, self._step.parts)
            hidden = check_clipped(clipping, clipping.run(batch.x, batch.y), shown, clipped)
            self._hidden = tuple(dict.fromkeys((*self._hidden, *hidden)))
        self.slopes.compare(batch, point, shown, groups)
        return [row for row in self.slopes.found.values() if not self._by_sign(row.part) and not self._agrees(row)]

    def _again(self, suspects: Sequence[Compared], number: int) -> None:
        """Compare them on a further batch, each by itself, and measure the rounding."""
        parts = [row.part for row in suspects]
        batch, found, point = self.slopes.run(number)
        shown = self._step.gradients(found, parts)
        if number == 0:
            for row in suspects:  # what was found along directions of the whole layer
                for kept in (row.ours, row.along, row.apart, row.file):
                    kept.clear()
        for row in suspects:
            row.earlier = len(row.apart)
        self.slopes.compare(batch, point, shown, [[part] for part in parts])
        self.slopes.rounding(batch, shown, parts)
        self.slopes.note_cut(found, suspects, self._output_saturates(point))

    def _agrees(self, row: Compared) -> bool:
        """Tell whether a tensor is within the bounds, and what rounding adds to them."""
        more = ALLOWED * row.noise
        strongest = max(other.strength for other in self.slopes.found.values())
        if not sum(row.ours):
            return max(row.file, default=0.0) * row.size <= max(WEAKEST * strongest, self._nothing)
        if row.strength <= RESIDUE * strongest:  # of a gradient that is nothing: the file's must be nothing as well
            return bool(np.sqrt(row.distance) * row.strength <= WEAKEST * strongest)
        if row.part in self._step.judged.approximate:
            return agrees_loosely(row.length, self._rank_error, more)
        return SHORTEST - more <= row.length <= LONGEST + more and row.distance <= APART + more

    def _excused(self, row: Compared) -> bool:
        """Tell whether a tensor agrees on all batches together, or cannot be judged (see `_why`)."""
        lost = sum(row.finer) > 0 or ALLOWED * max(row.rounding, default=0.0) >= max(row.file, default=0.0) ** 2
        rounding = row.noise > NOISY if sum(row.ours) else lost
        few = row.part in self._step.judged.approximate and few_numbers(row.part)
        return self._agrees(row) or rounding or few or len(row.rounding) in (row.cut, row.coarse)

    def _why(self, row: Compared) -> str:
        if row.cut == len(row.rounding):
            return "behind numbers beyond the range of their format: errors do not pass there"
        if row.coarse == len(row.rounding):
            return "beside numbers that are lost as they are stored, but read unrounded as well"
        if row.part in self._step.judged.approximate and few_numbers(row.part):
            return "whose gradient is of a low-rank copy and has few numbers"
        if not sum(row.ours):
            return "whose gradient is less than one step of an int8 error or number"
        return f"whose gradient is {min(row.noise, 1.0):.0%} rounding of int8 errors (squared)"

    def _differs(self, rows: Sequence[Compared]) -> CompileError:
        """Return E0607; the tensor that is furthest off has the word."""

        def off(row: Compared) -> float:
            return max(abs(row.length - 1), row.distance / 4 if row.part not in self._step.judged.approximate else 0)

        first = max(rows, key=off)
        others = f", and {len(rows) - 1} more tensors" if len(rows) > 1 else ""
        slope = first.length
        if not sum(first.ours):
            what = f"the update leaves it as it is; by the model file its gradient is {max(first.file):.3g}{others}"
        else:
            what = (
                f"along the gradient of the int8 update the loss of the file changes {slope:.2f} times as much as by "
                f"that gradient (expected {SHORTEST} to {LONGEST}); their squared distance is {first.distance:.2f} "
                f"(expected at most {APART}){others}"
            )
        return CompileError("E0607", f"tensor {first.part.origin}", what, "please report this; see --explain E0607")

    def _cut_short(self, batch: Batch, point: Point) -> bool:
        """Tell whether targets are further from outputs than an integer loss reaches (docs/int8.md, mse)."""
        node = next(node for node in self._train.graph.nodes if self._train.loss in node.outputs)
        if not isinstance(node.attrs, TargetAttrs) or self._model.loss is not None:
            return False
        quant = self._train.formats.get(operand(node, "y").name)
        if quant is None:
            return False
        apart = (
            np.abs(known[self._file.outputs[0]].reshape(-1)[: sample.y.size] - sample.y.reshape(-1)).max()
            for known, sample in zip(point.known, batch.samples, strict=True)
        )
        return max(apart) >= REACH * quant.scale[0]

    def _output_saturates(self, point: Point) -> bool:
        """Tell whether a sample's output is at an end of its format in the file, before which our loss reads it."""
        graph = self._train.graph
        maker = graph.producers().get(graph.outputs[0].name)
        read = maker is not None and maker.name in graph.ancestors((self._train.loss,))
        return self._model.loss is None and not read and output_saturates(self._file, point)

    def _same_loss(self, ours: Sequence[float], point: Point) -> bool:
        """Compare the loss of the first call with the file's at the same outputs."""
        if self._train.micro_batch > 1 and len(ours) > 1:
            return True
        expected = self._expected(point)
        return abs(ours[0] - expected) <= LOSS * max(1.0, abs(expected))

    def _expected(self, point: Point) -> float:
        return point.losses[0] if self._train.micro_batch == 1 else point.loss

    def _other_loss(self, ours: Sequence[float], point: Point) -> CompileError:
        what = f"{self._expected(point):.6g} by the model file, {ours[0]:.6g} in the training step"
        return CompileError("E0607", "loss of call 1", what, "please report this; see --explain E0607")

    def _agreed(self, unjudged: Sequence[str], whole: Sequence[str] = ()) -> DerivativeAgreement:
        parts, left = self._step.parts, len(unjudged) if not whole else len(self._step.parts)
        rows = self.slopes.found.values()
        worst = max((max(abs(row.length - 1), row.distance) for row in rows if sum(row.ours)), default=0.0)
        said = (*whole, *unjudged, *self._left())
        seconds = time.process_time() - self._start
        return DerivativeAgreement(
            len(parts) - left, left, None if whole else worst, CLOSENESS, self._file.work, said, seconds
        )

    def _left(self) -> Iterator[str]:
        """Yield what is judged less sharply, or not at all."""
        for copy in self._step.copies:
            if copy.seen:
                yield f"judged with its exact input: the gradient of {copy.layer}, which reads a low-rank copy"
        for part in self._step.judged.approximate:
            yield f"judged loosely: {part.origin}, whose gradient is of a low-rank copy"
        if self._train.dropout is not None:
            yield "dropout: judged with nothing dropped"
        for name in self._hidden:
            yield f"one update judged, not what a second one keeps of it: {name}, by rounding or saturation"


__all__ = ["IntegerCheck", "IntegerSlopes", "check_integers"]
