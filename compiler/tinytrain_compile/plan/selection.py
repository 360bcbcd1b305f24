"""Choice of one way for each of several layers with the largest gain within limits: a multiple-choice model for CP-SAT.

Rows express the costs of ways: sums over *events*, an event being "one of these ways is taken". A row holds always, or
only if an event has happened: a backward step exists only if something below it is trained.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Selection = tuple[int, ...]
"""Index of the chosen way, for every group."""
Event = frozenset[tuple[int, int]]
"""Pairs (group, way): the event happens if any of these is taken."""

SOLVER_TIME = 1.0
"""CP-SAT's own deterministic time for one answer, in units that are about a second each."""
LINEAR = 2
"""CP-SAT's level of linear relaxation: its cuts prove in half a second what is far from proven in three without."""
FEW_TERMS, MORE_ROWS, MOST_TURNS = 10_000, 12, 12
"""Rows with more terms than this are passed to the solver only when broken, the worst ones first, this many at a time;
after this many turns, all of them."""
NEAR_ENOUGH = 2e-3
"""Relative gap at which an answer suffices if it need not be the best one."""


@dataclass(frozen=True)
class Row:
    """base + sum of (event, amount) must not exceed `limit`, if `only_if` has happened (None: always)."""

    base: int
    terms: tuple[tuple[Event, int], ...]
    limit: int
    only_if: Event | None = None

    def holds(self, selection: Selection) -> bool:
        """Tell whether a selection keeps to the row."""
        return not self.counts(selection) or self.load(selection) <= self.limit

    def counts(self, selection: Selection) -> bool:
        """Tell whether the row applies to a selection."""
        return self.only_if is None or not self.only_if.isdisjoint(enumerate(selection))

    def load(self, selection: Selection) -> int:
        """Return the row's sum for a selection."""
        taken = frozenset(enumerate(selection))  # made once: a row may have hundreds of terms
        return self.base + sum(amount for event, amount in self.terms if not event.isdisjoint(taken))


@dataclass(frozen=True)
class Answer:
    """selection: None if no selection keeps to the rows, or none was found. best_gain: no selection has more."""

    selection: Selection | None
    gain: int
    best_gain: int


def _add_rows(model: cp_model.CpModel, taken: Sequence[Sequence[cp_model.IntVar]], rows: Sequence[Row]) -> None:
    """Add the rows, over a variable for each event."""
    events: dict[Event, cp_model.LiteralT] = {}

    def of(event: Event) -> cp_model.LiteralT:
        if event not in events:
            parts: list[cp_model.LiteralT] = []
            for group, pairs in groupby(sorted(event), key=lambda pair: pair[0]):
                ways = taken[group]
                inside = [way for _, way in pairs if way < len(ways)]  # others are not considered
                if inside and inside == list(range(1, len(ways))):
                    parts.append(ways[0].negated())
                else:
                    parts += [ways[way] for way in inside]
            events[event] = parts[0] if len(parts) == 1 else model.new_bool_var(f"e{len(events)}")
            if len(parts) > 1:
                model.add_max_equality(events[event], parts)  # pyright: ignore[reportUnknownMemberType]
        return events[event]

    for row in rows:
        variables, amounts = [of(event) for event, _ in row.terms], [amount for _, amount in row.terms]
        bound = model.add(_sum(variables, amounts) <= row.limit - row.base)
        if row.only_if is not None:
            bound.only_enforce_if(of(row.only_if))  # pyright: ignore[reportUnknownMemberType]


def _sum(variables: Sequence[Any], amounts: Sequence[int]) -> Any:
    from ortools.sat.python import cp_model

    expression: Any = cp_model.LinearExpr
    return expression.weighted_sum(variables, amounts)


def _least(
    found: Selection, gains: Sequence[Sequence[int]], rows: Sequence[Row], excluded: Collection[Selection]
) -> Selection:
    """Return the selection with the first way of equal gain in every group, if rows permit: no cost without gain."""
    for group, ways in enumerate(gains):
        for way in range(found[group]):
            other = (*found[:group], way, *found[group + 1 :])
            if ways[way] == ways[found[group]] and other not in excluded and all(row.holds(other) for row in rows):
                found = other
                break
    return found


