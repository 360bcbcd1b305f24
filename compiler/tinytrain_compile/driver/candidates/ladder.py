"""The ladder of one training graph: what is tried if a plan does not fit, before less is updated.

Its rungs, in this order: as asked, some layers row by row, some tensors computed twice, further memories, and both rows
and second runs. Each is a plan of its own, and the attempts say what it came to. The last rungs are for flash, and make
the code of a plan small (`driver/code/generate.py`). A flag that was given is never changed: `--remat off` leaves that
rung out, `--code speed` the last ones, and only a memory that `--memory` names is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tinytrain_compile.driver.candidate import core_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import Attempt, Objective
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.memories.spread import spread
from tinytrain_compile.plan.optimise import optimise
from tinytrain_compile.plan.options import Memory, PlanOptions, Wish
from tinytrain_compile.plan.planner import Planned, arena_bound, plan_graph, streaming
from tinytrain_compile.plan.price import step_cost
from tinytrain_compile.plan.remat.stage import plan_with_remat, share_of
from tinytrain_compile.plan.streams.again import streamed_again
from tinytrain_compile.plan.streams.rewrite import with_lines
from tinytrain_compile.plan.streams.search import load_outside, saves_enough, streamed
from tinytrain_compile.target.model import Target

LITTLE_AGAIN = 0.25
"""Without --remat: extra multiply-accumulates, as a share of a step's, that are spent before less is updated. --help
promises it: a step may be that much slower, unasked, so that a layer more learns."""

FEW_NODES = 116
"""Nodes up to which the expensive ways are always tried: second runs row by row, which take as long as some 25 quick
plans, and streams chosen by quick plans. A step of digits has 30 to 35 nodes, one of MCUNet (all layers) 294 to 361."""

MANY_NODES = 1500
"""Nodes above which a search over many updates does without second runs unless they are asked for: looking for them was
two thirds of the time of 400 dense layers, 2,200 nodes (ADR 31). Rows are then searched only where they may save
enough, and a refusal does not look at further memories, which takes minutes for 6,500 nodes."""

Climbed = tuple[Planned, tuple[Attempt, ...]]
"""A plan, and what was tried on the way to it; the last attempt is the plan."""


def wish_of(options: CompileOptions, target: Target) -> Wish:
    """Return what the options ask of a plan for this target. Errors: E0107 for a memory that it has not."""
    return Wish(
        core_model(target),
        further_memories(target, options.memories),
        options.remat,
        options.stream,
        options.optimise,
        options.max_step_ps,
        lines=options.input_lines,
        as_bytes=options.input_type == "uint8",
    )


def further_memories(target: Target, sizes: Mapping[str, int]) -> tuple[Memory, ...]:
    """Return memories of a target by name and size, with what they cost more than the first one.

    Errors: E0107 for a memory that it has not, or is smaller.
    """
    first, found = target.memories[0], list[Memory]()
    banks = {bank.name: bank for bank in target.memories[1:] if bank.writable and bank.size_bytes}
    for name, size in sizes.items():
        if name not in banks or size > banks[name].size_bytes:
            what = f"{target.name} has no such memory that a step may write"
            if name in banks:
                what = f"{size} B are asked for, {target.name} has {banks[name].size_bytes} B"
            known = ", ".join(f"{bank.name} ({bank.size_bytes} B)" for bank in banks.values()) or "none"
            raise CompileError("E0107", f"--memory {name}", what, f"further memories of this target: {known}")
        bank = banks[name]
        there, here = 1_000_000 // bank.bytes_per_us, 1_000_000 // first.bytes_per_us
        memory = Memory(
            name=name,
            capacity_bytes=size,
            extra_ps=max(there - here, 0),
            extra_pj=max(bank.pj_per_byte - first.pj_per_byte, 0),
            copy_ps=there + here,
            copy_pj=bank.pj_per_byte + first.pj_per_byte,
            setup_ps=bank.setup_ns * 1000,
        )
        found.append(memory)
    return tuple(found)


def climb(graph: Graph, settings: PlanOptions, wish: Wish) -> Climbed:
    """Plan a training graph, by as many rungs as it needs.

    The smallest arena is searched only if nothing else fits, so what fits in one memory is the same plan whether or not
    the wish asks for it: a search over many updates does not, and what it writes down is then planned by one that does.
    """
    graph = with_lines(graph, wish.as_bytes) if wish.lines else graph
    chosen = wish.memories or wish.objective is not None or wish.remat in ("off", "min")
    if wish.names_smallest and not chosen:
        found = _Ladder(graph, settings, replace(wish, aim="fit")).climbed()
        if settings.capacity_bytes is None or found[0].plan.arena_bytes <= settings.capacity_bytes:
            return found
    return _Ladder(graph, settings, wish).climbed()


@dataclass(frozen=True, eq=False)
class _Ladder:
    """The rungs of one graph. room: bytes of the arena, None for any."""

    graph: Graph
    settings: PlanOptions
    wish: Wish

    @property
    def room(self) -> int | None:
        return self.settings.capacity_bytes

    @property
    def few(self) -> bool:
        """Tell whether the graph is small enough to try every way."""
        return len(self.graph.nodes) <= FEW_NODES

    def fits(self, planned: Planned) -> bool:
        return self.room is None or planned.plan.arena_bytes <= self.room

    def fits_quickly(self, graph: Graph) -> bool:
        """Tell whether a quick plan of a graph fits: then a full one does."""
        return self.room is None or self.fits(plan_graph(graph, replace(self.settings, effort="quick")))

    def slow(self, planned: Planned) -> bool:
        """Tell whether a step of a plan takes too long."""
        return self.wish.limit_ps is not None and step_cost(planned.plan, self.wish.core).ps > self.wish.limit_ps

    def climbed(self) -> Climbed:
        """Go up all rungs, rows and second runs together last."""
        planned, attempts = self.with_rows()
        again = self.again_by_rows(planned)
        if again is None or again.plan.arena_bytes >= planned.plan.arena_bytes:
            return planned, attempts
        how = "second runs" if again.plan.streams is None else "second runs row by row"
        price = f"+{share_of(again.graph, again.plan):.1%} MACs"
        return again, (*attempts, Attempt("recompute", how, again.plan.arena_bytes, price))

    # ---- rows -------------------------------------------------------------------------------------------------------

    def with_rows(self) -> Climbed:
        """Plan with streams if they may help, then go up the rungs after them."""
        graph, settings, lines = self.graph, self.settings, self.wish.lines
        room = self.room if self.wish.stream == "auto" else None
        by_rows = graph
        if lines or self.needs_rows():
            by_rows = self.streamed(room or 0)
            if by_rows is graph and room:  # no layer is too large for it, but what lives beside them is
                by_rows = self.streamed(0)
        if lines and not any(node.op == "Stream" and takes_lines(node) for node in by_rows.nodes):
            # Which the caller refuses: no more is tried, and no rows are gone that a second run would read.
            whole = plan_graph(graph, settings)
            return whole, (Attempt("asked", "as asked", whole.plan.arena_bytes),)
        if by_rows is graph:
            return self.without_rows()
        by_rows, (planned, attempts) = self.smaller_streams(by_rows)
        # With a room both are figures of the report alone, for which a quick plan will do.
        measure = settings if self.room is None else replace(settings, effort="quick")
        whole, asked = plan_graph(graph, measure).plan, attempts[0].kind == "asked"
        alone = attempts[0].arena_bytes if asked else None
        alone = plan_graph(by_rows, measure).plan.arena_bytes if alone is None else alone
        little = self.room is None and not saves_enough(alone, whole)
        if self.wish.stream == "auto" and little and not lines:
            return self.without_rows()
        how = "--input-lines" if lines else f"--stream {self.wish.stream}"
        tried = Attempt("asked", "as asked", whole.arena_bytes), Attempt("stream", how, alone)
        planned = replace(planned, plan=replace(planned.plan, streams=streaming(whole, alone)))
        return planned, (*tried, *attempts[asked:])

    def streamed(self, room: int) -> Graph:
        return streamed(self.graph, self.settings, room, self.wish.aim != "price" or self.few)

    def of(self, by_rows: Graph) -> Climbed:
        """Go up the rungs after the rows with a graph that has them."""
        return replace(self, graph=by_rows).without_rows()

    def smaller_streams(self, by_rows: Graph) -> tuple[Graph, Climbed]:
        """Plan with these streams or, if what just fits by its load does not when it is placed, with the smallest ones.

        If quick plans say which of both fits, only that one gets a full plan.
        """
        if self.wish.stream != "auto" or self.room is None or self.wish.lines:
            return by_rows, self.of(by_rows)
        if self.settings.effort == "full" and not self.fits_quickly(by_rows):
            smallest = self.streamed(0)
            if self.fits_quickly(smallest):
                return smallest, self.of(smallest)
        found = by_rows, self.of(by_rows)
        if not self.fits(found[1][0]):
            smallest = self.streamed(0)
            least = self.of(smallest)
            found = (smallest, least) if least[0].plan.arena_bytes < found[1][0].plan.arena_bytes else found
        return found

    def needs_rows(self) -> bool:
        """Tell whether rows may help. auto: not if a plan without them fits, and not for the fastest step."""
        stream, room = self.wish.stream, self.room
        if stream != "auto" or room is None:
            wanted = stream != "off" and (stream == "min" or self.wish.objective in (None, "memory"))
            return wanted and self.rows_save()
        if self.fits_quickly(self.graph) or not self.rows_save():
            return False
        possible = self.settings.effort == "full" and arena_bound(self.graph, self.settings, once=True) <= room
        return not possible or not self.fits(plan_graph(self.graph, self.settings))

    def rows_save(self) -> bool:
        """Tell whether rows may save enough, for a price, and in graphs of very many nodes; else a search tells.

        Nodes that no stream can compute keep their load, in this order.
        """
        if self.few or (self.wish.aim != "price" and len(self.graph.nodes) <= MANY_NODES):
            return True
        plan = plan_graph(self.graph, replace(self.settings, effort="quick")).plan
        return saves_enough(load_outside(self.graph, plan), plan)

    def again_by_rows(self, planned: Planned) -> Planned | None:
        """Plan with second runs and errors row by row, which take a while to find: if the smallest arena is asked for,
        or nothing else fits but this may.

        Not with rows that the caller hands over, which are gone.
        """
        wish, least = self.wish, self.wish.remat == "min"
        if wish.remat == "off" or wish.stream == "off" or wish.objective is not None or wish.lines:
            return None
        if self.settings.effort != "full" or not (least or self.may_fit(planned)):
            return None
        found = streamed_again(self.graph, self.settings, smallest=least)
        if found is None or self.slow(found):
            return None
        return None if wish.remat is None and share_of(found.graph, found.plan) > LITTLE_AGAIN else found

    def may_fit(self, planned: Planned) -> bool:
        """Tell whether second runs may help: what stays for good fits. (Any node may need less than it does now.)"""
        if self.wish.aim in ("fit soon", "price") and not self.few:
            return False
        return self.room is not None and planned.plan.persistent_bytes < self.room < planned.plan.arena_bytes

    # ---- second runs, memories, an objective ------------------------------------------------------------------------

    def without_rows(self) -> Climbed:
        """Plan a graph whose layers are streamed already, or shall not be."""
        if self.wish.objective is not None:
            return self.optimised(self.wish.objective, f"--optimise {self.wish.objective}")
        planned, attempts = self.with_second_runs()
        if not self.slow(planned):
            return planned, attempts
        faster, last = self.optimised("time", "least step time")
        return faster, (*attempts, *last)

    def optimised(self, objective: Objective, how: str) -> Climbed:
        found = optimise(self.graph, self.settings, replace(self.wish, objective=objective))
        time = f"{step_cost(found.plan, self.wish.core).ps / 1e9:.4g} ms a step"
        note = f"{time}, too slow" if self.slow(found) else time
        return found, (Attempt("optimise", how, found.plan.arena_bytes, note),)

    def with_second_runs(self) -> Climbed:
        """Plan with the least extra time: second runs, then memories."""
        wish, names = self.wish, self.wish.names_smallest
        share = LITTLE_AGAIN if wish.remat is None else None
        remat = wish.remat or ("auto" if names or len(self.graph.nodes) <= MANY_NODES else "off")
        if remat == "off" or (remat == "auto" and self.fits(plan_graph(self.graph, self.settings))):
            planned = plan_graph(self.graph, self.settings)
        else:
            planned = plan_with_remat(self.graph, self.settings, remat, share, names)
        again = planned if planned.plan.remat is not None else planned.refused
        alone = planned.plan.remat.arena_without_bytes if planned.plan.remat is not None else planned.plan.arena_bytes
        attempts = [Attempt("asked", "as asked", alone)]
        if again is not None:
            how = f"recompute, up to {LITTLE_AGAIN:.0%} more MACs" if wish.remat is None else f"--remat {wish.remat}"
            price = f"+{share_of(again.graph, again.plan):.1%} MACs"
            price += f", more than {LITTLE_AGAIN:.0%}" if self.too_much(again) else ""
            gains = again.plan.arena_bytes < alone
            attempts.append(Attempt("recompute", how, again.plan.arena_bytes, price if gains else "no gain"))
        if self.fits(planned) or not wish.memories:
            return planned, tuple(attempts)
        # With second runs only if it takes both.
        refused = planned.refused
        sources = [planned] if refused is None or self.too_much(refused) else [planned, refused]
        found = (spread(one.graph, one.plan, self.settings, wish.memories) for one in sources)
        moved = next((plan for plan in found if plan is not None), None)
        return moved or planned, (*attempts, self.paged(moved))

    def too_much(self, again: Planned) -> bool:
        """Tell whether second runs cost more than is spent without --remat."""
        return self.wish.remat is None and share_of(again.graph, again.plan) > LITTLE_AGAIN

    def paged(self, moved: Planned | None) -> Attempt:
        """Return the attempt of further memories: what they made of it, or the smallest arena that they could make."""
        how = "page to " + ", ".join(memory.name for memory in self.wish.memories)
        if moved is not None:
            return Attempt("page", how, moved.plan.arena_bytes, f"+{moved.plan.extra_ps / 1e9:.3g} ms a step")
        if self.settings.effort == "quick" or not self.wish.names_smallest:
            return Attempt("page", how, None, "too little")
        remat = "off" if self.wish.remat in (None, "off") else "min"
        wish = replace(self.wish, remat=remat, objective="memory", limit_ps=None)
        found = optimise(self.graph, replace(self.settings, capacity_bytes=None, effort="quick"), wish)
        return Attempt("page", how, found.plan.arena_bytes, "at least")
