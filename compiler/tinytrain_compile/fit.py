"""Finds what fits: the deepest update under the arena, and priced ways out when nothing the user asked for fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import MemoryPlan, Suggestion, TrainGraph, UpdatePlan
from tinytrain_compile.options import CompileOptions
from tinytrain_compile.plan import (
    Lock,
    Memory,
    Planned,
    PlanOptions,
    RematOptions,
    plan_from_lock,
    plan_with_remat,
    share_of,
    spread,
)
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target import Target
from tinytrain_compile.training import Accumulate, TrainingOptions, build_training

LADDER_SHARE = 0.25
"""Without --remat: extra multiply-accumulates, as a share of a step's, that are spent before less is updated."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to train: what is updated, its training graph and its memory plan."""

    update: UpdatePlan
    train: TrainGraph
    plan: MemoryPlan
    label: str


def further_memories(target: Target, sizes: Mapping[str, int]) -> tuple[Memory, ...]:
    """Memories of a target by name and size, with what they cost more than the first one; E0107 for one it lacks."""
    first, found = target.memories[0], list[Memory]()
    banks = {bank.name: bank for bank in target.memories[1:] if bank.writable}
    for name, size in sizes.items():
        if name not in banks or size > banks[name].size_bytes:
            what = f"{target.name} has no such memory that a step may write"
            if name in banks:
                what = f"{size} B are asked for, {target.name} has {banks[name].size_bytes} B"
            known = ", ".join(f"{bank.name} ({bank.size_bytes} B)" for bank in banks.values()) or "none"
            raise CompileError("E0107", f"--memory {name}", what, f"further memories of this target: {known}")
        bank = banks[name]
        there, here = 1_000_000 // bank.bytes_per_us, 1_000_000 // first.bytes_per_us
        extra = (max(there - here, 0), max(bank.pj_per_byte - first.pj_per_byte, 0))
        copy = (there + here, bank.pj_per_byte + first.pj_per_byte)
        found.append(Memory(name, size, *extra, *copy, setup_ps=bank.setup_ns * 1000))
    return tuple(found)


def _with_graph(train: TrainGraph, graph: Graph) -> TrainGraph:
    """The training graph with what a plan added to it; a checkpoint's identity stays."""
    return replace(train, graph=graph, before_remat=train.before_remat or train.graph)


class Planner:
    """Prices update plans for one model and one set of options."""

    def __init__(self, model: ImportedModel, options: CompileOptions, target: Target) -> None:
        self.model = model
        self.options = options
        self.target = target
        self._memories = further_memories(target, options.memories)
        self._quick: dict[str, int] = {}

    def _train(self, update: UpdatePlan, optimizer: str, batch: int, accumulate: Accumulate) -> TrainGraph:
        o = self.options
        chosen = TrainingOptions(o.loss, optimizer, o.learning_rate, o.momentum, o.weight_decay, batch, accumulate)
        train = build_training(self.model, update, chosen)
        return quantise(train, QuantOptions(o.seed, o.weight_store, o.rescale)) if o.quant == "int8" else train

    def _plan(self, train: TrainGraph, quick: bool, remat: RematOptions) -> tuple[TrainGraph, MemoryPlan]:
        """The plan, and the training graph with what it computes twice."""
        limit, effort = self.options.arena_bytes, "quick" if quick else "full"
        keep = (train.loss.name,)
        settings = PlanOptions(limit, self.target.alignment_bytes, seed=self.options.seed, effort=effort, keep=keep)
        planned = plan_with_remat(train.graph, settings, remat)
        found, plan = _with_clones(train, planned)
        if limit is None or plan.arena_bytes <= limit:
            return found, plan
        moved = spread(planned.graph, plan, settings, self._memories)
        return (found, plan) if moved is None else (_with_graph(found, moved.graph), moved.plan)

    def _remat(self) -> RematOptions:
        """What --remat says; without it, the rung of the ladder before less is updated."""
        mode = self.options.remat
        return RematOptions("auto", LADDER_SHARE) if mode is None else RematOptions(mode)

    def full(self, update: UpdatePlan) -> Candidate:
        """The candidate planned with full effort."""
        o = self.options
        train = self._train(update, o.optimizer, o.batch, o.accumulate)
        return Candidate(update, *self._plan(train, False, self._remat()), update.label)

    def locked(self, update: UpdatePlan, lock: Lock) -> Candidate:
        """The candidate with the plan of a lock; CompileError E0106 if that does not match."""
        train = self._train(update, self.options.optimizer, self.options.batch, self.options.accumulate)
        settings = PlanOptions(alignment_bytes=self.target.alignment_bytes, keep=(train.loss.name,))
        return Candidate(update, *_with_clones(train, plan_from_lock(train.graph, lock, settings)), update.label)

    def arena(
        self, spec: str, optimizer: str | None = None, batch: int | None = None, accumulate: Accumulate | None = None
    ) -> int:
        """Bytes that an update needs, by a quick plan (an upper bound of what a full plan finds)."""
        key, o = f"{spec}|{optimizer}|{batch}|{accumulate}", self.options
        if key not in self._quick:
            update = resolve_update(self.model.graph, spec)
            train = self._train(update, optimizer or o.optimizer, batch or o.batch, accumulate or o.accumulate)
            self._quick[key] = self._plan(train, True, self._remat())[1].arena_bytes
        return self._quick[key]

    def recomputed(self, candidate: Candidate, mode: Literal["auto", "min"]) -> tuple[int, float]:
        """Bytes that a candidate needs with --remat `mode`, by a quick plan, and its extra share of MACs."""
        train = replace(candidate.train, graph=candidate.train.before_remat or candidate.train.graph)
        train, plan = self._plan(train, True, RematOptions(mode))
        return plan.arena_bytes, share_of(train.graph, plan)

    def moved(self, candidate: Candidate) -> MemoryPlan | None:
        """The candidate with all of the target's memories at hand, if it then fits."""
        limit, keep = self.options.arena_bytes, (candidate.train.loss.name,)
        settings = PlanOptions(limit, self.target.alignment_bytes, seed=self.options.seed, effort="quick", keep=keep)
        whole = {bank.name: bank.size_bytes for bank in self.target.memories[1:] if bank.writable}
        planned = spread(candidate.train.graph, candidate.plan, settings, further_memories(self.target, whole))
        return None if planned is None else planned.plan

    def exact(self, spec: str) -> Candidate:
        """A candidate by its --update text, planned with full effort."""
        return self.full(resolve_update(self.model.graph, spec))


