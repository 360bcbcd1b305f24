"""The multiple-choice model against all selections of small cases."""

from __future__ import annotations

import itertools
import random

import pytest

from tinytrain_compile.plan import Row, Selection, select


def random_rows(source: random.Random, sizes: list[int]) -> list[Row]:
    """Sums over random events, some of which hold only where another event has happened."""

    def event() -> frozenset[tuple[int, int]]:
        pairs = [(group, way) for group, size in enumerate(sizes) for way in range(size)]
        return frozenset(source.sample(pairs, source.randrange(1, len(pairs) + 1)))

    rows = list[Row]()
    for _ in range(source.randrange(1, 5)):
        terms = tuple((event(), source.randrange(-10, 40)) for _ in range(source.randrange(1, 6)))
        rows.append(Row(source.randrange(20), terms, source.randrange(80), event() if source.random() < 0.4 else None))
    return rows


def broken(row: Row, selection: Selection) -> bool:
    """By the words of `Row`, not by its code."""
    taken = set(enumerate(selection))
    if row.only_if is not None and not row.only_if & taken:
        return False
    return row.base + sum(amount for event, amount in row.terms if event & taken) > row.limit


@pytest.mark.parametrize("seed", range(60))
def test_the_best_of_all_selections(seed: int) -> None:
    source = random.Random(seed)
    sizes = [source.randrange(1, 5) for _ in range(source.randrange(1, 5))]
    gains = [[source.randrange(6) for _ in range(size)] for size in sizes]
    rows = random_rows(source, sizes)
    every = list(itertools.product(*map(range, sizes)))
    excluded = source.sample(every, min(len(every), source.randrange(4)))
    above = source.choice([-1, 0, 5])

    def gain(selection: Selection) -> int:
        return sum(ways[way] for ways, way in zip(gains, selection, strict=True))

    good = [one for one in every if one not in excluded and not any(broken(row, one) for row in rows)]
    best = max((gain(one) for one in good if gain(one) > above), default=None)
    answer = select(gains, rows, excluded, above)
    if best is None:
        assert answer.selection is None and answer.best_gain == above
        return
    assert answer.selection in good and answer.gain == gain(answer.selection) == best == answer.best_gain


def test_what_gains_nothing_is_not_taken() -> None:
    """Of ways that gain the same the first one, if the rows allow it."""
    gains, free = [[0, 0, 2], [0, 3, 3], [0, 0]], Row(0, (), 0)
    assert select(gains, [free]).selection == (2, 1, 0)
    needed = Row(1, ((frozenset({(2, 1)}), -1),), 0)
    assert select(gains, [needed]).selection == (2, 1, 1)
