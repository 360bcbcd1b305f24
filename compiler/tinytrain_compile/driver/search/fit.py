"""Check that a plan keeps to --arena and --max-step-time, and find ways out if it does not.

A way out is a line of options, priced by doing what it says: by the plan which its options lead to, by the same way,
searches and effort. So whoever follows it gets these bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.inference_only import check_room
from tinytrain_compile.driver.candidates.ladder import FEW_NODES
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.checks.combinations import check_options, takes_no_memory
from tinytrain_compile.driver.search.board import board_ways, ram_of
from tinytrain_compile.driver.search.choose import choose, deepest, surely_fitting
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.summary import Suggestion, Summary
from tinytrain_compile.ops.int8.rescale import fractions
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.option import meant_kilobytes
from tinytrain_compile.plan.remat.stage import share_of
from tinytrain_compile.report.choice import milliseconds
from tinytrain_compile.report.ways_out import does_not_fit_text, too_slow_text

MOST_SEARCHES = 1
"""If each plan is a search for the smallest arena: other plans that a message may make, each as long as the command."""


@dataclass(frozen=True)
class Move:
    """One step from a command to a neighbour: options as the user writes them, and as values.

    note: what is said of the candidate that they lead to. over: whether to name it if it is above the limits still.
    """

    text: str
    changes: Mapping[str, Any]
    note: str | Callable[[Candidate], str]
    over: bool = True

    def said(self, candidate: Candidate) -> str:
        """Return the note on a candidate."""
        return self.note if isinstance(self.note, str) else self.note(candidate)


@dataclass(eq=False)
class Neighbours:
    """Commands beside one whose candidate does not keep to the limits. left: further plans, None for any."""

    planner: Planner
    candidate: Candidate
    left: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.left = MOST_SEARCHES if self.planner.wish.is_smallest else None

    @property
    def large(self) -> bool:
        """Tell whether looking for second runs takes long: then only ways out that fit or are found quickly count."""
        remat = self.planner.options.remat
        return remat == "auto" or (remat is None and len(self.candidate.train.graph.nodes) > FEW_NODES)

    def ways(self, moves: Iterable[Move]) -> Iterator[Suggestion]:
        """Yield the lines of these moves, priced by doing what they say.

        None of a move that the command refuses; of one that leads above the limits, none if each such plan would be
        another long search for the least that second runs can do.
        """
        for move in moves:
            over = move.over and ("arena_bytes" in move.changes or not self.large)
            text, changes = move.text, dict(move.changes)
            if self.planner.options.update == "auto" and "update" not in changes:
                # Not auto again: with other options it may choose anything, and a search for each line is too much.
                changes["update"] = self.candidate.update.label
                text = f"--update {changes['update']} {text}"
            found = self._followed(over, changes)
            if found is None:
                continue
            planner, candidate = found
            size, ps = candidate.plan.arena_bytes, candidate.choice.cost.ps
            meets = planner.keeps(candidate) and ram_of(planner, candidate).fits
            if meets or over:
                slow = planner.options.max_step_ps is not None and ps > planner.options.max_step_ps
                still = "" if meets else ", still too slow" if slow and planner.meets(size, 0) else ", still over"
                yield Suggestion(text, size, move.said(candidate) + still, meets, "arena_bytes" in changes)

    def _followed(self, over: bool, changes: Mapping[str, Any]) -> tuple[Planner, Candidate] | None:
        """Run the same command with other options; None if it refuses them, or no further plan may be made.

        over: also if that is above the limits still; else it may then be any plan that is.
        """
        planner = self.planner.with_options("smallest" if over else "fit soon" if self.large else "fit", **changes)
        if self.left is not None and "arena_bytes" not in changes:
            if self.left == 0:
                return None
            self.left -= 1
        try:
            return planner, choose(planner)
        except CompileError:
            return None

    # ---- moves ------------------------------------------------------------------------------------------------------

    def less(self) -> Iterator[Move]:
        """Yield the deepest update that keeps to the limits. If auto did not find one there is none."""
        planner, count = self.planner, self.planner.layer_count
        if planner.options.update == "auto":
            return
        found = deepest(planner, count) if not planner.wish.is_smallest else None
        depth = surely_fitting(planner, count) if planner.wish.is_smallest else 0 if found is None else found[0]
        if depth:
            note = _step if planner.options.max_step_ps is not None else f"of {count} layers"
            yield Move(f"--update last:{depth}", {"update": f"last:{depth}"}, note, over=False)

    def recomputing(self) -> Iterator[Move]:
        """Yield more second runs than were allowed. (If `auto` does not fit, `min` would not, and takes long.)"""
        planner, o = self.planner, self.planner.options
        if o.remat in ("auto", "min") or o.optimise is not None:
            return
        tried = [attempt for attempt in self.candidate.choice.attempts if attempt.kind == "recompute"]
        # The ladder has made the same plan for `auto` already; if it is too large there is no need to make it again.
        hopeless = o.update != "auto" and any((r.arena_bytes or 0) > (o.arena_bytes or 0) for r in tried)
        if not hopeless and planner.could_fit(self.candidate):
            yield Move("--remat auto", {"remat": "auto"}, _more_macs, over=False)

    def more_memory(self) -> Iterator[Move]:
        """Yield what the target's further memories would take, with their price in time by the target's figures."""
        plan = None if takes_no_memory(self.planner.options) else self.planner.moved(self.candidate)
        if plan is not None:
            sizes = {memory.name: memory.used_bytes for memory in plan.further}
            text = " ".join(f"--memory {name}={size}" for name, size in sizes.items())
            yield Move(text, {"memories": sizes}, _moving, over=False)

    def rows(self) -> Iterator[Move]:
        """Yield rows in place of whole maps where `--stream off` forbids them, and in place of the whole image."""
        o = self.planner.options
        if o.stream == "off":
            yield Move("--stream auto", {"stream": "auto"}, "early layers row by row", over=False)
            return
        image = sum(value.size_bytes for value in self.candidate.train.graph.data)
        if o.input_lines or image < self.candidate.plan.arena_bytes - (o.arena_bytes or 0):
            return
        try:
            check_options(replace(o, input_lines=True, given=o.given | {"input_lines"}))
        except CompileError:
            return
        yield Move("--input-lines", {"input_lines": True}, "the firmware hands over rows of the image", over=False)

    def smaller_state(self) -> Iterator[Move]:
        """Yield optimizer state, fraction bits and gradient sums that training can do without."""
        o, needed = self.planner.options, self.candidate.plan.arena_bytes
        if o.optimizer != "sgd":

            def cost(without: Candidate) -> str:
                return f"{o.optimizer} state costs {needed - without.plan.arena_bytes} B"

            yield Move("--optimizer sgd", {"optimizer": "sgd"}, cost)
        extra = sum(value.size_bytes for value in fractions(self.candidate.train.graph.nodes))
        if extra and needed - extra <= (o.arena_bytes or 0):
            yield Move("--weight-store sr8", {"weight_store": "sr8"}, "costs some accuracy: docs/int8.md")
        if o.batch > 1 and o.accumulate == "exact":
            one, size = (" --micro-batch 1", 1) if self.planner.size > 1 else ("", o.micro_batch)
            if self.planner.size > 1:
                yield Move("--micro-batch 1", {"micro_batch": 1}, "one sample at a time")
            yield Move(f"--batch 1{one}", {"batch": 1, "micro_batch": size}, "no gradient sums")
            changes = {"accumulate": "inplace", "micro_batch": size}
            yield Move(f"--accumulate inplace{one}", changes, "no gradient sums")

    def head(self) -> Iterator[Move]:
        """Yield the head alone, in the arena that it needs."""
        needed, limit = self.planner.exact("head").plan.arena_bytes, self.planner.options.arena_bytes or 0
        if arena_is_there(self.planner, needed):
            note = "fits" if needed <= limit else "the least for the head"
            yield Move(f"--update head --arena {needed}", {"update": "head", "arena_bytes": needed}, note)

    def arena(self, needed: int, note: str | Callable[[Candidate], str]) -> Iterator[Move]:
        """Yield an arena of so many bytes."""
        if arena_is_there(self.planner, needed):
            yield Move(f"--arena {needed}", {"arena_bytes": needed}, note)


def _step(candidate: Candidate) -> str:
    return f"{candidate.choice.cost.ps / 1e9:.4g} ms a step"


def _more_macs(candidate: Candidate) -> str:
    return f"+{share_of(candidate.train.graph, candidate.plan):.0%} MACs a step"


def _moving(candidate: Candidate) -> str:
    return f"+{candidate.plan.extra_ps / 1e9:.3g} ms a step (model)"


def arena_is_there(planner: Planner, size_bytes: int) -> bool:
    """Tell whether the target has so large an arena: a board's first memory has an end (E0107)."""
    return planner.target.board is None or size_bytes <= planner.target.memories[0].size_bytes