def select(
    gains: Sequence[Sequence[int]],
    rows: Sequence[Row],
    excluded: Collection[Selection] = (),
    above: int = -1,
    exact: bool = True,
    seed: int = 0,
) -> Answer:
    """Return the selection of largest gain that keeps to the rows, is not `excluded` and gains more than `above`.

    gains: per group and way; of ways with equal gain, the first is taken if the rows permit. exact: whether to continue
    until the result is proven; in any case work is counted and limited.
    """
    known, waiting = rows, list[Row]()
    if sum(len(row.terms) for row in rows) > FEW_TERMS:
        tight = sorted(range(len(rows)), key=lambda place: (_over_at_most(rows[place]), -place), reverse=True)
        known = [rows[place] for place in sorted(tight[:MORE_ROWS])]
        waiting = [rows[place] for place in sorted(tight[MORE_ROWS:])]
    answer = best_with(gains, known, excluded, above, exact, seed)
    for turn in range(MOST_TURNS):
        over = [] if answer.selection is None else _over(waiting, answer.selection)
        if not over:
            break
        added = {place for _, place in over[:MORE_ROWS]} if turn < MOST_TURNS - 1 else set(range(len(waiting)))
        known = [*known, *(waiting[place] for place in sorted(added))]
        waiting = [row for place, row in enumerate(waiting) if place not in added]
        answer = best_with(gains, known, excluded, above, exact, seed)
    if answer.selection is None:
        return answer
    return replace(answer, selection=_least(answer.selection, gains, rows, excluded))


def _over_at_most(row: Row) -> int:
    """Return the excess of the worst selection over a row's limit."""
    return row.base + sum(max(0, amount) for _, amount in row.terms) - row.limit


def _over(rows: Sequence[Row], selection: Selection) -> list[tuple[int, int]]:
    """Return (limit minus load, below 0; index) of the rows that a selection breaks, the worst first."""
    taken = frozenset(enumerate(selection))
    happened = {event for row in rows for event, _ in row.terms if not event.isdisjoint(taken)}
    found = list[tuple[int, int]]()
    for place, row in enumerate(rows):
        left = row.limit - row.base - sum(amount for event, amount in row.terms if event in happened)
        if left < 0 and row.counts(selection):
            found.append((left, place))
    return sorted(found)


def best_with(
    gains: Sequence[Sequence[int]],
    rows: Sequence[Row],
    excluded: Collection[Selection],
    above: int,
    exact: bool,
    seed: int,
) -> Answer:
    """Return `select` with one solver and all of these rows."""
    # Imported here: --help and plans do not need it.
    from ortools.sat.python import cp_model

    from tinytrain_compile.plan.solver import new_solver

    model = cp_model.CpModel()
    taken = [[model.new_bool_var(f"t{group}_{way}") for way in range(len(ways))] for group, ways in enumerate(gains)]
    for ways in taken:
        model.add_exactly_one(ways)
    _add_rows(model, taken, rows)
    for selection in excluded:
        model.add_bool_or([taken[group][way].negated() for group, way in enumerate(selection)])
    flat = [variable for ways in taken for variable in ways]
    gain = _sum(flat, [one for ways in gains for one in ways])
    if above >= 0:
        model.add(gain >= above + 1)
    model.maximize(gain)
    solver = new_solver(seed, SOLVER_TIME)
    solver.parameters.linearization_level = LINEAR
    solver.parameters.relative_gap_limit = 0.0 if exact else NEAR_ENOUGH
    status = solver.solve(model)
    most = sum(max(ways) for ways in gains)
    if status == cp_model.INFEASIBLE:
        return Answer(None, above, above)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(None, above, most)
    found = tuple(next(way for way, one in enumerate(ways) if solver.value(one)) for ways in taken)
    return Answer(found, round(solver.objective_value), min(most, int(solver.best_objective_bound + 0.5)))
