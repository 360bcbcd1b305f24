"""What a step costs by the target's figures (a model, no measurement), and how its plan was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Objective = Literal["memory", "time", "energy"]
Remat = Literal["off", "auto", "min"]
Stream = Literal["off", "auto", "min"]
"""The three wishes of --optimise, --remat and --stream; `plan/options.py` says what they mean."""
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
class NodeTimes:
    """Modelled picoseconds of every node of a training graph, by name: computing alone, as in StepCost.compute_ps."""

    ps: Mapping[str, int]


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
class ChoiceRound:
    """A choice of layers that --update auto has planned. arena_bytes: None where nothing was found that fits."""

    effort: Literal["quick", "full"]
    gain: float
    arena_bytes: int | None
    fits: bool


@dataclass(frozen=True)
class LayerReason:
    """What --update auto takes of a layer, the next way to train more of it, and why that was not taken, by the model.

    way, next_way: "frozen", "bias", "in/8" to "out/2", "all" ("": nothing gains more). more: gain. over_bytes, over_ps:
    what the next way is above a limit of memory or time; both 0: the model sees none, so plans did not fit, or what
    else it would allow gains more.
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

    accuracy: None where labels are values; rate: None where nothing was trained. finalist: whether it was among those
    that were trained for longer.
    """

    rule: str
    parameters: int
    arena_bytes: int
    loss: float
    accuracy: float | None
    rate: float | None
    finalist: bool = False


@dataclass(frozen=True)
class UpdateChoice:
    """How --update auto has chosen what is trained.

    gains: where they come from. gain: of what was chosen; best_gain: nothing that could fit has more, as far as that is
    known. scheme: the choice as a scheme file. why: sentences for people: which limit binds, what more room would be
    used for. tried: rules that were compared, the first without any training; empty without samples. held: how many of
    them judged.
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

    @property
    def proven(self) -> bool:
        """Whether nothing better fits."""
        return self.gain >= self.best_gain


@dataclass(frozen=True)
class ParetoPoint:
    """What --update auto trains with one --arena (`limit_bytes`), by a full plan, and what that gains.

    best_gain: as in UpdateChoice. layers, parameters: how many are trained. depth: how many layers lie from the first
    trained one to the last layer, both included.
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
    """How a plan was chosen. objective: None is the least extra time that fits; limit_ps: of --max-step-time.

    attempts: what was tried, in that order; the last one that fits is the plan. update: how --update auto has chosen.
    pareto: what it would choose in other arenas, where that was asked for.
    """

    cost: StepCost
    objective: Objective | None = None
    limit_ps: int | None = None
    attempts: tuple[Attempt, ...] = ()
    update: UpdateChoice | None = None
    pareto: tuple[ParetoPoint, ...] = ()
