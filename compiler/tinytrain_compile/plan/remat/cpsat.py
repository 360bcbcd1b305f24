"""The exact side of rematerialisation: retention intervals in CP-SAT, at most two copies of a storage.

Time is Moccasin's grid (Bartan et al., 2023) for a fixed order: stage j has one slot per operation before j, in which
that operation may run again, then operation j itself. A copy is an interval from its making to its last reader; all
copies together stay below the budget (one cumulative constraint). The cost is that of the second runs.

A second copy has a *kind*. There is one so far, "again" (run the producer: needs its operands at that moment); another
one, for instance "page-in", is one more literal per storage with its own cost and its own needs
(`_RematModel.second_copy`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from ortools.sat.python import cp_model

from tinytrain_compile.plan.remat.problem import Decision, Operation, Problem, profile, with_sources
from tinytrain_compile.plan.solver import new_solver

_Moment = cp_model.LinearExpr | int
"""A point in time on the grid."""

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Answer:
    """Answer of the solver: the cheapest decision below the budget (optimal), some decision, or that there is none.

    units: deterministic time that this took.
    """

    status: Status
    decision: dict[int, int] | None
    bound: int
    units: float


class _Copy(NamedTuple):
    """One copy of a storage, from its making to its end (a variable if a decision may move it)."""

    start: _Moment
    end: _Moment


def candidates(problem: Problem, budget: int) -> frozenset[int]:
    """Return storages that wait across an operation above the budget, and storages that making them again may lack."""
    loads = profile(problem, {}).loads
    high = [index for index, load in enumerate(loads) if load > budget]
    found: set[int] = set()
    for storage in problem.again:
        moments = (problem.birth[storage], *problem.uses[storage])
        idle = itertools.pairwise(moments)
        if any(begin < index < end for begin, end in idle for index in high):
            found.add(storage)
    return with_sources(problem, found, lambda _: True)


@dataclass(frozen=True)
class Limits:
    """deterministic_time: of CP-SAT. cheapest: minimise the cost; else any decision will do."""

    deterministic_time: float
    seed: int = 0
    cheapest: bool = True


def solve(problem: Problem, within: Collection[int], budget: int, start: Decision | None, limits: Limits) -> Answer:
    """Return the cheapest decision over the storages `within` whose peak is at most `budget`. `start` is a feasible
    hint."""
    hint = None if start is None else tuple(start.items())
    answer = _solve(_Question(problem, tuple(sorted({*within, *(start or ())})), budget, hint, limits))
    return replace(answer, decision=None if answer.decision is None else dict(answer.decision))


@dataclass(frozen=True)
class _Question:
    """Question to the solver, a cache key: suggestions for an error repeat many questions."""

    problem: Problem = field(hash=False)
    chosen: tuple[int, ...]
    budget: int
    start: tuple[tuple[int, int], ...] | None
    limits: Limits


@lru_cache(maxsize=64)
def _solve(question: _Question) -> Answer:
    model = _RematModel(question.problem, question.chosen, question.budget)
    if question.limits.cheapest:
        model.minimise_cost()
    if question.start is not None:
        model.hint(dict(question.start))
    return model.solve(question.limits)


def _late_bytes(operation: Operation, storage: int) -> int:
    """Return how many bytes of a new storage may be in those of an input that dies here.

    One input has room for one of several outputs: `profile` counts only the largest overlap.
    """
    pairs = [pair for pair in operation.inplace if pair[0] == storage]
    if any(output != storage for output, *_ in operation.inplace):
        best = max(operation.inplace, key=lambda pair: pair[2])
        if best[0] != storage or len({source for _, source, _ in operation.inplace}) > 1:
            return 0
    return min((overlap for *_, overlap in pairs), default=0)


class _RematModel:
    def __init__(self, problem: Problem, chosen: Collection[int], budget: int) -> None:
        self.problem, self.budget = problem, budget
        self.chosen = sorted(chosen)
        self.count = len(problem.operations)
        self.width = 2 * (self.count + 1)
        self.model = cp_model.CpModel()
        self.stage: dict[int, cp_model.IntVar] = {}
        self.active: dict[int, cp_model.IntVar] = {}
        self.copies: dict[int, list[_Copy]] = {}
        self.intervals: list[cp_model.IntervalVar] = []
        self.demands: list[int] = []
        self.constant: dict[int, int] = {}  # moment -> change of the load that no decision moves
        self.open_end = self.storages_with_open_end()
        for storage in range(len(problem.size)):
            if problem.uses[storage] or problem.birth[storage] >= 0 or problem.fixed_end[storage] >= 0:
                self.first_copy(storage)
        for storage in self.chosen:
            self.second_copy(storage)
        for index in range(self.count):
            self.run(index, self.moment(index), None)
        for storage in self.chosen:
            producer = problem.again[storage].operation
            self.run(producer, self.begun(storage), self.active[storage])
        self.add_load()

    def storages_with_open_end(self) -> set[int]:
        """Return storages whose first copy may end at several times: by decision, or because one of two may be
        overwritten."""
        operations = self.problem.operations
        found = set(self.chosen)
        found.update(
            storage for again in self.chosen for storage in operations[self.problem.again[again].operation].reads
        )
        for operation in operations:
            sources = {source for _, source, _ in operation.inplace}
            found |= sources if len(sources) > 1 else set()
        return found

    def moment(self, index: int) -> int:
        """Return the first of the two points in time at which an operation runs in its original place."""
        return self.width * index + 2 * self.count

    def add_storage(
        self, storage: int, index: int, moment: _Moment, end: _Moment, literal: cp_model.IntVar | None
    ) -> None:
        """Add a copy that a run opens: its part that may overwrite an input begins at the second point of the run."""
        size, late = self.problem.size[storage], _late_bytes(self.problem.operations[index], storage)
        self.add_interval(moment, end, literal, size - late)
        self.add_interval(moment + 1, end, literal, late)

    def first_copy(self, storage: int) -> None:
        problem, birth = self.problem, self.problem.first_touch(storage)
        start = self.moment(birth) if birth >= 0 else 0
        last = self.moment(max(problem.last_use(storage), 0)) + 2
        end: _Moment = last
        if storage in self.open_end:
            earliest = self.moment(birth) + 2 if birth >= 0 else 0
            if problem.fixed_end[storage] >= 0:
                earliest = self.moment(problem.fixed_end[storage]) + 2
            end = self.model.new_int_var(earliest, self.width * self.count + 2, f"end{storage}")
        elif problem.uses[storage] and problem.fixed_end[storage] < problem.uses[storage][-1]:
            end = last - self.early_end(problem.uses[storage][-1], storage)
        self.copies[storage] = [_Copy(start, end)]
        if birth >= 0:
            self.add_storage(storage, birth, start, end, None)
        else:
            self.add_interval(start, end, None, problem.size[storage])

    def early_end(self, index: int, storage: int) -> int:
        """Return 1 if the only in-place possibility of an operation is this storage, which dies there."""
        pairs = self.problem.operations[index].inplace
        return int(len(pairs) == 1 and pairs[0][1] == storage)

    def second_copy(self, storage: int) -> None:
        problem, model = self.problem, self.model
        again = problem.again[storage]
        earliest, latest = problem.birth[storage] + 2, min(again.latest, self.count - 1)
        self.stage[storage] = model.new_int_var(earliest, max(earliest, latest), f"stage{storage}")
        self.active[storage] = active = model.new_bool_var(f"again{storage}")
        if earliest > latest:
            model.add(active == 0)
        begun = self.begun(storage)
        end = model.new_int_var(0, self.width * self.count + 2, f"until{storage}")
        self.require(end >= begun + 2, [active])
        self.require(self.copies[storage][0].end <= begun, [active])
        self.copies[storage].append(_Copy(begun, end))
        self.add_storage(storage, again.operation, begun, end, active)

    def add_interval(self, start: _Moment, end: _Moment, literal: cp_model.IntVar | None, demand: int) -> None:
        if demand == 0:
            return
        if isinstance(start, int) and isinstance(end, int) and literal is None:
            self.constant[start] = self.constant.get(start, 0) + demand
            self.constant[end] = self.constant.get(end, 0) - demand
            return
        length = self.model.new_int_var(0, self.width * (self.count + 1), "")
        if literal is None:
            self.intervals.append(self.model.new_interval_var(start, length, end, ""))
        else:
            self.intervals.append(self.model.new_optional_interval_var(start, length, end, literal, ""))
        self.demands.append(demand)

    def run(self, index: int, moment: _Moment, literal: cp_model.IntVar | None) -> None:
        """Require the operands of a run through both its points; one that it overwrites, only through the first."""
        operation = self.problem.operations[index]
        sources = sorted({source for _, source, _ in operation.inplace})
        until: dict[int, _Moment] = {}  # operand that may be overwritten -> when it may be gone
        if len(sources) == 1:
            until[sources[0]] = moment + 1
        elif sources:
            over = [self.model.new_bool_var("") for _ in sources]
            self.model.add_at_most_one(over)
            until = {source: moment + 2 - chosen for source, chosen in zip(sources, over, strict=True)}
        for storage in operation.reads:
            self.cover(storage, moment, until.get(storage, moment + 2), literal)
        if operation.scratch:
            self.add_interval(moment, moment + 2, literal, operation.scratch)

    def cover(self, storage: int, moment: _Moment, until: _Moment, literal: cp_model.IntVar | None) -> None:
        """Require that some copy of the storage exists from one moment until another."""
        first, *second = self.copies[storage]
        always = [] if literal is None else [literal]
        if not second:
            if storage in self.open_end:
                self.require(first.end >= until, always)
            return
        served = self.model.new_bool_var("")  # by the first copy
        by_second = [served.negated(), *always]
        self.require(first.end >= until, [served, *always])
        self.require(self.active[storage] == 1, by_second)
        self.require(self.begun(storage) <= moment, by_second)
        self.require(second[0].end >= until, by_second)

    def require(self, fact: cp_model.BoundedLinearExpression | bool, literals: Sequence[cp_model.LiteralT]) -> None:
        """Require a fact if all literals hold."""
        self.model.add(fact).only_enforce_if(list(literals))  # pyright: ignore[reportUnknownMemberType]

    def begun(self, storage: int) -> cp_model.LinearExpr:
        """Return the moment at which the second run starts."""
        return self.width * self.stage[storage] + 2 * self.problem.again[storage].operation

    def add_load(self) -> None:
        """Hold all copies together below the budget; copies that no decision moves are combined into one profile."""
        moments = sorted(moment for moment, change in self.constant.items() if change)
        load = 0
        for moment, following in itertools.pairwise(moments):
            load += self.constant[moment]
            if load > 0:
                self.intervals.append(self.model.new_fixed_size_interval_var(moment, following - moment, ""))
                self.demands.append(load)
        self.model.add_cumulative(self.intervals, self.demands, self.budget)

    def minimise_cost(self) -> None:
        self.model.minimize(sum(self.problem.again[storage].cost * self.active[storage] for storage in self.chosen))

    def hint(self, start: Decision) -> None:
        for storage in self.chosen:
            self.model.add_hint(self.active[storage], storage in start)
            if storage in start:
                self.model.add_hint(self.stage[storage], start[storage])

    def solve(self, limits: Limits) -> Answer:
        solver = new_solver(limits.seed, limits.deterministic_time)
        status = solver.solve(self.model)
        units = solver.response_proto.deterministic_time
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Answer("infeasible" if status == cp_model.INFEASIBLE else "unknown", None, 0, units)
        decision = {
            storage: solver.value(self.stage[storage]) for storage in self.chosen if solver.value(self.active[storage])
        }
        name: Status = "optimal" if status == cp_model.OPTIMAL else "feasible"
        return Answer(name, decision, int(solver.best_objective_bound), units)
