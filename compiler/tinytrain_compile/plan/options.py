"""Request to the planner: limits, memories and prices, and a wish; and the error of a plan that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tinytrain_compile.ir.cost import Objective, Remat, Stream
from tinytrain_compile.ir.stages import FurtherMemory

Effort = Literal["rough", "quick", "full"]
Spend = Literal["time", "energy"]
Aim = Literal["smallest", "fit", "fit soon", "price"]
"""Effort of a search. smallest: look for a plan that fits, else for the smallest arena, since a message names it. fit:
for one that fits. fit soon: for one that fits, in large graphs without second runs row by row. price: for a figure; in
large graphs streams are chosen by rough plans."""


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
        """Return bytes that a buffer of this size takes: rounded up to the alignment."""
        return -(-size_bytes // self.alignment_bytes) * self.alignment_bytes


@dataclass(frozen=True)
class CoreModel:
    """Costs of computing, in thousandths of a cycle: a multiply-accumulate, an element that other operators write."""

    clock_mhz: int
    int8_mac: int
    float_mac: int
    element: int
    pj_per_cycle: int


@dataclass(frozen=True)
class Memory:
    """A memory besides the arena, times in picoseconds and energies in picojoules.

    extra_ps, extra_pj: what a byte that a kernel accesses in it costs more than in the arena. copy_ps, copy_pj: of a
    byte that is copied between the two; setup_ps: of every copy.
    """

    name: str
    capacity_bytes: int
    extra_ps: int
    extra_pj: int
    copy_ps: int = 0
    copy_pj: int = 0
    setup_ps: int = 0

    def move_ps(self, size_bytes: int) -> int:
        """Return time of one page move."""
        return self.setup_ps + size_bytes * self.copy_ps

    def move(self, size_bytes: int, spend: Spend) -> int:
        """Time or energy of one page move."""
        return self.move_ps(size_bytes) if spend == "time" else size_bytes * self.copy_pj

    def extra(self, spend: Spend) -> int:
        """Time or energy that a byte accessed in it costs more."""
        return self.extra_ps if spend == "time" else self.extra_pj

    def used(self, *, base: int, size_bytes: int, accessed_bytes: int, cheapest: bool) -> FurtherMemory:
        """Return what a plan uses of it, from `base` on, with its price."""
        return FurtherMemory(
            name=self.name,
            base=base,
            used_bytes=size_bytes,
            capacity_bytes=self.capacity_bytes,
            accessed_bytes=accessed_bytes,
            extra_ps=accessed_bytes * self.extra_ps,
            extra_pj=accessed_bytes * self.extra_pj,
            cheapest=cheapest,
        )


@dataclass(frozen=True)
class Wish:
    """Limits, goal and effort of a plan: the user's options as one value.

    remat: what may be computed twice: "off"; "auto" only as much as the capacity needs; "min" for the smallest arena;
    None as "auto", up to a share of a step (LITTLE_AGAIN). stream: whether layers may be computed row by row: "min" for
    the smallest arena, "auto" if the capacity needs it, or without a capacity if that saves enough. objective: what to
    have least of; None is the least extra time that fits. limit_ps: longest step by the core's figures. lines: the
    image comes row by row, which a stream takes; as_bytes: as bytes of a camera.
    """

    core: CoreModel
    memories: tuple[Memory, ...] = ()
    remat: Remat | None = None
    stream: Stream = "auto"
    objective: Objective | None = None
    limit_ps: int | None = None
    lines: bool = False
    as_bytes: bool = False
    aim: Aim = "smallest"

    @property
    def alone(self) -> Wish:
        """The same with nothing computed twice, moved or chosen."""
        return replace(self, remat="off", memories=(), objective=None, limit_ps=None)

    @property
    def names_smallest(self) -> bool:
        """Tell whether to look for the smallest arena if nothing fits. Further memories come last, and decide by it."""
        return self.aim == "smallest" or (self.aim == "price" and bool(self.memories))

    @property
    def is_smallest(self) -> bool:
        """Tell whether every plan is the smallest that is found, whatever the capacity. That takes most work of all."""
        least = self.objective == "memory" or (self.objective is None and self.remat == "min" and not self.memories)
        return least and self.limit_ps is None

    @property
    def searches(self) -> bool:
        """Tell whether a plan that does not fit at once is a search among many."""
        return self.remat == "min" or self.objective is not None or bool(self.memories)


class PlanError(Exception):
    """A plan that would corrupt memory, or a graph that no plan can run: a bug in the compiler, never the user's fault.

    verdict: the kind of mistake, one word or two, stable (tests and reports match on it).
    """

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(f"{verdict}: {message}")
        self.verdict = verdict
