"""What a step costs by the target's figures (a model, no measurement), and how its plan was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Objective = Literal["memory", "time", "energy"]
AttemptKind = Literal["asked", "stream", "recompute", "page", "optimise", "micro-batch", "less"]
"""A plan of what was asked for, with some layers row by row, some tensors computed twice, in further memories, the best
by an objective, with several samples in a step, of a smaller update."""


@dataclass(frozen=True)
class StepCost:
    """Picoseconds and picojoules of one step and its update.

    compute: of the core, accesses to the arena included. access: what accesses to further memories cost more. paging:
    of copies between memories. memory_pj: of both. Nothing overlaps.
    """

    compute_ps: int
    access_ps: int
    paging_ps: int
    compute_pj: int
    memory_pj: int

    @property
    def ps(self) -> int:
        """The whole step, paging included."""
        return self.compute_ps + self.access_ps + self.paging_ps

    @property
    def pj(self) -> int:
        """Energy of the core and of further memories."""
        return self.compute_pj + self.memory_pj


@dataclass(frozen=True)
class Attempt:
    """One way in which training was tried to fit, and the arena of the plan made that way (None: nothing was found).

    how, note: the same in words, for the user.
    """

    kind: AttemptKind
    how: str
    arena_bytes: int | None
    note: str = ""


@dataclass(frozen=True)
class PlanChoice:
    """How a plan was chosen. objective: None is the least extra time that fits; limit_ps: of --max-step-time.

    attempts: what was tried, in that order; the last one that fits is the plan.
    """

    cost: StepCost
    objective: Objective | None = None
    limit_ps: int | None = None
    attempts: tuple[Attempt, ...] = ()
