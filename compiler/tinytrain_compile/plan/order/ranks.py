"""The order of smallest peak as a CP-SAT model over ranks: the search's cross-check, and the solver of its windows.

A task has a rank, a storage is live from the rank of its first to that of its last toucher, and a cumulative constraint
holds the live bytes below a height that is minimised. It shares only the task graph with `exact`.
Only deterministic limits: one worker, a fixed seed, deterministic time.
"""

from __future__ import annotations

import itertools
import math

from ortools.sat.python import cp_model

from tinytrain_compile.plan.model import InPlace, TaskGraph
from tinytrain_compile.plan.order.exact import Optimum
from tinytrain_compile.plan.order.order import ancestor_masks, peak
from tinytrain_compile.plan.solver import new_solver

SOLVER_TIME_PER_UNIT = 0.1
"""CP-SAT's own deterministic time per unit of ours (measured on dense models: 0.1 of it takes 1 to 3 s)."""


class _OrderModel:
    """Variables and constraints for one task graph; heights are in units of the sizes' common divisor."""

    def __init__(self, tasks: TaskGraph, start: Optimum) -> None:
        self.tasks = tasks
        self.model = cp_model.CpModel()
        self.unit = math.gcd(*tasks.size, *tasks.scratch, *(p.overlap_bytes for found in tasks.inplace for p in found))
        self.unit = self.unit or 1
        count = len(tasks.before)
        ancestors, descendants = ancestor_masks(tasks), ancestor_masks(tasks.reversed())
        self.ranks = [
            self.model.new_int_var(
                ancestors[task].bit_count() - 1, count - descendants[task].bit_count(), f"rank{task}"
            )
            for task in range(count)
        ]
        self.model.add_all_different(self.ranks)
        for task, edges in enumerate(tasks.before):
            for previous in edges:
                self.model.add(self.ranks[previous] < self.ranks[task])
        self.intervals: list[cp_model.IntervalVar] = []
        self.demands: list[int] = []
        self.used: dict[InPlace, cp_model.IntVar] = {}
        self.place_in_place()
        for storage in range(len(tasks.size)):
            if tasks.touchers[storage]:
                self.place_storage(storage)
        for task, scratch in enumerate(tasks.scratch):
            if scratch:
                name = f"scratch{task}"
                self.demand(self.model.new_fixed_size_interval_var(self.ranks[task], 1, name), scratch)
        self.height = self.model.new_int_var(-(-start.bound // self.unit), start.peak // self.unit, "height")
        self.model.add_cumulative(self.intervals, self.demands, self.height)
        self.model.minimize(self.height)
        for rank, task in enumerate(start.order):
            self.model.add_hint(self.ranks[task], rank)

    def demand(self, interval: cp_model.IntervalVar, size_bytes: int) -> None:
        self.intervals.append(interval)
        self.demands.append(size_bytes // self.unit)

    def place_in_place(self) -> None:
        """Allow pairs: one may be used if all others that touch the source precede, and all others that touch the
        output (one with parts has several writers) follow; no storage takes part twice at a task."""
        for task, pairs in enumerate(self.tasks.inplace):
            for pair in pairs:
                self.used[pair] = used = self.model.new_bool_var(f"pair{pair.output}over{pair.source}at{task}")
                for other in self.tasks.touchers[pair.source]:
                    if other != task:
                        before = self.model.add(self.ranks[other] < self.ranks[task])
                        before.only_enforce_if(used)  # pyright: ignore[reportUnknownMemberType]
                for other in self.tasks.touchers[pair.output]:
                    if other != task:
                        after = self.model.add(self.ranks[other] > self.ranks[task])
                        after.only_enforce_if(used)  # pyright: ignore[reportUnknownMemberType]
            for one, pair in enumerate(pairs):
                for other in pairs[one + 1 :]:
                    if pair.output == other.output or pair.source == other.source:
                        self.model.add_bool_or(self.used[pair].negated(), self.used[other].negated())

    def place_storage(self, storage: int) -> None:
        """Add one interval per layer: if the storage covers a dying one, a part of it begins one rank later."""
        tasks, users = self.tasks, self.tasks.touchers[storage]
        over = [pair for user in users for pair in tasks.inplace[user] if pair.output == storage]
        steps = sorted({0, tasks.size[storage], *(pair.overlap_bytes for pair in over)})
        for low, high in itertools.pairwise(steps):
            saving = [self.used[pair] for pair in over if pair.overlap_bytes >= high]
            begin, end, length = (
                self.model.new_int_var(0, len(tasks.before) + 1, f"{what}{storage}_{high}")
                for what in ("begin", "end", "length")
            )
            for user in users:
                opens = [pair for pair in tasks.inplace[user] if pair.output == storage]
                self.model.add(begin <= self.ranks[user] + sum(saving if opens else []))
                self.model.add(end >= self.ranks[user] + 1)
            self.demand(self.model.new_interval_var(begin, length, end, f"storage{storage}_{high}"), high - low)


def rank_order(tasks: TaskGraph, start: Optimum, units: float, seed: int) -> Optimum:
    """Return the best order that the solver finds from `start`, its hint and bound; `start` if it finds none."""
    built = _OrderModel(tasks, start)
    solver = new_solver(seed, units * SOLVER_TIME_PER_UNIT)
    status = solver.solve(built.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    order = tuple(sorted(range(len(tasks.before)), key=lambda task: solver.value(built.ranks[task])))
    reached = peak(tasks, order)
    if reached > start.peak:
        raise AssertionError("the model's height is not the load of its order")
    bound = math.ceil(solver.best_objective_bound - 0.5) * built.unit
    return Optimum(order, reached, reached if status == cp_model.OPTIMAL else max(start.bound, bound))
