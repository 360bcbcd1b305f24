"""Ways out of a limit that is too small: lines of options, each priced by doing what it says.

A line's figure is that of the plan which its options lead to, by the same way, searches and effort, so whoever follows
it gets these bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tinytrain_compile.driver.candidates.fallbacks import FEW_NODES
from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.driver.candidates.ram_use import ram_of
from tinytrain_compile.driver.checks.combinations import takes_no_memory
from tinytrain_compile.driver.search.choose_update import choose
from tinytrain_compile.driver.search.update import deepest, surely_fitting
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.summary import Suggestion
from tinytrain_compile.ops.int8.rescale import fractions
from tinytrain_compile.plan import share_of

Note = Callable[[Candidate], str]


MOST_SEARCHES = 1
"""Where each plan is a search for the smallest arena: other plans that a message may make."""


@dataclass(eq=False)
class _Asked:
    """What was asked for, and the candidate that does not keep to the limits. left: further plans, None for any."""

    planner: Planner
    candidate: Candidate
    left: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.left = MOST_SEARCHES if self.planner.searches_smallest else None

    @property
    def large(self) -> bool:
        """Whether looking for second runs takes long: then only ways out that fit are told, and quickly found ones."""
        remat = self.planner.options.remat
        return remat == "auto" or (remat is None and len(self.candidate.train.graph.nodes) > FEW_NODES)

    def follow(self, over: bool = True, **changes: Any) -> tuple[Planner, Candidate] | None:
        """Run the same command with other options; None if it refuses them.

        over: also if that is above the limits still; else it may then be any plan that is.
        """
        planner = self.planner.with_options(smallest=over, again=over or not self.large, **changes)
        if self.left is not None and "arena_bytes" not in changes:
            if self.left == 0:
                return None
            self.left -= 1
        try:
            return planner, choose(planner)
        except CompileError:
            return None

    def way(self, text: str, note: Note, over: bool = True, **changes: Any) -> list[Suggestion]:
        """The line with its price. over: also if that is above the limits still, but not where each such plan would be
        another long search for the least that second runs can do."""
        over = over and ("arena_bytes" in changes or not self.large)
        pinned = self.planner.options.update == "auto" and "update" not in changes
        if pinned:  # not auto again: with other options it may choose anything, and a search for each line is too much
            spec = self.candidate.update.label
            text, changes = f"--update {spec} {text}", {**changes, "update": spec}
        found = self.follow(over, **changes)
        if found is None:
            return []
        planner, candidate = found
        size, ps = candidate.plan.arena_bytes, candidate.choice.cost.ps
        meets = planner.meets(size, ps) and ram_of(planner, candidate).fits
        if not meets and not over:
            return []
        slow = planner.options.max_step_ps is not None and ps > planner.options.max_step_ps
        still = "" if meets else ", still too slow" if slow and planner.meets(size, 0) else ", still over"
        return [Suggestion(text, size, note(candidate) + still, meets, "arena_bytes" in changes)]


def suggestions(planner: Planner, candidate: Candidate) -> tuple[Suggestion, ...]:
    """Ways out of --arena: less to update, second runs, other memories, a smaller state, a larger arena."""
    asked, found = _Asked(planner, candidate), list[Suggestion]()
    found += _less(asked)
    some = bool(found)
    found += recomputing(planner, candidate)
    found += _more_memory(asked)
    found += _smaller_state(asked)
    if not some and planner.options.update != "auto":
        head = planner.exact("head").plan.arena_bytes
        limit = planner.options.arena_bytes or 0
        note = "fits" if head <= limit else "the least for the head"
        if arena_is_there(planner, head):
            found += asked.way(f"--update head --arena {head}", lambda _: note, update="head", arena_bytes=head)
    needed = candidate.plan.arena_bytes
    if arena_is_there(planner, needed):
        found += asked.way(f"--arena {needed}", lambda _: "fits as is", arena_bytes=needed)
    return tuple(found)


def arena_is_there(planner: Planner, size_bytes: int) -> bool:
    """Whether the target has so large an arena: a board's first memory has an end (E0107)."""
    return planner.target.board is None or size_bytes <= planner.target.memories[0].size_bytes


