"""Exact placement with CP-SAT: one NoOverlap on the address axis per maximal set of boxes that are live together.

Only deterministic limits: one worker, a fixed seed, deterministic time. Hints only where they are feasible, since a
packing above a hard capacity misleads the search (notes/memory-planner.md, 1.2).
"""

from __future__ import annotations

from ortools.sat.python import cp_model

from tinytrain_compile.plan.placement import Decision, Packing, Placement

SOLVER_TIME_PER_UNIT = 0.1
"""CP-SAT's own deterministic time per unit of ours (measured on dense instances: 0.1 of it takes 1 to 3 s)."""


class _Model:
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
        for live in packing.live:
            if len(live) > 1:
                self.model.add_no_overlap([intervals[index] for index in live])

    def solve(self, units: float, seed: int) -> tuple[cp_model.CpSolver, object]:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed
        solver.parameters.max_deterministic_time = units * SOLVER_TIME_PER_UNIT
        return solver, solver.solve(self.model)

    def placement(self, solver: cp_model.CpSolver, proven: bool) -> Placement:
        offsets = tuple(solver.value(offset) for offset in self.offsets)
        height = max(offset + box.size for offset, box in zip(offsets, self.packing.boxes, strict=True))
        return Placement(offsets, height, proven or height == self.packing.bound)


def decide(packing: Packing, limit: int, units: float, seed: int) -> Decision:
    """Is there a placement of height at most `limit` units? Unknown if the work runs out."""
    if limit < packing.bound:
        return Decision("no", None)
    model = _Model(packing, limit)
    solver, status = model.solve(units, seed)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Decision("yes", model.placement(solver, proven=False))
    return Decision("no" if status == cp_model.INFEASIBLE else "unknown", None)


def minimise(packing: Packing, start: Placement, units: float, seed: int) -> Placement:
    """The lowest placement found from `start`, which is the hint; `proven` if the solver shows that it is lowest."""
    model = _Model(packing, start.height)
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
