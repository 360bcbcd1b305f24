"""The multiple-choice model against all selections of small cases."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tinytrain_compile.plan import selection
from tinytrain_compile.plan.selection import Row, Selection, select


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


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_are_given_as_they_are_broken(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same gain as with all rows at once; and the turns end, whatever an answer breaks."""
    source = random.Random(seed)
    sizes = [source.randrange(2, 5) for _ in range(5)]
    gains = [[source.randrange(6) for _ in range(size)] for size in sizes]
    rows = [row for _ in range(8) for row in random_rows(source, sizes)]
    asked, real = list[int](), selection.best_with

    def best(gains: Any, rows: Any, *more: Any) -> Any:
        asked.append(len(rows))
        return real(gains, rows, *more)

    every = select(gains, rows)
    monkeypatch.setattr(selection, "best_with", best)
    for turns in (12, 2):
        asked.clear()
        monkeypatch.setattr(selection, "FEW_TERMS", 0)
        monkeypatch.setattr(selection, "MORE_ROWS", 1)
        monkeypatch.setattr(selection, "MOST_TURNS", turns)
        few = select(gains, rows)
        assert (few.gain, few.best_gain) == (every.gain, every.best_gain)
        assert few.selection is None or not any(broken(row, few.selection) for row in rows)
        assert asked == sorted(set(asked)) and len(asked) <= turns + 1 and asked[0] == 1


def test_what_gains_nothing_is_not_taken() -> None:
    """Of ways that gain the same the first one, if the rows allow it."""
    gains, free = [[0, 0, 2], [0, 3, 3], [0, 0]], Row(0, (), 0)
    assert select(gains, [free]).selection == (2, 1, 0)
    needed = Row(1, ((frozenset({(2, 1)}), -1),), 0)
    assert select(gains, [needed]).selection == (2, 1, 1)