def _with_clones(train: TrainGraph, planned: Planned) -> tuple[TrainGraph, MemoryPlan]:
    """The training graph with what its plan computes twice, and that plan."""
    if planned.plan.remat is not None:
        train = replace(train, graph=planned.graph, before_remat=train.graph)
    return train, planned.plan


def search_update(planner: Planner, layer_count: int, limit: int | None) -> Candidate:
    """The deepest last:N that fits, for --update auto; the head alone if even that does not fit."""
    if limit is None:
        candidate = planner.exact("all")
        return replace(candidate, label="auto: all")
    depth = deepest(planner, layer_count, limit)
    best: Candidate | None = planner.exact(f"last:{depth}") if depth else None
    while depth < layer_count:
        deeper = planner.exact(f"last:{depth + 1}")  # a full plan may fit where the quick one did not
        if deeper.plan.arena_bytes > limit:
            best = best if best is not None else deeper
            break
        best, depth = deeper, depth + 1
    assert best is not None
    return replace(best, label=f"auto: last:{max(depth, 1)}")


def deepest(planner: Planner, layer_count: int, limit: int) -> int:
    """Largest N for which the quick plan of last:N fits, by bisection (deeper needs more); 0 if none does."""
    low, high = 0, layer_count
    if planner.arena(f"last:{high}") <= limit:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if planner.arena(f"last:{middle}") <= limit:
            low = middle
        else:
            high = middle
    return low


def suggestions(planner: Planner, candidate: Candidate, layer_count: int, limit: int) -> tuple[Suggestion, ...]:
    """Ways out, each priced by planning it: less to update, a smaller optimizer, no accumulation, a larger arena."""
    found: list[Suggestion] = []
    depth = deepest(planner, layer_count, limit)
    if depth:
        found.append(Suggestion(f"--update last:{depth}", planner.arena(f"last:{depth}"), f"of {layer_count} layers"))
    found += _recomputing(planner, candidate, limit)
    found += _more_memory(planner, candidate)
    found += _smaller_state(planner, candidate, limit)
    if not depth:
        head = planner.exact("head").plan.arena_bytes
        note = "fits" if head <= limit else "the smallest arena that trains the head"
        found.append(Suggestion(f"--update head --arena {head}", head, note))
    needed = candidate.plan.arena_bytes
    found.append(Suggestion(f"--arena {needed}", needed, "fits as is"))
    return tuple(found)


def _recomputing(planner: Planner, candidate: Candidate, limit: int) -> list[Suggestion]:
    """More rematerialisation than was allowed, if it fits; else how far it would go."""
    if planner.options.remat in ("auto", "min"):
        return []
    for mode in ("auto", "min"):
        size, share = planner.recomputed(candidate, mode)
        cost = f"+{share:.0%} MACs a step"
        if size <= limit or mode == "min":
            return [Suggestion(f"--remat {mode}", size, cost if size <= limit else f"{cost}, still over")]
    return []


def _more_memory(planner: Planner, candidate: Candidate) -> list[Suggestion]:
    """What the target's further memories would take, and their price in time by the target's figures."""
    plan = planner.moved(candidate)
    if plan is None:
        return []
    options = " ".join(f"--memory {memory.name}={memory.used_bytes}" for memory in plan.further)
    extra = f"+{plan.extra_ps / 1e9:.3g} ms a step by the target's figures"
    return [Suggestion(options, plan.arena_bytes, extra)]


def _smaller_state(planner: Planner, candidate: Candidate, limit: int) -> list[Suggestion]:
    spec = candidate.label.split(": ")[-1].split(" ")[0]
    found: list[Suggestion] = []
    if planner.options.optimizer != "sgd":
        size = planner.arena(spec, optimizer="sgd")
        gain = f"{planner.options.optimizer} state costs {candidate.plan.arena_bytes - size} B"
        found.append(Suggestion("--optimizer sgd", size, gain if size <= limit else f"{gain}, still over"))
    if planner.options.batch > 1 and planner.options.accumulate == "exact":
        over = "no gradient sums, still over"
        size = planner.arena(spec, batch=1)
        found.append(Suggestion("--batch 1", size, "no gradient sums" if size <= limit else over))
        size = planner.arena(spec, accumulate="inplace")
        found.append(Suggestion("--accumulate inplace", size, "no gradient sums" if size <= limit else over))
    return found
