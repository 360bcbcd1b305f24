"""Request to the planner: limits, memories and prices, and a wish; and the error for a wrong plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tinytrain_compile.ir.cost import Objective, Remat, Stream
from tinytrain_compile.ir.stages import FurtherMemory

Effort = Literal["rough", "quick", "full"]
Spend = Literal["time", "energy"]
Aim = Literal["smallest", "fit", "fit soon", "price"]
"""Goal of a search. smallest: find a plan that fits, else the smallest arena, since a message names it. fit: find one
that fits. fit soon: the same, but in large graphs without row-by-row second runs. price: find a figure; in large graphs
rough plans choose streams."""


@dataclass(frozen=True)
class PlanOptions:
    """Settings of a plan.

    capacity_bytes: the arena that the user asked for; a goal, not a limit: the best plan found is returned anyway.
        If a quick plan keeps to it, hardly any work is spent on a lower one.
    alignment_bytes: every offset and every reserved size is a multiple of it.
    header_bytes: size of the fixed buffer at offset 0 (the handle of the generated API); 0 for none.
    deterministic_time: limit of work with effort "full", in units of about a second on a current machine. Work is
        counted, never timed, so the same input gives the same plan everywhere.
    seed: for the local searches and the solver.
    effort: "quick" for list schedules and greedy placement, with hardly any search (to price many candidates), "rough"
        for these alone (to compare many graphs that differ little), "full" for searches too.
    keep: names of values that must stay intact until the last node of phase "step" has run (the loss).
    spend: quantity that `spread` minimises.
    most_ps: most extra time that `spread` may spend on further memories, or None.
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
        """Return the bytes reserved for a buffer of this size: rounded up to the alignment."""
        return -(-size_bytes // self.alignment_bytes) * self.alignment_bytes


@dataclass(frozen=True)
class CoreModel:
    """Costs of computing, in thousandths of a cycle: a multiply-accumulate, and an element written by other
    operators."""

    clock_mhz: int
    int8_mac: int
    float_mac: int
    element: int
    pj_per_cycle: int


@dataclass(frozen=True)
class Memory:
    """A memory besides the arena, times in picoseconds and energies in picojoules.

    extra_ps, extra_pj: extra cost of a byte that a kernel accesses in it instead of the arena. copy_ps, copy_pj: cost
    of a byte copied between the two; setup_ps: of every copy.
    """

    name: str
    capacity_bytes: int
    extra_ps: int
    extra_pj: int
    copy_ps: int = 0
    copy_pj: int = 0
    setup_ps: int = 0

    def move_ps(self, size_bytes: int) -> int:
        """Return the time of one page move, in picoseconds."""
        return self.setup_ps + size_bytes * self.copy_ps

    def move(self, size_bytes: int, spend: Spend) -> int:
        """Return the time or energy of one page move."""
        return self.move_ps(size_bytes) if spend == "time" else size_bytes * self.copy_pj

    def extra(self, spend: Spend) -> int:
        """Return the extra time or energy of a byte accessed in it."""
        return self.extra_ps if spend == "time" else self.extra_pj

    def used(self, *, base: int, size_bytes: int, accessed_bytes: int, cheapest: bool) -> FurtherMemory:
        """Return the part of the memory that a plan uses, from `base` on, with its price."""
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

    remat: second runs: "off"; "auto" only as many as the capacity needs; "min" for the smallest arena; None as "auto",
    up to a share of a step (LITTLE_AGAIN). stream: whether layers may be computed row by row: "min" for the smallest
    arena, "auto" if the capacity needs it, or without a capacity if that saves enough. objective: quantity to minimise;
    None is the least extra time that fits. limit_ps: longest step by the core's figures. lines: the image comes row by
    row, into a stream; as_bytes: as bytes of a camera.
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
        """The wish without second runs, moves or an objective."""
        return replace(self, remat="off", memories=(), objective=None, limit_ps=None)

    @property
    def names_smallest(self) -> bool:
        """True if the smallest arena is wanted if nothing fits. Further memories are chosen last, depending on it."""
        return self.aim == "smallest" or (self.aim == "price" and bool(self.memories))

    @property
    def is_smallest(self) -> bool:
        """True if every plan is the smallest found, whatever the capacity. That takes the most work."""
        least = self.objective == "memory" or (self.objective is None and self.remat == "min" and not self.memories)
        return least and self.limit_ps is None

    @property
    def searches(self) -> bool:
        """True if a plan that does not fit at once leads to a search among many."""
        return self.remat == "min" or self.objective is not None or bool(self.memories)


class PlanError(Exception):
    """A plan that would corrupt memory, or a graph that no plan can run: a bug in the compiler, never the user's fault.

    verdict: the kind of mistake, one word or two, stable (tests and reports match on it).
    """

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(f"{verdict}: {message}")
        self.verdict = verdict
