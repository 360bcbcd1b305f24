"""What a caller asks of the planner, and what the planner says when a plan is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effort = Literal["rough", "quick", "full"]
Spend = Literal["time", "energy"]
Remat = Literal["off", "auto", "min"]


@dataclass(frozen=True)
class PlanOptions:
    """How to plan.

    capacity_bytes: the arena that the user asked for; a goal, not a limit: the best plan found is returned anyway.
        Where a quick plan keeps to it, hardly any work is spent on a lower one.
    alignment_bytes: every offset and every reserved size is a multiple of it.
    header_bytes: size of the fixed buffer at offset 0 (the handle of the generated API); 0 for none.
    deterministic_time: how much work may be spent with effort "full", in units that are about a second each on a
        current machine. Work is counted, never timed, so the same input gives the same plan everywhere.
    seed: for the local searches and the solver.
    effort: "quick" for list schedules and greedy placement, with hardly any search (to price many candidates), "rough"
        for these alone (to compare many graphs that differ little), "full" for searches too.
    keep: names of values that must stay intact until the last node of phase "step" has run (the loss).
    spend: what `spread` spends least of.
    most_ps: extra time at most that `spread` may spend on further memories, or None.
    """

    capacity_bytes: int | None = None
    alignment_bytes: int = 8
    header_bytes: int = 16
    deterministic_time: float = 8.0
    seed: int = 0
    effort: Effort = "full"
    keep: tuple[str, ...] = ()
    spend: Spend = "time"
    most_ps: int | None = None

    def reserved(self, size_bytes: int) -> int:
        """Bytes that a buffer of this size takes: rounded up to the alignment."""
        return -(-size_bytes // self.alignment_bytes) * self.alignment_bytes


@dataclass(frozen=True)
class RematOptions:
    """What may be computed twice.

    mode: "off", "auto" (only if, and as much as, the capacity needs) or "min" (the smallest arena found).
    most_share: for "auto": extra multiply-accumulates, as a share of the step's, beyond which it is left alone; None
        for no limit. With a limit, what cannot fit is returned without rematerialisation, and quickly.
    smallest: for "auto": where nothing found fits, look for the smallest arena (for whoever has to be told how much is
        missing). It takes most of the work.
    """

    mode: Remat = "off"
    most_share: float | None = None
    smallest: bool = True


class PlanError(Exception):
    """A plan that would corrupt memory, or a graph that no plan can run: a bug in the compiler, never the user's fault.

    verdict: the kind of mistake, one word or two, stable (tests and reports match on it).
    """

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(f"{verdict}: {message}")
        self.verdict = verdict
