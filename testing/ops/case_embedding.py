"""Random cases of rows that are looked up."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal
from tinytrain_compile.ops.embedding import GatherAttrs

TABLES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((7, 4), (1, 5)),
    ((3, 5), (6,)),
    ((9,), (2, 3)),
    ((4, 2, 3), (1, 2)),
    ((5, 8), ()),
    ((2, 1), (1, 9)),
)
"""(table, index)"""


def _index(rng: Rng, table: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Some outside the table: they count as its first or last row."""
    return np.asarray(rng.integers(-2, table[0] + 2, shape), np.int32)


@generator("Gather", len(TABLES))
def _gather(rng: Rng, index: int) -> Case:
    table, shape = TABLES[index]
    return make("Gather", (normal(rng, table), _index(rng, table, shape)), GatherAttrs(table[0]))


@generator("GatherGrad", len(TABLES))
def _gather_grad(rng: Rng, index: int) -> Case:
    table, shape = TABLES[index]
    return make("GatherGrad", (normal(rng, shape + table[1:]), _index(rng, table, shape)), GatherAttrs(table[0]))
