"""Slopes of the file's loss at one point, and the gradients that the judged step implies there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.file_loss import FileLoss, Point, Sample
from tinytrain_compile.driver.derivative.judged import JudgedStep, Part, norm
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array

DIRECTIONS = 2
"""Random directions for all tensors of a group together."""
SMALL = 1e-6
"""Step of a difference, of a tensor's root mean square: 1e-5 to 1e-7 do alike, 1e-4 meets kinks, 1e-8 rounding."""
LEAST_SIZE = 1e-3
"""Root mean square that a tensor of zeros is taken to have in that."""
TOLERANCE = 1e-3
"""Largest error of a slope, of the gradient's norm (202 networks: 95 % below 1e-5)."""
WEAKEST = 1e-3
"""A gradient below this share of the largest one is judged by that share: 1e-6 of the largest is its tolerance."""
GROUP = 30.0
"""Ratio of the signals of tensors that share a direction: weaker ones would drown in the others."""
ROUNDED = 2.0**-23
"""Change of the loss, of max(1, |loss|), that a tensor must make by its own size to be judged sharply: float32 rounds
off as much."""
SATURATED = 2.0**-19
"""The same where a tanh is saturated (`FileLoss.tanh_saturates`).

What float32 rounds off its result y, 2**-24, is more than its gradient: 1 - y * y is wrong by 2**-23, and the scores in
front of it are up to 16 times the size at which it saturates (two tests of RNN and LSTM in onnx, a random graph)."""
LOOSE = 2.0, 5.0
"""Largest ratio of the file's derivative along a low-rank copy's gradient to that gradient, or its inverse: the first,
and the second times --rank-error. That is 2.5 at the default of 0.1, and 4 at 0.4, at which a random graph had 2.9
(campaign, seed 58, case 761)."""
FEWEST = 4
"""Numbers in a weight at which its gradient by a low-rank copy is judged: the copy's error is a share of the input, and
is any multiple of one number that is a sum of opposite products. In several numbers of a weight that is rare."""
GROUPS = 3
"""Groups at the most; the last one has all that are weaker."""


