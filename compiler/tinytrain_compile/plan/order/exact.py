"""The order of smallest peak, proven: a search over sets of executed tasks (downsets), budget by budget.

For each budget the search looks for an order that stays within it. A state is the set of tasks that have run; its
memory is a submodular function of that set (see `Costs`), which makes two kinds of moves safe: they are made at once,
without trying any alternative. Let S be the state and U any state of an order that continues it within the budget.

* Safe task: a ready task v with delta <= 0 whose load is within the budget. U + v has no more memory than U, and every
  later task costs no more after U + v than after U, so an order that runs v first is within the budget as well.
* Safe chain: tasks v1 -> v2 -> ... -> vk, each a direct successor of the one before, that stay within the budget and
  whose memory is above that of S until it ends at most there. U holds some first j of them, and
  mem(U + chain) <= mem(U) + mem(S + chain) - mem(S + v1..vj) <= mem(U): the same argument. (A weight gradient and its
  update, an error and its clip.)

This is the idea of hills and valleys of J. W. H. Liu, "An application of generalized tree pebbling to sparse matrix
factorization", SIAM J. Alg. Disc. Meth. 8(3), 1987, for graphs that are not trees. States are not entered twice, so the
search ends. If it ends without an order, the smallest load that it refused is a lower bound: with any budget below that
it would have refused the same loads, and found the same states.

Work is counted in evaluations of `Costs.of`, never in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tinytrain_compile.plan.counted import add_work
from tinytrain_compile.plan.model import TaskGraph
from tinytrain_compile.plan.order.order import Cost, Costs, peak

EVALUATIONS_PER_UNIT = 300_000
"""Evaluations per unit of deterministic time (measured: about a second in CPython, the rest of the search included)."""

CHAIN_TASKS = 8
"""Tasks in the longest chain that is tried."""

PROBE_SHARE = 0.25
"""Most of the work that one budget may take, as a share."""


class Attempt(NamedTuple):
    """Answer for one budget: an order within it; or none, and then whether that is proven.

    refused: the smallest load found above the budget (a lower bound of every peak, if proven).
    work: evaluations made.
    """

    order: tuple[int, ...] | None
    proven: bool
    refused: int
    work: int


class Optimum(NamedTuple):
    """The best order found, its peak, a peak that no order is below, and the evaluations that this took."""

    order: tuple[int, ...]
    peak: int
    bound: int
    work: int = 0

    @property
    def proven(self) -> bool:
        """True if no order has a smaller peak."""
        return self.peak == self.bound


@dataclass
class OrderState:
    """A set of executed tasks in the search. trail: tasks run since the state before."""

    done: int
    memory: int
    ready: list[int]
    trail: list[int]
    choices: list[int] = field(default_factory=list[int])


class PeakSearch:
    """Depth-first search through the states that safe moves leave open."""

    def __init__(self, tasks: TaskGraph, budget: int, work: int) -> None:
        self.after = tasks.after
        self.costs = Costs(tasks)
        self.before = [sum(1 << task for task in edges) for edges in tasks.before]
        self.everything = (1 << len(tasks.before)) - 1
        self.budget, self.work = budget, work
        self.refused = 1 << 62
        self.spent = 0

    def run(self) -> Attempt:
        """Look for an order until one is found, none is left, or the work is done."""
        ready = [task for task, needed in enumerate(self.before) if not needed]
        path = [self.run_forced(OrderState(0, 0, ready, []))]
        seen = {path[0].done}
        while path and self.spent <= self.work:
            state = path[-1]
            if state.done == self.everything:
                return Attempt(tuple(task for item in path for task in item.trail), False, self.refused, self.spent)
            if not state.choices:
                path.pop()
                continue
            following = OrderState(state.done, state.memory, list(state.ready), [])
            task = state.choices.pop()
            self.execute(following, task, self.cost(task, state.done).delta)
            self.run_forced(following)
            if following.done not in seen:
                seen.add(following.done)
                path.append(following)
        return Attempt(None, not path, self.refused, self.spent)

    def run_forced(self, state: OrderState) -> OrderState:
        """Make all safe moves, then list what is left to choose from, smallest delta last."""
        while self.run_safe_task(state) or self.run_safe_chain(state):
            pass
        fitting: list[tuple[int, int]] = []
        for task in state.ready:
            transient, delta = self.cost(task, state.done)
            if self.fits(state.memory + transient):
                fitting.append((delta, task))
        state.choices = [task for _, task in sorted(fitting, reverse=True)]
        return state

    def cost(self, task: int, done: int) -> Cost:
        """Return the cost of a task after a set of others; counts as work."""
        self.spent += 1
        return self.costs.of(task, done)

    def fits(self, load: int) -> bool:
        """Tell whether a load keeps to the budget; remember the smallest that does not."""
        if load <= self.budget:
            return True
        self.refused = min(self.refused, load)
        return False

    def execute(self, state: OrderState, task: int, delta: int) -> None:
        """Run a task in a state, and update the ready tasks."""
        state.memory += delta
        state.done |= 1 << task
        state.trail.append(task)
        state.ready.remove(task)
        state.ready += self.released(task, state.done)

    def released(self, task: int, done: int) -> list[int]:
        """Return tasks that this one, the latest, has made ready."""
        return [follower for follower in self.after[task] if not self.before[follower] & ~done]

    def run_safe_task(self, state: OrderState) -> bool:
        """Run every ready task that is safe; return whether there was one."""
        found = False
        for task in tuple(state.ready):
            transient, delta = self.cost(task, state.done)
            if self.is_safe(delta) and self.fits(state.memory + transient):
                self.execute(state, task, delta)
                found = True
        return found

    @staticmethod
    def is_safe(delta: int) -> bool:
        """Tell whether moves that change memory by `delta` may be made without an alternative."""
        return delta <= 0

    def run_safe_chain(self, state: OrderState) -> bool:
        """Run the first safe chain; return whether there was one."""
        for task in state.ready:
            for member in self.safe_chain(state, task):
                self.execute(state, member, self.cost(member, state.done).delta)
            if state.done >> task & 1:
                return True
        return False

    def safe_chain(self, state: OrderState, first: int) -> tuple[int, ...]:
        """Return a safe chain that begins with this task, or an empty one, after trying all branches."""
        branches = [(first, state.done, 0, (first,))]
        while branches and self.spent <= self.work:
            task, done, height, chain = branches.pop()
            transient, delta = self.cost(task, done)
            if not self.fits(state.memory + height + transient):
                continue
            if self.is_safe(height + delta):
                return chain
            if len(chain) < CHAIN_TASKS:
                done |= 1 << task
                branches += [(f, done, height + delta, (*chain, f)) for f in self.released(task, done)]
        return ()


def order_within(tasks: TaskGraph, budget: int, work: int) -> Attempt:
    """Look for an order whose peak is at most `budget`. At most about `work` evaluations."""
    return PeakSearch(tasks, budget, work).run()


def smallest_peak(tasks: TaskGraph, start: Sequence[int], bound: int, work: int) -> Optimum:
    """Return the order of smallest peak, from an order and a lower bound; proven if the result's peak is its bound."""
    best, high, low, left = tuple(start), peak(tasks, start), bound, work
    unknown: tuple[int, int] | None = None  # budgets that took too much work: all between are skipped
    tried_below = False
    while low < high and left > 0:
        budget = _next_budget(low, high, unknown, tried_below)
        if budget is None:
            break
        tried_below |= budget == high - 1
        found = order_within(tasks, budget, min(left, int(work * PROBE_SHARE)))
        left -= found.work
        add_work("order")
        add_work("node", found.work)
        if found.order is not None:
            best, high = found.order, peak(tasks, found.order)
            if high > budget:
                raise AssertionError("the search and the simulation price an order differently")
        elif found.proven:
            low = max(low, found.refused)
        else:
            unknown = (min(budget, unknown[0]), max(budget, unknown[1])) if unknown else (budget, budget)
    return Optimum(best, high, min(low, high), work - left)


def _next_budget(low: int, high: int, unknown: tuple[int, int] | None, tried_below: bool) -> int | None:
    """Choose just below the best order first (it is often optimal), then bisect, avoiding undecided budgets."""
    if unknown is None:
        return (low + high) // 2 if tried_below else high - 1
    if unknown[1] < high - 1:
        return (unknown[1] + high) // 2
    if low < unknown[0]:
        return (low + unknown[0] - 1) // 2
    return None
