"""Random cases of channels that a table chooses."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal
from tinytrain_compile.ops.channels import TakeAttrs

SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 4, 4, 16), 8),
    ((1, 3, 5, 7), 3),
    ((2, 9), 1),
    ((12,), 12),
    ((1, 2, 2, 1), 1),
)
"""(tensor, channels that have a place)"""


def places(rng: Rng, total: int, count: int) -> np.ndarray:
    """Of some channels, in their order."""
    found = np.full(total, -1, np.int32)
    found[np.sort(rng.permutation(total)[:count])] = np.arange(count, dtype=np.int32)
    return found


@generator("TakeChannels", 3 * len(SHAPES))
def _take(rng: Rng, index: int) -> Case:
    shape, count = SHAPES[index % len(SHAPES)]
    kind = index // len(SHAPES)
    x = normal(rng, shape) if kind == 0 else np.asarray(rng.integers(-128, 128, shape), (np.int8, np.int32)[kind - 1])
    return make("TakeChannels", (x, places(rng, shape[-1], count)), TakeAttrs(count))


@generator("ScoreChannels", len(SHAPES))
def _score(rng: Rng, index: int) -> Case:
    return make("ScoreChannels", (normal(rng, SHAPES[index][0]),))


@generator("AddScores", len(SHAPES))
def _add(rng: Rng, index: int) -> Case:
    shape = SHAPES[index % len(SHAPES)][0][-1:]
    return make("AddScores", (normal(rng, shape), normal(rng, shape)))


@generator("QScoreChannels", len(SHAPES))
def _qscore(rng: Rng, index: int) -> Case:
    shape = SHAPES[index % len(SHAPES)][0]
    x = np.asarray(rng.integers(-127, 128, shape), np.int8)
    p = np.asarray([rng.integers(-20, 3), 0], np.int32)
    unit = np.square(rng.uniform(0.01, 1.0, shape[-1:]))
    return make("QScoreChannels", (x, p, unit))