class Slopes:
    """The two sides at one point."""

    def __init__(
        self,
        judged: JudgedStep,
        loss: FileLoss,
        point: Point,
        samples: Sequence[Sample],
        gradients: Mapping[str, Array],
    ) -> None:
        """Compare at a point. gradients: by the judged step, of each part."""
        self.point = point
        self._judged, self._loss, self._samples = judged, loss, samples
        self._rounded = SATURATED if loss.tanh_saturates(point) else ROUNDED
        self._gradients = gradients
        self._norms = {name: norm((gradient,)) for name, gradient in gradients.items()}
        self._least = WEAKEST * max(self._norms.values(), default=0.0)
        self._rng = np.random.default_rng(len(gradients))
        self._seen: dict[str, tuple[float, float]] = {}

    def together(self) -> float:
        """Return the worst error of joint directions, in tolerances."""
        worst = 0.0
        for group in self._groups():
            for _ in range(DIRECTIONS):
                ours, theirs, expected = self._both({part.name: self._step(part) for part in group})
                worst = max(worst, abs(ours - theirs) / (TOLERANCE * expected or 1e-300))
        return worst

    def agrees(self, part: Part) -> bool:
        """Judge one tensor alone."""
        for _ in range(DIRECTIONS):
            ours, theirs, expected = self._both({part.name: self._step(part)})
            self._seen[part.name] = (ours, theirs)
            if not abs(ours - theirs) <= TOLERANCE * expected:
                return False
        return True

    def length(self, part: Part) -> float:
        """Return how long the file's derivative is along a tensor's gradient, of the latter; 1 if both are alike."""
        gradient, most = self._gradients[part.name], float(np.abs(self._gradients[part.name]).max(initial=0.0))
        if not most:
            return 1.0
        ours, theirs, expected = self._both({part.name: gradient * (SMALL * self._size(part) / most)})
        self._seen[part.name] = ours, theirs
        weak = self._norms[part.name] <= self._least  # then float32 may have made all of it
        return 1.0 if abs(ours - theirs) <= (1.0 if weak else TOLERANCE) * expected else theirs / ours

    def differs(self, parts: Sequence[Part]) -> CompileError:
        """Return E0607 for tensors that agree at no point; the one that is furthest off has the word."""

        def distance(part: Part) -> float:
            ours, theirs = self._seen[part.name]
            return abs(ours - theirs) / max(abs(theirs), abs(ours) * 1e-3, 1e-300)

        first = max(parts, key=distance)
        ours, theirs = self._seen[first.name]
        others = f", and {len(parts) - 1} more tensors" if len(parts) > 1 else ""
        what = (
            f"along a random direction the loss of the model file changes by {theirs:.6g}, by the gradient of the "
            f"training step {ours:.6g}{others}"
        )
        return CompileError("E0607", f"tensor {first.origin}", what, "please report this; see --explain E0607")

    def _both(self, steps: Mapping[str, Array]) -> tuple[float, float, float]:
        """Return changes of the loss along a step, by our gradients and by the file, and how large one is expected."""
        ours = sum(float((self._gradients[name] * step).sum()) for name, step in steps.items())
        known = self.point.known[0]
        floor = SMALL * self._rounded * max(1.0, abs(self.point.loss)) / TOLERANCE
        theirs = self._loss.slope(self.point, self._samples, self._judged.in_file(steps, known))
        lengths = [float(np.abs(step).max(initial=0.0)) * self._strength(name) for name, step in steps.items()]
        return ours, theirs, max(*lengths, floor)

    def _strength(self, name: str) -> float:
        """Return the norm of a gradient; of one that is nearly nothing, a share of the largest."""
        return max(self._norms[name], self._least)

    def _size(self, part: Part) -> float:
        known = self.point.known[0][part.origin].reshape(-1)
        numbers = known[part.source.places.reshape(-1)]
        return max(float(np.sqrt(np.mean(numbers**2))), LEAST_SIZE)

    def _step(self, part: Part) -> NDArray[np.float64]:
        """Draw a step in a random direction; a normalisation that was folded with a factor of 0 has no part in it."""
        factor = np.broadcast_to(part.factor(), part.shape)
        signs = self._rng.integers(0, 2, part.shape) * 2.0 - 1.0
        return np.where(factor != 0, signs * (SMALL * self._lengths()[part.name]), 0)

    def _lengths(self) -> Mapping[str, float]:
        """Tell how far each tensor goes, in SMALL: as far as its size lets it, and no further than others need."""
        if not hasattr(self, "_known_lengths"):
            self._known_lengths = {part.name: self._size(part) for part in self._judged.exact}
            for group in self._groups():
                signals = [self._known_lengths[part.name] * self._strength(part.name) for part in group]
                weakest = min(signals)
                for part, signal in zip(group, signals, strict=True):
                    self._known_lengths[part.name] *= weakest / signal if signal else 1.0
        return self._known_lengths

    def _groups(self) -> list[list[Part]]:
        """Group parts by the strength of their signal, strongest first."""
        signals = {part.name: self._size(part) * self._strength(part.name) for part in self._judged.exact}
        ordered = sorted(self._judged.exact, key=lambda part: -signals[part.name])
        groups: list[list[Part]] = []
        for part in ordered:
            last = signals[groups[-1][0].name] if groups else 0.0
            if not groups or (signals[part.name] * GROUP < last and len(groups) < GROUPS):
                groups.append([part])
            else:
                groups[-1].append(part)
        return groups


def agrees_loosely(length: float, rank_error: float, more: float = 0.0) -> bool:
    """Tell whether the file's derivative along a low-rank copy's gradient has about its length.

    length: of the derivative, of the gradient's. more: what rounding may add.
    """
    most = LOOSE[0] + LOOSE[1] * rank_error
    return 1 / most - more <= length <= most + more


def few_numbers(part: Part) -> bool:
    """Tell whether a low-rank copy's gradient for a part has too few numbers to be judged."""
    return int(np.prod(part.shape)) < FEWEST