def smaller(planner: Planner, candidate: Candidate) -> tuple[Suggestion, ...]:
    """Return ways out of --arena: less to update, second runs, other memories, a smaller state, a larger arena."""
    beside = Neighbours(planner, candidate)
    less = tuple(beside.ways(beside.less()))
    head = () if less or planner.options.update == "auto" else beside.head()
    moves = itertools.chain(beside.recomputing(), beside.more_memory(), beside.smaller_state(), head, beside.rows())
    return (*less, *beside.ways(moves), *beside.ways(beside.arena(candidate.plan.arena_bytes, "fits as is")))


def faster(planner: Planner, candidate: Candidate) -> tuple[Suggestion, ...]:
    """Return ways out of --max-step-time: less to update, a larger arena, more time."""
    beside = Neighbours(planner, candidate)
    found = [*beside.ways(beside.less())]
    alone = planner.unhelped(candidate)
    larger = beside.arena(alone, _step) if alone > candidate.plan.arena_bytes else ()
    longest = -(-candidate.choice.cost.ps // 10**9)
    time = Move(f"--max-step-time {longest}ms", {"max_step_ps": longest * 10**9}, "as it is")
    return tuple(sorted([*found, *beside.ways((*larger, time))], key=lambda way: not way.meets))


def check_fit(summary: Summary, planner: Planner, candidate: Candidate, asked: CompileOptions) -> None:
    """Raise E0401 or E0402, with ways out below them, priced. asked: the options without what a board offers."""
    limit, needed = planner.options.arena_bytes, candidate.plan.arena_bytes
    if planner.options.inference_only:
        check_room(candidate, planner.options, does_not_fit_text(summary))
        return
    if limit is None or needed <= limit:
        _check_time(summary, planner, candidate)
        return
    ways = smaller(planner, candidate)
    if not arena_is_there(planner, needed):
        ways = (*ways, *board_ways(planner, candidate, asked))
    summary = replace(summary, suggestions=ways)
    fitting = [way.options for way in ways if way.arena_bytes <= limit]
    larger = next((way.options for way in ways if way.sets_arena), "")
    if not larger:
        larger = f"--arena {needed}" if arena_is_there(planner, needed) else "a larger board (--list-targets)"
    try_ = f"try {fitting[0]}" if fitting else f"nothing fits into it; try {larger}"
    if fitting and fitting[0].startswith("--memory") and planner.target.board is None:  # a core has what a part may not
        try_ += f", if your part has such a RAM, or {larger}"
    if arena_is_there(planner, limit << 10):
        try_ = meant_kilobytes(limit, needed) or try_
    what = f"training needs {needed} B, the arena is {limit} B (over by {needed - limit} B)"
    raise CompileError("E0401", f"--update {candidate.label}", what, try_, tuple(does_not_fit_text(summary)))


def _check_time(summary: Summary, planner: Planner, candidate: Candidate) -> None:
    longest, needed = planner.options.max_step_ps, candidate.choice.cost.ps
    if longest is None or needed <= longest:
        return
    ways = faster(planner, candidate)
    what = f"a step takes {milliseconds(needed)} by the target's figures, the limit is {milliseconds(longest)}"
    details = too_slow_text(replace(summary, suggestions=ways))
    try_ = f"try {ways[0].options}" if ways else "allow a longer step, or leave other options out"
    raise CompileError("E0402", f"--update {candidate.label}", what, try_, tuple(details))