def faster(planner: Planner, candidate: Candidate) -> tuple[Suggestion, ...]:
    """Ways out of --max-step-time: less to update, a larger arena, more time."""
    asked, found = _Asked(planner, candidate), list[Suggestion]()
    found += _less(asked)
    alone = planner.unhelped(candidate)
    if alone > candidate.plan.arena_bytes and arena_is_there(planner, alone):
        found += asked.way(f"--arena {alone}", _step, arena_bytes=alone)
    longest = -(-candidate.choice.cost.ps // 10**9)
    found += asked.way(f"--max-step-time {longest}ms", lambda _: "as it is", max_step_ps=longest * 10**9)
    return tuple(sorted(found, key=lambda way: not way.meets))


def _step(candidate: Candidate) -> str:
    return f"{candidate.choice.cost.ps / 1e9:.4g} ms a step"


def _less(asked: _Asked) -> list[Suggestion]:
    """The deepest update that keeps to the limits. Where auto did not find one there is none."""
    planner, count = asked.planner, asked.planner.layer_count
    if planner.options.update == "auto":
        return []
    if planner.searches_smallest:
        depth = surely_fitting(planner, count)
    else:
        depth, _ = deepest(planner, count) or (0, None)
    if depth == 0:
        return []
    note: Note = _step if planner.options.max_step_ps is not None else lambda _: f"of {count} layers"
    return asked.way(f"--update last:{depth}", note, over=False, update=f"last:{depth}")


def recomputing(planner: Planner, candidate: Candidate) -> list[Suggestion]:
    """More rematerialisation than was allowed, if it fits. (Where `auto` does not, `min` would not, and takes long.)"""
    o = planner.options
    if o.remat in ("auto", "min") or o.optimise is not None:
        return []

    def note(candidate: Candidate) -> str:
        return f"+{share_of(candidate.train.graph, candidate.plan):.0%} MACs a step"

    tried = [attempt for attempt in candidate.choice.attempts if attempt.kind == "recompute"]
    # The fallbacks have made the same plan for `auto` already; where it is too large there is no need to make it again.
    hopeless = o.update != "auto" and any((r.arena_bytes or 0) > (o.arena_bytes or 0) for r in tried)
    if hopeless or not planner.could_fit(candidate):
        return []
    return _Asked(planner, candidate).way("--remat auto", note, over=False, remat="auto")


def _more_memory(asked: _Asked) -> list[Suggestion]:
    """What the target's further memories would take, and their price in time by the target's figures."""
    plan = None if takes_no_memory(asked.planner.options) else asked.planner.moved(asked.candidate)
    if plan is None:
        return []
    sizes = {memory.name: memory.used_bytes for memory in plan.further}

    def note(candidate: Candidate) -> str:
        return f"+{candidate.plan.extra_ps / 1e9:.3g} ms a step (model)"

    text = " ".join(f"--memory {name}={size}" for name, size in sizes.items())
    return asked.way(text, note, over=False, memories=sizes)


def _smaller_state(asked: _Asked) -> list[Suggestion]:
    """Optimizer state, fraction bits and gradient sums that training can do without."""
    o, candidate = asked.planner.options, asked.candidate
    found: list[Suggestion] = []
    if o.optimizer != "sgd":

        def cost(without: Candidate) -> str:
            return f"{o.optimizer} state costs {candidate.plan.arena_bytes - without.plan.arena_bytes} B"

        found += asked.way("--optimizer sgd", cost, optimizer="sgd")
    extra = sum(value.size_bytes for value in fractions(candidate.train.graph.nodes))
    if extra and candidate.plan.arena_bytes - extra <= (o.arena_bytes or 0):
        noise = "costs some accuracy: docs/int8.md"
        found += asked.way("--weight-store sr8", lambda _: noise, weight_store="sr8")
    if o.batch > 1 and o.accumulate == "exact":
        several = asked.planner.size > 1
        one, size = (" --micro-batch 1", 1) if several else ("", o.micro_batch)
        if several:
            found += asked.way("--micro-batch 1", lambda _: "one sample at a time", micro_batch=1)
        found += asked.way(f"--batch 1{one}", lambda _: "no gradient sums", batch=1, micro_batch=size)
        inplace: dict[str, Any] = {"accumulate": "inplace", "micro_batch": size}
        found += asked.way(f"--accumulate inplace{one}", lambda _: "no gradient sums", **inplace)
    return found
