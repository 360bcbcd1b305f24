"""Exact placement with CP-SAT: one NoOverlap on the address axis per maximal set of boxes that are live together.

Only deterministic limits: one worker, a fixed seed, deterministic time. Hints only if they are feasible, since a
packing above a hard capacity misleads the search.
"""

from __future__ import annotations

from ortools.sat.python import cp_model

from tinytrain_compile.ir.types import grouped
from tinytrain_compile.plan.place.placement import Decision, Packing, Placement, Tie
from tinytrain_compile.plan.solver import new_solver

SOLVER_TIME_PER_UNIT = 0.1
"""CP-SAT's own deterministic time per unit of ours (measured on dense instances: 0.1 of it takes 1 to 3 s)."""


class _PlacementModel:
    """The common part: offsets, and disjointness of boxes that meet."""

    def __init__(self, packing: Packing, limit: int) -> None:
        self.packing = packing
        self.model = cp_model.CpModel()
        self.offsets = [
            self.model.new_int_var(0, limit - box.size, f"offset{index}") for index, box in enumerate(packing.boxes)
        ]
        intervals = [
            self.model.new_fixed_size_interval_var(offset, box.size, f"box{index}")
            for index, (offset, box) in enumerate(zip(self.offsets, packing.boxes, strict=True))
        ]
        covers = grouped((tie.output, tie.source) for tie in packing.ties)
        for live in packing.live:
            # If an output covers a dying source, its place among the others follows from its next slot.
            there = set(live)
            apart = [index for index in live if there.isdisjoint(covers.get(index, ()))]
            if len(apart) > 1:
                self.model.add_no_overlap([intervals[index] for index in apart])
        for number, tie in enumerate(packing.ties):
            self.tie(number, tie)

    def tie(self, number: int, tie: Tie) -> None:
        """Hold the output's and the source's start far enough apart, in one of the allowed ways."""
        above = self.offsets[tie.source] - self.offsets[tie.output]
        ends = [-self.packing.boxes[tie.source].size, *([self.packing.boxes[tie.output].size] if tie.exact else [])]
        ways = [self.model.new_bool_var(f"tie{number}_{way}") for way in range(2 + tie.exact)]
        self.model.add(above <= ends[0]).only_enforce_if(ways[0])  # pyright: ignore[reportUnknownMemberType]
        near = above == tie.distance if tie.exact else above >= tie.distance
        self.model.add(near).only_enforce_if(ways[1])  # pyright: ignore[reportUnknownMemberType]
        if tie.exact:
            self.model.add(above >= ends[1]).only_enforce_if(ways[2])  # pyright: ignore[reportUnknownMemberType]
        self.model.add_bool_or(ways)

    def solve(self, units: float, seed: int) -> tuple[cp_model.CpSolver, object]:
        solver = new_solver(seed, units * SOLVER_TIME_PER_UNIT)
        return solver, solver.solve(self.model)

    def placement(self, solver: cp_model.CpSolver, proven: bool) -> Placement:
        offsets = tuple(solver.value(offset) for offset in self.offsets)
        height = max(offset + box.size for offset, box in zip(offsets, self.packing.boxes, strict=True))
        return Placement(offsets, height, proven or height == self.packing.bound)


def decide(packing: Packing, limit: int, units: float, seed: int) -> Decision:
    """Decide whether there is a placement of height at most `limit` units. Unknown if the work runs out."""
    if limit < packing.bound:
        return Decision("no", None)
    model = _PlacementModel(packing, limit)
    solver, status = model.solve(units, seed)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Decision("yes", model.placement(solver, proven=False))
    return Decision("no" if status == cp_model.INFEASIBLE else "unknown", None)


def minimise(packing: Packing, start: Placement, units: float, seed: int) -> Placement:
    """Return the lowest placement found from the hint `start`; `proven` if the solver shows that it is lowest."""
    model = _PlacementModel(packing, start.height)
    height = model.model.new_int_var(packing.bound, start.height, "height")
    for offset, box, hint in zip(model.offsets, packing.boxes, start.offsets, strict=True):
        model.model.add(offset + box.size <= height)
        model.model.add_hint(offset, hint)
    model.model.add_hint(height, start.height)
    model.model.minimize(height)
    solver, status = model.solve(units, seed)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    found = model.placement(solver, proven=status == cp_model.OPTIMAL)
    return found if found.proven or found.height < start.height else start
