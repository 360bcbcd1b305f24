"""--update auto where something limits it: the way to train each layer that gains most and fits.

A model proposes (`driver/search/model.py`), a real plan answers, and what the two differ by goes into the next
question: first by quick plans, then by full ones. A scheme that was planned is not proposed again. Plans are counted,
not timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.search.model import UpdateModel, largest_load, with_limit
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import ChoiceRound, LayerReason, UpdateChoice
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.plan.planner import load_per_step
from tinytrain_compile.plan.selection import Answer, Row, Selection, select
from tinytrain_compile.sparse import UNITS, GainTable, scheme_text

QUICK_ROUNDS = 8
"""Proposals that get a quick plan, and correct the guide: some tenths of a second each, of MCUNet (ADR 31)."""
FULL_TRIES = 4
"""Proposals, and then suffixes, that get a full plan: half a minute each, if packing is tight (ADR 31)."""
CLOSE = 0.99
"""Part of the gain that the model holds possible at which a proposal that is likely to fit ends the rounds: one percent
more is not worth another full plan."""
LESS = 64
"""If a full plan does not fit, so large a part of --arena is left free in the next proposals, each time once more."""
NEAR = 1 + FULL_TRIES / LESS
"""Share of --arena that a quick plan of a suffix may need for a full one to be tried: as far above as the last of
the proposals is below."""
MORE_BYTES = 10_240
"""More room, of which the report says what it would be used for."""
NODE_BYTES = 400
"""Code of a node, by which the next proposal has fewer of them: MCUNet's project has 79 KB for 200 nodes."""
SCHEME = "update.toml"
"""The file of the output that has the scheme."""


def layer_reasons(
    model: UpdateModel, chosen: Selection, memory: Sequence[Row], time: Sequence[Row]
) -> Iterator[LayerReason]:
    """Yield one for each layer, by the model. memory, time: rows with their limits.

    The next way of a layer is the one that gains least more than what is taken, all other layers as they are.
    """
    for index, item in enumerate(model.layers):
        taken = item.ways[chosen[index]]
        better = [way for way in range(len(item.ways)) if item.ways[way].gain > taken.gain]
        if not better:
            yield LayerReason(item.layer.name, taken.kind, taken.gain / UNITS)
            continue
        most = min(better, key=lambda way: (item.ways[way].gain, way))
        other = (*chosen[:index], most, *chosen[index + 1 :])
        yield LayerReason(
            item.layer.name,
            taken.kind,
            taken.gain / UNITS,
            item.ways[most].kind,
            (item.ways[most].gain - taken.gain) / UNITS,
            _over(memory, other),
            _over(time, other),
        )


def _over(rows: Sequence[Row], selection: Selection) -> int:
    """Return by how much a selection is above the limit that it exceeds most; 0 if it keeps to all."""
    loads = (row.load(selection) - row.limit for row in rows if row.counts(selection))
    return max(0, max(loads, default=0))


@dataclass(frozen=True)
class Found:
    """A candidate that keeps to the limits, and how it was found."""

    candidate: Candidate
    choice: UpdateChoice


