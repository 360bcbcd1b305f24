"""`--activations auto`: low-rank copies only where a plan with them trains more than one without.

Gains are those of --update auto (--gains, or the prior). A layer whose input is a copy loses the share of its weight's
gain that the gradient is off by on the samples. So exact inputs win wherever they fit. Where they do not, candidates
are planned for real, under the same limits and with the same means (streams, second runs, further memories): copies
everywhere, the smaller kind of each layer, and then better ones, layer by layer, as long as a plan fits. For --update
auto copies are also further ways to train a layer in the model of its search, the smallest of each kind and finer ones,
of which it takes one or none for each layer.
What it finds without copies is kept unless a candidate gains more, so that it is never the worse for them. Plans are
counted, not timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.driver.search.best import best_choice
from tinytrain_compile.driver.search.rounds import SCHEME
from tinytrain_compile.driver.search.update import search_update
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.activations import ActivationKind, LowRank
from tinytrain_compile.ir.cost import ChoiceRound, UpdateChoice
from tinytrain_compile.ir.stages import UpdatePlan
from tinytrain_compile.sparse import (
    PRIOR,
    GainTable,
    entries_of_plan,
    gain_of_plan,
    lost_gain,
    read_gains,
    resolve_update,
    scheme_text,
)
from tinytrain_compile.sparse.gains import UNITS

SUFFIXES = 4
"""last:N of more gain than what was found without copies, that get copies."""
NEAR = 1.06
"""What a quick plan may need, over --arena, for a full one to be tried."""
MOST_BETTER = 24
"""Quick plans of one update with better copies, at most."""

Ways = Mapping[str, LowRank | None]
"""Weight -> how its layer keeps its input; None: exactly."""


@dataclass(frozen=True, eq=False)
class _Copies:
    """One update, and the copies that its layers can keep. gain: of the update with exact inputs, in 1 / UNITS."""

    planner: Planner
    update: UpdatePlan
    gains: GainTable
    gain: int

    def lost(self, ways: Ways) -> int:
        """Of the gain, by errors of gradients, in 1 / UNITS."""
        return sum(self.of_layer(name, how) for name, how in ways.items())

    def of_layer(self, name: str, how: LowRank | None) -> int:
        """The same of one layer."""
        if how is None or how.error is None:
            return 0
        alone = replace(self.update, updates={k: v for k, v in self.update.updates.items() if k == name})
        return lost_gain(how, gain_of_plan(self.planner.model.graph, alone, self.gains))

    def smallest(self) -> dict[str, LowRank | None]:
        """For every layer the kind that takes fewest bytes within --rank-error."""
        return {name: min(each, key=_bytes, default=None) for name, each in _kinds(self.planner, self.update).items()}

    def spec(self, ways: Ways) -> str:
        """The text by which the planner knows the update with these copies."""
        said = ";".join(f"{name}:{how.kind}{how.ranks}" for name, how in sorted(ways.items()) if how is not None)
        label = f"{self.update.label} with {said or 'no copies'}"
        named = replace(self.update, activations={**self.update.activations, **ways}, label=label)
        return self.planner.named(named)

    def fits(self, ways: Ways, near: float = 1.0) -> bool:
        """Whether a quick plan keeps to the limits, or nearly so."""
        spec = self.spec(ways)
        if self.planner.impossible(spec):
            return False
        price = self.planner.price(spec)
        return self.planner.meets(int(price.arena_bytes / near), price.ps)

    def better(self, ways: dict[str, LowRank | None]) -> dict[str, LowRank | None]:
        """Exact inputs, or smaller errors, where a quick plan still fits, what is lost most first."""
        left = MOST_BETTER
        for name in sorted(ways, key=lambda name: (-self.of_layer(name, ways[name]), name)):
            for how in better_copies(ways[name]):
                if left < 1:
                    return ways
                left -= 1
                if self.fits(changed := {**ways, name: how}):
                    ways = changed
                    break
        return ways

    def planned(self, above: int, smallest: dict[str, LowRank | None]) -> tuple[int, Candidate] | None:
        """(gain, candidate) of the best copies found that fit, begun with these, if they gain more than `above`."""
        if all(how is None for how in smallest.values()) or not self.fits(smallest, NEAR):
            return None
        for ways in (self.better(smallest), smallest) if self.fits(smallest) else (smallest,):
            gain = self.gain - self.lost(ways)
            candidate = self.planner.fitting(self.spec(ways)) if gain > above else None
            if candidate is not None:
                return gain, replace(candidate, update=replace(candidate.update, label=self.update.label))
        return None


def _kinds(planner: Planner, update: UpdatePlan) -> dict[str, list[LowRank]]:
    """By weight: of each kind the copy of fewest bytes within --rank-error; none where exactly takes no more."""
    kinds: tuple[ActivationKind, ...] = get_args(ActivationKind)
    found = [planner.low_rank.measured(update, kind, planner.size) for kind in kinds]
    names = [name for name in update.updates if any(name in each for each in found)]
    every = {name: [each.get(name) for each in found] for name in names}
    return {name: [how for how in each if how is not None] for name, each in every.items()}


def _bytes(how: LowRank) -> int:
    """Of the arena, that a copy takes."""
    return next(trial.size_bytes for trial in how.trials if trial.ranks == how.ranks)


def better_copies(how: LowRank | None) -> tuple[LowRank | None, ...]:
    """Exactly, then finer copies, the smallest error first."""
    return () if how is None else (None, *reversed(how.finer))


def choose_with_copies(planner: Planner) -> Candidate:
    """What --activations auto makes of a command: exact inputs where they fit, else the copies that lose least.

    Errors: E0101 without samples, or where it is not known how many a step takes.
    """
    o, graph = planner.options, planner.model.graph
    if o.data is None:
        raise CompileError("E0101", "--activations auto", "measures ranks on samples", "add --data FILE.npz")
    if o.micro_batch == "auto":
        what = "--activations auto measures ranks for as many samples as a step takes"
        raise CompileError("E0101", "--micro-batch auto", what, "name a number")
    gains = PRIOR if o.gains is None else read_gains(o.gains, graph)
    if o.update == "auto":
        return _auto(planner, gains, search_update(planner, planner.layer_count, gains))
    plain = planner.exact(o.update)
    if planner.meets(plain.plan.arena_bytes, plain.choice.cost.ps):
        return plain
    update = resolve_update(graph, o.update)
    copies = _Copies(planner, update, gains, gain_of_plan(graph, update, gains))
    found = copies.planned(-1, copies.smallest())
    return plain if found is None else found[1]


def _auto(planner: Planner, gains: GainTable, exact: Candidate) -> Candidate:
    """What the search finds with copies, deeper suffixes with them, or what was found without."""
    graph, before = planner.model.graph, gain_of_plan(planner.model.graph, exact.update, gains)
    fits = planner.meets(exact.plan.arena_bytes, exact.choice.cost.ps)
    best, rounds = (before if fits else -1, exact), list[ChoiceRound]()
    every = resolve_update(graph, f"last:{planner.layer_count}")
    kinds = _kinds(planner, every)
    searched = best_choice(planner, gains, planner.layer_count, False, kinds)
    if searched is not None:
        rounds += searched.choice.rounds
        chosen = searched.candidate.update
        copies = _Copies(planner, replace(chosen, activations={}), gains, gain_of_plan(graph, chosen, gains))
        found = copies.planned(best[0], dict(chosen.activations))
        best = best if found is None else found
    tried = len(rounds)
    for depth in range(planner.layer_count, 0, -1):
        update = resolve_update(graph, f"last:{depth}")
        gain = gain_of_plan(graph, update, gains)
        if gain <= best[0] or len(rounds) - tried == SUFFIXES:
            break
        copies = _Copies(planner, update, gains, gain)
        found = copies.planned(best[0], copies.smallest())
        size = None if found is None else found[1].plan.arena_bytes
        rounds.append(ChoiceRound("full", (gain if found is None else found[0]) / UNITS, size, found is not None))
        best = best if found is None else found
    if best[1] is exact:
        return _bounded(exact, gain_of_plan(graph, every, gains)) if any(kinds.values()) else exact
    return _told(planner, gains, best, before if fits else 0, exact, rounds)


def _bounded(exact: Candidate, most: int) -> Candidate:
    """The choice without copies, whose bound is now that of all layers: its proof knows nothing of copies."""
    if exact.choice.update is None:
        return exact
    update = replace(exact.choice.update, best_gain=most / UNITS)
    return replace(exact, choice=replace(exact.choice, update=update))


def _told(
    planner: Planner,
    gains: GainTable,
    best: tuple[int, Candidate],
    before: int,
    exact: Candidate,
    rounds: list[ChoiceRound],
) -> Candidate:
    """The candidate as --update auto tells of it."""
    gain, candidate = best
    graph = planner.model.graph
    every = gain_of_plan(graph, resolve_update(graph, f"last:{planner.layer_count}"), gains)
    known = () if exact.choice.update is None else exact.choice.update.rounds
    count = sum(how is not None for how in candidate.update.activations.values())
    why = f"{count} layers keep low-rank copies; with exact inputs the gain is {before / UNITS:.1f}"
    head = f"Chosen by tinytrain-compile --update auto --activations auto; gains: {gains.said}."
    entries = entries_of_plan(graph, candidate.update)
    text = scheme_text(entries, head)
    update = UpdateChoice(gains.said, gain / UNITS, every / UNITS, (*known, *rounds), text, (why,))
    attempts = (*exact.choice.attempts[:1], *candidate.choice.attempts[-1:])
    choice = replace(candidate.choice, update=update, attempts=attempts)
    return replace(candidate, update=replace(candidate.update, label=SCHEME), automatic=True, choice=choice)
