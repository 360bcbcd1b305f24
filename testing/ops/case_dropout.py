"""Random cases of dropout: masks of several samples, off, and counts about to begin again."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal, sizes
from tinytrain_compile.ops.dropout import HASH_BITS, CountAttrs, DropoutAttrs, RandomDropoutAttrs

RATIOS = (0.5, 0.1, 0.25, 0.9, 0.001)


@generator("Dropout")
def _marker(rng: Rng, index: int) -> Case:
    return make("Dropout", (normal(rng, sizes(rng, 1 + index % 4)),), DropoutAttrs(RATIOS[index], 1 + index))


@generator("RandomDropout", 10)
def _dropout(rng: Rng, index: int) -> Case:
    ratio, samples = RATIOS[index % 5], 1 + index % 3
    rest = sizes(rng, index % 4, 1, 7)
    x = normal(rng, (samples, *rest))
    count = np.asarray((0, 7, 2**31 - 2, -1, -(2**31))[index % 5], np.int32)
    attrs = RandomDropoutAttrs(
        round(ratio * (1 << HASH_BITS)), 1.0 / (1.0 - ratio), (index - 5) * 715827883 // 2, samples
    )
    return make("RandomDropout", (x, count, np.asarray(index % 5 != 3, np.int32)), attrs)


@generator("CountSamples")
def _count(_rng: Rng, index: int) -> Case:
    count = np.asarray((0, 7, 2**31 - 2, -1, -(2**31))[index], np.int32)
    return make("CountSamples", (count,), CountAttrs(1 + index))