@dataclass(eq=False)
class Search:
    """One planner's search.

    model: of the layers that are looked at; whole: of all of them; gain_not_looked_at: what layers in neither may add.
    bytes_above_guide: what the last plan needed more than the guide said, up to the loss and after it; ps_above_guide:
    the same of its time. bytes_left_free: of --arena, in proposals, because full plans did not fit.
    quick_plans_left: of QUICK_ROUNDS. planned_before: what had any plan. full_plan_failed: what a full plan did not fit
    of, though a command that is given it may find one that does. surely_too_large: what no command can fit.
    surely_fits: of what has a quick plan and no full one yet, whether the quick one fits, or may with better packing.
    best, candidate: what fits and gains most. gain_bound: of the gain of anything that fits. most_nodes: that a choice
    may have, once the code of one was too large for flash.
    """

    planner: Planner
    gains: GainTable
    model: UpdateModel
    whole: UpdateModel
    gain_not_looked_at: int = 0
    bytes_above_guide: tuple[int, int] = (0, 0)
    ps_above_guide: int = 0
    bytes_left_free: int = 0
    quick_plans_left: int = QUICK_ROUNDS
    planned_before: set[Selection] = field(default_factory=set[Selection])
    full_plan_failed: set[Selection] = field(default_factory=set[Selection])
    surely_too_large: set[Selection] = field(default_factory=set[Selection])
    rounds: list[ChoiceRound] = field(default_factory=list[ChoiceRound])
    surely_fits: dict[Selection, bool] = field(default_factory=dict[Selection, bool])
    best: Selection | None = None
    candidate: Candidate | None = None
    gain_bound: int | None = None
    most_nodes: int | None = None

    # ---- rows -------------------------------------------------------------------------------------------------------

    def floor(self) -> list[Row]:
        """Return what nothing that fits can break."""
        o, rows = self.planner.options, list[Row]()
        if o.arena_bytes is not None:
            further = sum(memory.capacity_bytes for memory in self.planner.wish.memories)
            rows.append(replace(self.whole.floor, limit=o.arena_bytes + further))
        return rows

    def guide(self) -> list[Row]:
        """Return what plans so far say of what fits."""
        return [*self.floor(), *self.memory(), *self.time(), *self.code()]

    def memory(self) -> list[Row]:
        """Return the rows of --arena, at every step."""
        if self.planner.options.arena_bytes is None:
            return []
        room = self.planner.options.arena_bytes - self.bytes_left_free
        forward = with_limit(self.model.forward, room - self.bytes_above_guide[0])
        return forward + with_limit(self.model.backward, room - self.bytes_above_guide[1])

    def time(self) -> list[Row]:
        """Return the row of --max-step-time."""
        most = self.planner.options.max_step_ps
        return [] if most is None else [replace(self.model.time, limit=most - self.ps_above_guide)]

    def code(self) -> list[Row]:
        """Return the row of flash, once something was too large for it."""
        return [] if self.most_nodes is None else [replace(self.model.nodes, limit=self.most_nodes)]

    def propose(self, rows: list[Row], model: UpdateModel, exact: bool = False) -> Answer:
        """Return the best that was not planned yet and is better than what fits, or is likely to.

        exact: the best that is not proven to fit nowhere, to the end.
        """
        known = [*self.surely_fits, *([] if self.best is None else [self.best])]
        above = max((self.whole.gain(selection) for selection in known), default=0)
        seen = self.surely_too_large if exact else self.planned_before
        here = sorted(selection for selection in seen if model.has(selection))
        return select(model.gains, rows, here, above, exact, self.planner.options.seed)

    # ---- plans ------------------------------------------------------------------------------------------------------

    def spec(self, selection: Selection) -> str:
        """Return the text by which the planner knows a selection."""
        return self.planner.named(self.whole.update(selection, "choice " + ".".join(map(str, selection))))

    def builds(self, selection: Selection) -> bool:
        """Tell whether a selection is a training graph: not if none of it leads to the loss, or no samples share a
        step."""
        try:
            self.planner.training(self.spec(selection))
        except CompileError:
            self.surely_too_large.add(selection)
            return False
        return True

    def correct_guide(self, selection: Selection, plan: MemoryPlan, ps: int) -> None:
        """Correct the guide by a plan without second runs: in each half by its own difference."""
        load, loss = load_per_step(plan), self.planner.training(self.spec(selection)).loss
        split = next((i for i, node in enumerate(plan.order) if loss in node.outputs), len(load) - 1) + 1
        forward = max(load[:split]) - largest_load(self.model.forward, selection)
        backward = max(load[split:], default=0) - largest_load(self.model.backward, selection)
        self.bytes_above_guide = forward, backward
        self.ps_above_guide = ps - self.model.time.load(selection)

    def correct_code(self, selection: Selection, bytes_over: int | None) -> None:
        """Let the next proposals have less code than one that is so much above the flash limit; None: unknown."""
        if bytes_over != 0:
            most = self.whole.nodes.load(selection) - max(1, -(-(bytes_over or 1) // NODE_BYTES))
            self.most_nodes = most if self.most_nodes is None else min(self.most_nodes, most)

    def run(self) -> None:
        """Run quick rounds, then a full plan of the best that is likely to fit; if it does not, again with less room;
        if it does, again for what gains more by what that plan has taught.

        One whose quick plan fits goes before one that gains hardly more; then the full one does, and in a small part of
        the time. The last try is of such a one.
        """
        room = self.planner.options.arena_bytes
        for tries in range(FULL_TRIES, 0, -1):
            self.plan_quickly()
            known = 0 if self.best is None else self.whole.gain(self.best)
            better = [one for one in self.surely_fits if CLOSE * self.whole.gain(one) > known]
            ranked = sorted(better, key=lambda one: (-self.whole.gain(one), one))
            enough = CLOSE * max(map(self.whole.gain, ranked), default=0)
            sure = [one for one in ranked if self.surely_fits[one] and (tries == 1 or self.whole.gain(one) >= enough)]
            chosen = next(iter(sure or ranked), None) if tries > 1 else next(iter(sure), None)
            if chosen is None:
                break
            fits = self.plan_in_full(chosen)
            del self.surely_fits[chosen]
            only_arena = not fits and self.planner.flash_lack.get(self.spec(chosen), 0) == 0
            self.bytes_left_free += room // LESS if room is not None and only_arena else 0
        self.surely_fits.clear()

    def plan_quickly(self) -> None:
        """Run rounds with quick plans. What they lose by packing a full plan may win back, so their load is what
        counts."""
        while self.quick_plans_left:
            answer = self.propose(self.guide(), self.model)
            if answer.selection is None or self.hardly_better(answer):
                return
            self.quick_plans_left -= 1
            self.planned_before.add(answer.selection)
            if not self.builds(answer.selection):
                continue
            sketch = self.planner.sketch(self.spec(answer.selection))
            size, ps = sketch.plan.arena_bytes, sketch.choice.cost.ps
            fits = self.planner.meets(size, ps)
            self.rounds.append(ChoiceRound("quick", answer.gain / UNITS, size, fits))
            self.correct_guide(answer.selection, sketch.plan, ps)
            if fits or self.planner.meets(sketch.plan.lower_bound_bytes + self.bytes_left_free, ps):
                self.surely_fits[answer.selection] = fits
                if answer.best_gain * CLOSE <= answer.gain:
                    return

    def hardly_better(self, answer: Answer) -> bool:
        """Tell whether a proposal is hardly better than what fits."""
        return self.best is not None and answer.gain * CLOSE <= self.whole.gain(self.best)

    def plan_in_full(self, selection: Selection) -> bool:
        """Plan a selection in full, without a search for its smallest arena; whether it fits."""
        spec = self.spec(selection)
        found = self.planner.fitting(spec)
        self.correct_code(selection, self.planner.flash_lack.get(spec, 0))
        self.full_plan_failed |= set[Selection]() if found is not None else {selection}
        return self.record(selection, found)

    def plan_as_command(self, selection: Selection) -> bool:
        """Plan a selection as a command would that is given it, so that it is known whether it fits; False if that is
        unknown, since nothing more is compiled to measure flash."""
        found = self.planner.exact(self.spec(selection))
        fits = self.planner.meets(found.plan.arena_bytes, found.choice.cost.ps)
        over = self.planner.flash_over(found) if fits else 0
        self.correct_code(selection, over)
        if not self.record(selection, found if fits and over == 0 else None) and over is not None:
            self.surely_too_large.add(selection)
        return over is not None

    def record(self, selection: Selection, found: Candidate | None) -> bool:
        """Write down what a full plan of a selection came to (None: it does not fit); whether it fits."""
        size = None if found is None else found.plan.arena_bytes
        self.rounds.append(ChoiceRound("full", self.whole.gain(selection) / UNITS, size, found is not None))
        self.planned_before.add(selection)
        if found is not None:
            self.best, self.candidate = selection, found
        return found is not None

    def suffixes(self, layer_count: int) -> None:
        """Try last:N of more gain than was found, the deepest first."""
        ways, tries = self.whole.layers, 0
        for depth in range(layer_count, 0, -1):
            first = len(ways) - depth
            selection = tuple(len(one.ways) - 1 if index >= first else 0 for index, one in enumerate(ways))
            if self.best is not None and self.whole.gain(selection) <= self.whole.gain(self.best):
                return
            if selection in self.full_plan_failed | self.surely_too_large or not all(
                row.holds(selection) for row in self.floor()
            ):
                continue
            if tries == FULL_TRIES:
                return
            tries += 1
            if not self.builds(selection):
                continue
            if near_limits(self.planner, self.spec(selection), NEAR) and self.plan_in_full(selection):
                return

    # ---- what is said of it -----------------------------------------------------------------------------------------

    def chosen(self) -> Found:
        """Return the best candidate, under the name by which it may be asked for again."""
        assert self.best is not None and self.candidate is not None
        if not self.model.has(self.best):  # more layers than were looked at: a deep suffix, or what the proof has found
            self.model, self.bytes_above_guide, self.ps_above_guide, self.bytes_left_free = self.whole, (0, 0), 0, 0
        label = _suffix(self.whole, self.best) or SCHEME
        gain = self.whole.gain(self.best)
        best = self.gain_not_looked_at + (gain if self.gain_bound is None else max(self.gain_bound, gain))
        head = f"Chosen by tinytrain-compile --update auto; gains: {self.gains.said}."
        entries = [item.ways[way].entry for item, way in zip(self.whole.layers, self.best, strict=True)]
        candidate = replace(self.candidate, update=replace(self.candidate.update, label=label))
        why = tuple(self._why(candidate))
        text = scheme_text(entries, head)
        reasons = tuple(layer_reasons(self.model, self.best, self.memory(), self.time()))
        choice = UpdateChoice(
            self.gains.said, gain / UNITS, best / UNITS, tuple(self.rounds), text, why, layers=reasons
        )
        return Found(candidate, choice)

    def _why(self, candidate: Candidate) -> Iterator[str]:
        """Yield which limit binds, and what more room would be used for."""
        o, plan = self.planner.options, candidate.plan
        loss = next((i for i, node in enumerate(plan.order) if candidate.train.loss in node.outputs), 0)
        where = "forward" if plan.peak_step <= loss else "backward"
        origin = plan.order[plan.peak_step].origin or plan.order[plan.peak_step].name
        yield f"most memory is needed in the {where} pass, at {origin}"
        if o.arena_bytes is None or self.best is None:
            return
        planner = self.planner.with_options(arena_bytes=o.arena_bytes + MORE_BYTES)
        more = replace(self, planner=planner, model=self.whole, planned_before=set(), surely_fits={})  # in more room
        answer = more.propose(more.guide(), more.model)
        if answer.selection is None:
            yield f"{MORE_BYTES:,} B more would not train more, by the model"
            return
        pairs = zip(self.whole.layers, self.best, answer.selection, strict=True)
        changed = [f"{item.layer.name} {item.ways[new].kind}" for item, old, new in pairs if old != new]
        gain = (answer.gain - self.whole.gain(self.best)) / UNITS
        shown = ", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
        yield f"{MORE_BYTES:,} B more: gain +{gain:.1f} by the model ({shown})"


def _suffix(model: UpdateModel, selection: Selection) -> str | None:
    """Return last:N if that is what a selection trains."""
    whole = [0 < way == len(item.ways) - 1 for item, way in zip(model.layers, selection, strict=True)]
    depth = next((count for count, one in enumerate(reversed(whole)) if not one), len(whole))
    return f"last:{depth}" if depth and not any(selection[: len(selection) - depth]) else None


def near_limits(planner: Planner, spec: str, near: float) -> bool:
    """Tell whether a quick plan of an update keeps to --max-step-time, and to `near` times --arena, so that a full one
    may keep to both."""
    o = planner.options
    if o.arena_bytes is None and o.max_step_ps is None:
        return True
    price = planner.price(spec)
    return planner.meets(int(price.arena_bytes / near), price.ps)
