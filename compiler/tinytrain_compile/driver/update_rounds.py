"""--update auto where something limits it: the way to train each layer that gains most and fits.

A model proposes (`driver/update_model.py`), a real plan answers, and what the two differ by goes into the next
question: first by quick plans, then by full ones. A scheme that was planned is not proposed again. Plans are counted,
not timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tinytrain_compile.driver.candidates import Candidate, Planner
from tinytrain_compile.driver.update_flash import FlashLimit, flash_limit
from tinytrain_compile.driver.update_model import UpdateModel, build_update_model, largest_load, with_limit
from tinytrain_compile.driver.update_reasons import layer_reasons
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.activations import LowRank
from tinytrain_compile.ir.cost import ChoiceRound, UpdateChoice
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.plan import Answer, Row, Selection, load_per_step, select
from tinytrain_compile.sparse import GainTable, LayerWays, layer_ways, scheme_text, with_copies
from tinytrain_compile.sparse.gains import UNITS

QUICK_ROUNDS = 8
"""Proposals that get a quick plan."""
FULL_TRIES = 4
"""Proposals that get a full plan."""
CLOSE = 0.99
"""Part of what the model holds possible at which a proposal that is likely to fit ends the rounds."""
LESS = 64
"""Where a full plan does not fit, so large a part of --arena is left free in the next proposals."""
NEAR = 1.06
"""What a quick plan of a suffix may need, over --arena, for a full one to be tried."""
DEPTHS, DEPTH_PARTS, SHALLOW = (64, 48, 32, 24, 16, 8, 4, 2, 1), 64, 4
"""How many of the layers that may be trained are looked at, from the back, in DEPTH_PARTS of them; one of SHALLOW and
more only where nothing else is found that fits."""
HALVINGS = 6
"""How often the layers that are looked at are halved once more, while no full plan fits."""
FREE = (8, 4, 2)
"""Before that, one after the other: so large a part of --arena stays free in what is proposed."""
SCOUT_ROUNDS = 2
"""Proposals for each of these that get a quick plan, before the best goes on."""
PROOF_WORK, PROOF_TURNS, LEAST_PROOF, SEARCHES = 5_000_000, 300, 32, 16
"""What ruling out everything better one by one may cost, a full plan priced at the cube of its nodes, and at SEARCHES
times that where each plan is a search (--optimise, --remat min, further memories); how many may be looked at; for how
many there must be room, or it is not begun."""
FEW_SCHEMES, FEW_TIMES = 1296, 8
"""As many schemes as four layers of six ways have are ruled out to the end, as far as so many times that goes."""
MOST_LAYERS = 200
"""Layers that are looked at, from the back: a model of all of them grows with the square of their number."""
SUFFIX_TRIES = 4
"""Suffixes of more gain that are planned at the end."""
MORE_BYTES = 10_240
"""More room, of which the report says what it would be used for."""
SCHEME = "update.toml"
"""The file of the output that has the scheme."""


@dataclass(frozen=True)
class Found:
    """A candidate that keeps to the limits, and how it was found."""

    candidate: Candidate
    choice: UpdateChoice


@dataclass(eq=False)
class Search:
    """One planner's search.

    model: of the layers that are looked at; whole: of all of them. short: what plans needed more than the guide said,
    up to the loss and behind it; slow: the same of their time; lost: by packing. seen: what had any plan; refused:
    what has none that fits. likely: what has no full plan yet,
    and whether it surely fits. best, candidate: what does.
    bound: of the gain of anything that fits; beyond: what layers that are not looked at may add to it.
    """

    planner: Planner
    gains: GainTable
    model: UpdateModel
    whole: UpdateModel
    flash: FlashLimit
    beyond: int = 0
    short: tuple[int, int] = (0, 0)
    slow: int = 0
    lost: int = 0
    left: int = QUICK_ROUNDS
    seen: set[Selection] = field(default_factory=set[Selection])
    refused: set[Selection] = field(default_factory=set[Selection])
    rounds: list[ChoiceRound] = field(default_factory=list[ChoiceRound])
    likely: dict[Selection, bool] = field(default_factory=dict[Selection, bool])
    best: Selection | None = None
    candidate: Candidate | None = None
    bound: int | None = None

    # ---- rows -------------------------------------------------------------------------------------------------------

    def floor(self) -> list[Row]:
        """What nothing that fits can break."""
        o, rows = self.planner.options, list[Row]()
        if o.arena_bytes is not None:
            further = sum(memory.capacity_bytes for memory in self.planner.means.memories)
            rows.append(replace(self.whole.floor, limit=o.arena_bytes + further))
        return rows

    def guide(self) -> list[Row]:
        """What plans so far say of what fits."""
        return [*self.floor(), *self.memory(), *self.time(), *self.code()]

    def memory(self) -> list[Row]:
        """Of --arena, at every step."""
        if self.planner.options.arena_bytes is None:
            return []
        room = self.planner.options.arena_bytes - self.lost
        forward = with_limit(self.model.forward, room - self.short[0])
        return forward + with_limit(self.model.backward, room - self.short[1])

    def time(self) -> list[Row]:
        """Of --max-step-time."""
        most = self.planner.options.max_step_ps
        return [] if most is None else [replace(self.model.time, limit=most - self.slow)]

    def code(self) -> list[Row]:
        """Of flash, once something was too large for it."""
        return [] if self.flash.most is None else [self.flash.row(self.model.nodes)]

    def propose(self, rows: list[Row], model: UpdateModel, exact: bool = False) -> Answer:
        """The best that was not planned yet and is better than what fits, or is likely to.

        exact: the best that no full plan has refused, to the end.
        """
        known = [*self.likely, *([] if self.best is None else [self.best])]
        above = max((self.whole.gain(selection) for selection in known), default=0)
        seen = self.refused if exact else self.seen
        here = sorted(selection for selection in seen if model.has(selection))
        return select(model.gains, rows, here, above, exact, self.planner.options.seed)

    # ---- plans ------------------------------------------------------------------------------------------------------

    def spec(self, selection: Selection) -> str:
        """The text by which the planner knows a selection."""
        return self.planner.named(self.whole.update(selection, "choice " + ".".join(map(str, selection))))

    def builds(self, selection: Selection) -> bool:
        """Whether a selection is a training graph: not if none of it leads to the loss, or no samples share a step."""
        try:
            self.planner.training(self.spec(selection))
        except CompileError:
            self.refused.add(selection)
            return False
        return True

    def learn(self, selection: Selection, plan: MemoryPlan, ps: int) -> None:
        """Correct the guide by a plan without second runs: in each half by its own difference."""
        load, loss = load_per_step(plan), self.planner.training(self.spec(selection)).loss
        split = next((i for i, node in enumerate(plan.order) if loss in node.outputs), len(load) - 1) + 1
        forward = max(load[:split]) - largest_load(self.model.forward, selection)
        backward = max(load[split:], default=0) - largest_load(self.model.backward, selection)
        self.short = forward, backward
        self.slow = ps - self.model.time.load(selection)

    def run(self) -> None:
        """Quick rounds, then a full plan of the best that is likely to fit; if it does not, again with less room; if it
        does, again for what gains more by what that plan has taught.

        One whose quick plan fits goes before one that gains hardly more; then the full one does, and in a small part of
        the time. The last try is of such a one.
        """
        room = self.planner.options.arena_bytes
        for tries in range(FULL_TRIES, 0, -1):
            self.quick()
            known = 0 if self.best is None else self.whole.gain(self.best)
            better = [one for one in self.likely if CLOSE * self.whole.gain(one) > known]
            ranked = sorted(better, key=lambda one: (-self.whole.gain(one), one))
            enough = CLOSE * max(map(self.whole.gain, ranked), default=0)
            sure = [one for one in ranked if self.likely[one] and (tries == 1 or self.whole.gain(one) >= enough)]
            chosen = next(iter(sure or ranked), None) if tries > 1 else next(iter(sure), None)
            if chosen is None:
                break
            fits = self.full(chosen)
            del self.likely[chosen]
            self.lost += 0 if room is None or fits or self.flash.refused else room // LESS
        self.likely.clear()

    def quick(self) -> None:
        """Rounds with quick plans. What they lose by packing a full plan may win back, so their load is what counts."""
        while self.left:
            answer = self.propose(self.guide(), self.model)
            if answer.selection is None or self.small(answer):
                return
            self.left -= 1
            self.seen.add(answer.selection)
            if not self.builds(answer.selection):
                continue
            planned, ps = self.planner.sketch(self.spec(answer.selection))
            size = planned.plan.arena_bytes
            fits = self.planner.meets(size, ps)
            self.rounds.append(ChoiceRound("quick", answer.gain / UNITS, size, fits))
            self.learn(answer.selection, planned.plan, ps)
            if fits or self.planner.meets(planned.plan.lower_bound_bytes + self.lost, ps):
                self.likely[answer.selection] = fits
                if answer.best_gain * CLOSE <= answer.gain:
                    return

    def small(self, answer: Answer) -> bool:
        """Whether a proposal is hardly better than what fits."""
        return self.best is not None and answer.gain * CLOSE <= self.whole.gain(self.best)

    def full(self, selection: Selection) -> bool:
        """Plan a selection in full; whether it fits."""
        spec, found = self.spec(selection), None
        if not self.flash.refuses(self.flash.unplanned(spec), self.whole.nodes, selection):
            found = self.planner.fitting(spec)
            if self.flash.refuses(found, self.whole.nodes, selection):
                found = None
        size = None if found is None else found.plan.arena_bytes
        self.rounds.append(ChoiceRound("full", self.whole.gain(selection) / UNITS, size, found is not None))
        self.seen.add(selection)
        if found is not None:
            self.best, self.candidate = selection, found
        elif not self.flash.unknown:
            self.refused.add(selection)
        return found is not None

    def suffixes(self, layer_count: int) -> None:
        """last:N of more gain than was found, the deepest first."""
        ways, tries = self.whole.layers, 0
        for depth in range(layer_count, 0, -1):
            first = len(ways) - depth
            selection = tuple(len(one.ways) - 1 if index >= first else 0 for index, one in enumerate(ways))
            if self.best is not None and self.whole.gain(selection) <= self.whole.gain(self.best):
                return
            if selection in self.refused or not all(row.holds(selection) for row in self.floor()):
                continue
            if tries == SUFFIX_TRIES:
                return
            tries += 1
            if not self.builds(selection):
                continue
            if near_limits(self.planner, self.spec(selection), NEAR) and self.full(selection):
                return

    def prove(self, whole: bool) -> None:
        """What nothing that fits can gain more than; on small graphs, until that is found. whole: else one look.

        Where nothing was found to fit, too: the model of the rounds may let none of it fit.
        """
        few = math.prod(len(item.ways) for item in self.whole.layers) <= FEW_SCHEMES
        times = FEW_TIMES if few else 1
        work, floor = times * PROOF_WORK, self.floor()
        for _ in range(times * PROOF_TURNS if whole else 1):
            answer = self.propose(floor, self.whole, exact=True)
            if answer.selection is None:
                self.bound = answer.best_gain
                return
            self.bound = answer.best_gain
            spec = self.spec(answer.selection)
            if not self.builds(answer.selection):
                continue
            price = len(self.planner.training(spec).graph.nodes) ** 3 * (SEARCHES if self.planner.searches else 1)
            if price * LEAST_PROOF > PROOF_WORK or work < price:
                return
            if self.planner.impossible(spec):
                self.refused.add(answer.selection)
            else:
                work -= price
                self.full(answer.selection)

    # ---- what is said of it -----------------------------------------------------------------------------------------

    def found(self) -> Found:
        """The best candidate, under the name by which it may be asked for again."""
        assert self.best is not None and self.candidate is not None
        if not self.model.has(self.best):  # more layers than were looked at: a deep suffix, or what the proof has found
            self.model, self.short, self.slow, self.lost = self.whole, (0, 0), 0, 0
        label = _suffix(self.whole, self.best) or SCHEME
        gain = self.whole.gain(self.best)
        best = self.beyond + (gain if self.bound is None else max(self.bound, gain))
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
        """Which limit binds, and what more room would be used for."""
        o, plan = self.planner.options, candidate.plan
        loss = next((i for i, node in enumerate(plan.order) if candidate.train.loss in node.outputs), 0)
        where = "forward" if plan.peak_step <= loss else "backward"
        origin = plan.order[plan.peak_step].origin or plan.order[plan.peak_step].name
        yield f"most memory is needed in the {where} pass, at {origin}"
        if o.arena_bytes is None or self.best is None:
            return
        more = replace(self, planner=self.planner.with_options(arena_bytes=o.arena_bytes + MORE_BYTES))
        answer = more.propose(more.guide(), more.model)
        if answer.selection is None:
            yield f"{MORE_BYTES:,} B more would not be used, by the model"
            return
        pairs = zip(self.model.layers, self.best, answer.selection, strict=True)
        changed = [f"{item.layer.name} {item.ways[new].kind}" for item, old, new in pairs if old != new]
        gain = (answer.gain - self.model.gain(self.best)) / UNITS
        shown = ", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
        yield f"{MORE_BYTES:,} B more: gain +{gain:.1f} by the model ({shown})"


def _suffix(model: UpdateModel, selection: Selection) -> str | None:
    """last:N if that is what a selection trains."""
    whole = [0 < way == len(item.ways) - 1 for item, way in zip(model.layers, selection, strict=True)]
    depth = next((count for count, one in enumerate(reversed(whole)) if not one), len(whole))
    return f"last:{depth}" if depth and not any(selection[: len(selection) - depth]) else None


def near_limits(planner: Planner, spec: str, near: float) -> bool:
    """Whether a quick plan of an update keeps to --max-step-time, and to `near` times --arena, so that a full one may
    keep to both."""
    o = planner.options
    if o.arena_bytes is None and o.max_step_ps is None:
        return True
    price = planner.price(spec)
    return planner.meets(int(price.arena_bytes / near), price.ps)


Copies = Mapping[str, Sequence[LowRank]]
"""Weight -> low-rank copies that its layer may keep."""


def best_choice(
    planner: Planner,
    gains: GainTable,
    layer_count: int,
    proof: bool = True,
    copies: Copies | None = None,
    flash: FlashLimit | None = None,
) -> Found | None:
    """The best scheme found that keeps to the limits, planned in full; None if none was. proof: as in search_update.

    copies: further ways to train a layer, worth less by their errors. flash: what is known of that limit.
    """
    layer_count = min(layer_count, MOST_LAYERS)
    every = with_copies(layer_ways(planner.model.graph, gains), copies or {}, gains)
    search = _looked_at(planner, every, gains, layer_count, flash or flash_limit(planner))
    search.run()
    for part in FREE:
        if search.candidate is not None or planner.options.arena_bytes is None:
            break
        lost = planner.options.arena_bytes // part
        search = replace(_with_model(search, search.model, QUICK_ROUNDS), lost=lost)
        search.run()
    for _ in range(HALVINGS):
        if search.candidate is not None or search.model.depth == 1:
            break
        ways = _last(search.whole.layers, max(1, search.model.depth // 2))
        search = _with_model(search, build_update_model(planner, ways), QUICK_ROUNDS)
        search.run()
    search.suffixes(layer_count)
    search.prove(proof and search.flash.most is None)
    return None if search.candidate is None else search.found()


def _looked_at(
    planner: Planner, every: tuple[LayerWays, ...], gains: GainTable, layer_count: int, flash: FlashLimit
) -> Search:
    """The search among as many layers, from the back, as the best of a few quick plans says.

    What a model knows of the forward pass is what one plan does that trains all of its layers. Where fewer are trained,
    less is kept, streams are longer, and other layers are the narrow place: so that is a model of its own.
    """
    depths = dict.fromkeys(max(1, layer_count * part // DEPTH_PARTS) for part in DEPTHS)
    whole = build_update_model(planner, _last(every, layer_count))
    unlooked = every[len(every) - planner.layer_count : len(every) - layer_count]
    beyond = sum(max(way.gain for way in one.ways) for one in unlooked)
    found, first = list[Search](), Search(planner, gains, whole, whole, flash, beyond)
    for depth in depths:
        if depth * SHALLOW < layer_count and any(first.likely.values()):
            break  # few layers, and something fits
        model = whole if depth == layer_count else build_update_model(planner, _last(every, depth))
        found.append(_with_model(first, model, SCOUT_ROUNDS))
        known = set(first.likely)
        found[-1].quick()
        found[-1].left = QUICK_ROUNDS if known != set(first.likely) else 0
    able = [search for search in found if search.left] or found[:1]
    return replace(able[-1], left=QUICK_ROUNDS)  # each one has proposed what gains more than all before


def _with_model(search: Search, model: UpdateModel, rounds: int) -> Search:
    """The same search, which goes on with what was planned so far, by a model that no plan has corrected yet."""
    return replace(search, model=model, short=(0, 0), slow=0, lost=0, left=rounds)


def _last(ways: Sequence[LayerWays], depth: int) -> tuple[LayerWays, ...]:
    """The same, with all but the last `depth` layers frozen."""
    first = len(ways) - depth
    return tuple(replace(one, ways=one.ways[:1]) if i < first else one for i, one in enumerate(ways))
