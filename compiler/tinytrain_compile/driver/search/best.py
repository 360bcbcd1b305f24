"""The best choice of --update auto: at how many layers the rounds look, and what is proven at the end.

PROVEN BEST says that no scheme which `auto` may choose gains more and fits, if a command is given that scheme with the
same options. So a scheme counts as too large in two cases only: a bound is above the limits that no plan is below, or
the plan that such a command makes does not keep to them. The plans of the rounds search for less, and prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.search.model import UpdateModel, build_update_model
from tinytrain_compile.driver.search.rounds import QUICK_ROUNDS, Found, Search
from tinytrain_compile.sparse import GainTable, LayerWays, layer_ways

DEPTHS, DEPTH_PARTS, SHALLOW = (64, 48, 32, 24, 16, 8, 4, 2, 1), 64, 4
"""How many of the layers that may be trained are looked at, from the back, in DEPTH_PARTS of them; one of SHALLOW and
more only if nothing else is found that fits. A model knows the forward pass of all of its layers trained; of fewer,
other layers are the narrow place (ADR 31)."""
HALVINGS = 6
"""How often the layers that are looked at are halved once more, while no full plan fits: from MOST_LAYERS to three."""
FREE = (8, 4, 2)
"""Before that, one after the other: so large a part of --arena stays free in what is proposed (ADR 31)."""
SCOUT_ROUNDS = 2
"""Proposals for each of DEPTHS that get a quick plan, before the best goes on: one, and one that it has corrected."""
PROOF_WORK, PROOF_TURNS, LEAST_PROOF, SEARCHES = 5_000_000, 300, 32, 16
"""What ruling out everything better one by one may cost, a full plan priced at the cube of its nodes, and at SEARCHES
times that if each plan is a search (--optimise, --remat min, further memories): 116 plans of a digits step of 35 nodes,
none of MCUNet's 361. How many may be looked at; for how many there must be room, or it is not begun."""
FEW_SCHEMES, FEW_TIMES = 6**4, 8
"""As many schemes as four layers of six ways have are ruled out to the end, as far as so many times that goes."""
MOST_LAYERS = 200
"""Layers that are looked at, from the back: a model of all of them grows with the square of their number (ADR 31)."""


def best_choice(planner: Planner, gains: GainTable, layer_count: int, proof: bool = True) -> Found | None:
    """Find the best scheme that keeps to the limits, planned in full, or None. proof: as in search_update."""
    layer_count = min(layer_count, MOST_LAYERS)
    every = layer_ways(planner.model.graph, gains)
    search = _looked_at(planner, every, gains, layer_count)
    search.run()
    for part in FREE:
        if search.candidate is not None or planner.options.arena_bytes is None:
            break
        lost = planner.options.arena_bytes // part
        search = replace(_with_model(search, search.model, QUICK_ROUNDS), bytes_left_free=lost)
        search.run()
    for _ in range(HALVINGS):
        if search.candidate is not None or search.model.depth == 1:
            break
        ways = _last(search.whole.layers, max(1, search.model.depth // 2))
        search = _with_model(search, build_update_model(planner, ways), QUICK_ROUNDS)
        search.run()
    search.suffixes(layer_count)
    prove(search, proof and search.most_nodes is None and not planner.may_shrink)
    return None if search.candidate is None else search.chosen()


def prove(search: Search, whole: bool) -> None:
    """Find what nothing that fits can gain more than; on small graphs, until that is found. whole: else one look.

    A network in which nothing was found to fit gets the same: the model of the rounds may let none of it fit. One look
    is all if plans are not the last word (Planner.may_shrink), or if flash is a limit whose bytes are estimated.
    """
    planner = search.planner
    few = math.prod(len(item.ways) for item in search.whole.layers) <= FEW_SCHEMES
    times = FEW_TIMES if few else 1
    work, floor = times * PROOF_WORK, search.floor()
    for _ in range(times * PROOF_TURNS if whole else 1):
        answer = search.propose(floor, search.whole, exact=True)
        search.gain_bound = answer.best_gain
        if answer.selection is None:
            return
        if not search.builds(answer.selection):
            continue
        spec = search.spec(answer.selection)
        price = len(planner.training(spec).graph.nodes) ** 3 * (SEARCHES if planner.wish.searches else 1)
        if price * LEAST_PROOF > PROOF_WORK or work < price:
            return
        if planner.impossible(spec):
            search.surely_too_large.add(answer.selection)
            continue
        work -= price
        if not search.plan_as_command(answer.selection):
            return


def _looked_at(planner: Planner, every: tuple[LayerWays, ...], gains: GainTable, layer_count: int) -> Search:
    """Return the search among as many layers, from the back, as the best of a few quick plans says.

    What a model knows of the forward pass is what one plan does that trains all of its layers. Where fewer are trained,
    less is kept, streams are longer, and other layers are the narrow place: so that is a model of its own.
    """
    depths = dict.fromkeys(max(1, layer_count * part // DEPTH_PARTS) for part in DEPTHS)
    whole = build_update_model(planner, _last(every, layer_count))
    unlooked = every[len(every) - planner.layer_count : len(every) - layer_count]
    beyond = sum(max(way.gain for way in one.ways) for one in unlooked)
    found, first = list[Search](), Search(planner, gains, whole, whole, beyond)
    for depth in depths:
        if depth * SHALLOW < layer_count and any(first.surely_fits.values()):
            break  # few layers, and something fits
        model = whole if depth == layer_count else build_update_model(planner, _last(every, depth))
        found.append(_with_model(first, model, SCOUT_ROUNDS))
        known = set(first.surely_fits)
        found[-1].plan_quickly()
        found[-1].quick_plans_left = QUICK_ROUNDS if known != set(first.surely_fits) else 0
    able = [search for search in found if search.quick_plans_left] or found[:1]
    return replace(able[-1], quick_plans_left=QUICK_ROUNDS)  # each one has proposed what gains more than all before


def _with_model(search: Search, model: UpdateModel, rounds: int) -> Search:
    """Return the same search, which goes on with what was planned so far, by a model that no plan has corrected yet."""
    return replace(
        search, model=model, bytes_above_guide=(0, 0), ps_above_guide=0, bytes_left_free=0, quick_plans_left=rounds
    )


def _last(ways: Sequence[LayerWays], depth: int) -> tuple[LayerWays, ...]:
    """Return the same, with all but the last `depth` layers frozen."""
    first = len(ways) - depth
    return tuple(replace(one, ways=one.ways[:1]) if i < first else one for i, one in enumerate(ways))
