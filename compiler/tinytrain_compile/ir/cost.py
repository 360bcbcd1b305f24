"""Cost of a step by the target's figures (a model, not a measurement), and the choice of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Objective = Literal["memory", "time", "energy"]
Remat = Literal["off", "auto", "min"]
Stream = Literal["off", "auto", "min"]
"""Values of --optimise, --remat and --stream; `plan/options.py` explains them."""
AttemptKind = Literal["asked", "stream", "recompute", "page", "optimise", "micro-batch", "less"]
"""Kinds of plans tried, in order: as requested; some layers row by row; some tensors computed twice; further memories;
the best by an objective; several samples in a step; a smaller update."""


@dataclass(frozen=True)
class StepCost:
    """Picoseconds and picojoules of one step and its update.

    compute: of the core, accesses to the arena included. access: extra cost of accesses to further memories. paging: of
    copies between memories. memory_pj: of both. Nothing overlaps.
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
class NodeTimes:
    """Modelled picoseconds of every node of a training graph, by name: only computing, as in StepCost.compute_ps."""

    ps: Mapping[str, int]


@dataclass(frozen=True)
class Attempt:
    """One attempt to make training fit, and the arena of its plan (None: no plan was found).

    how, note: descriptions for the user.
    """

    kind: AttemptKind
    how: str
    arena_bytes: int | None
    note: str = ""


@dataclass(frozen=True)
class ChoiceRound:
    """A choice of layers that --update auto has planned. arena_bytes: None if no plan that fits was found."""

    effort: Literal["quick", "full"]
    gain: float
    arena_bytes: int | None
    fits: bool


@dataclass(frozen=True)
class LayerReason:
    """Choice of --update auto for a layer, the next way to train more of it, and why that was not taken, by the model.

    way, next_way: "frozen", "bias", "in/8" to "out/2", "all" ("": nothing gains more). more: additional gain.
    over_bytes, over_ps: excess of the next way over a limit of memory or time. If both are 0, the model sees no excess:
    plans did not fit, or another choice gains more.
    """

    layer: str
    way: str
    gain: float
    next_way: str = ""
    more: float = 0.0
    over_bytes: int = 0
    over_ps: int = 0


@dataclass(frozen=True)
class RuleTried:
    """A rule's scheme after a short training on this machine: loss and accuracy on held-back samples, at its best rate.

    accuracy: None if labels are values; rate: None if nothing was trained. finalist: whether it was among the rules
    trained for longer.
    """

    rule: str
    parameters: int
    arena_bytes: int
    loss: float
    accuracy: float | None
    rate: float | None
    finalist: bool = False


@dataclass(frozen=True)
class NextArena:
    """A larger arena, by how much, and the update that fits into it: its gain, and that of the choice without it."""

    arena_bytes: int
    more_bytes: int
    update: str
    gain: float
    gain_now: float


@dataclass(frozen=True)
class UpdateChoice:
    """Choice of the trained parameters by --update auto.

    gains: their source. gain: of the choice; best_gain: known upper bound of the gain of anything that could fit.
    scheme: the choice as a scheme file. why: sentences for people: which limit binds, what more room would be used for.
    tried: rules that were compared, the first without any training; empty without samples. held: number of held-back
    samples. next_arena: above the one given, if it was looked for and found.
    """

    gains: str
    gain: float
    best_gain: float
    rounds: tuple[ChoiceRound, ...] = ()
    scheme: str = ""
    why: tuple[str, ...] = ()
    tried: tuple[RuleTried, ...] = ()
    held: int = 0
    layers: tuple[LayerReason, ...] = ()
    next_arena: NextArena | None = None

    @property
    def proven(self) -> bool:
        """True if nothing better fits."""
        return self.gain >= self.best_gain


@dataclass(frozen=True)
class ParetoPoint:
    """Choice of --update auto for one --arena (`limit_bytes`), by a full plan, and its gain.

    best_gain: as in UpdateChoice. layers, parameters: numbers trained. depth: number of layers from the first trained
    one to the last layer, both included.
    """

    limit_bytes: int
    arena_bytes: int
    step_ps: int
    gain: float
    best_gain: float
    label: str
    layers: int
    parameters: int
    depth: int


@dataclass(frozen=True)
class PlanChoice:
    """Choice of a plan. objective: None is the least extra time that fits; limit_ps: of --max-step-time.

    attempts: in the order tried; the last one that fits is the plan. update: choice of --update auto. pareto: its
    choices in other arenas, if requested.
    """

    cost: StepCost
    objective: Objective | None = None
    limit_ps: int | None = None
    attempts: tuple[Attempt, ...] = ()
    update: UpdateChoice | None = None
    pareto: tuple[ParetoPoint, ...] = ()
