"""--pareto: what --update auto would train in smaller and larger arenas, by the plans that it would make."""

from __future__ import annotations

from collections.abc import Callable

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.search.choose import choose
from tinytrain_compile.driver.summary import layer_updates
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import ParetoPoint
from tinytrain_compile.sparse import PRIOR, UNITS, GainTable, gain_of_plan, read_gains, resolve_update

POINTS = 8
"""Arenas that are tried."""
GRANULE = 64
"""Bytes to whose multiples those between the smallest and the largest are rounded up."""


def arenas(least: int, most: int, count: int = POINTS) -> list[int]:
    """Return sizes in bytes from one to the other, each the same factor larger than the one before, as far as they
    differ."""
    if most <= least:
        return [least]
    ratio = (most / least) ** (1 / (count - 1))
    between = (round(least * ratio**index) for index in range(1, count - 1))
    sizes = [least, *(-(-size // GRANULE) * GRANULE for size in between), most]
    return sorted({size for size in sizes if least <= size <= most})


def pareto(planner: Planner, progress: Callable[[int, int], None]) -> tuple[ParetoPoint, ...]:
    """Return one point for each arena, from what the head alone needs up to what all layers need; progress: done, of
    how many.

    An arena in which no more is gained than in a smaller one has no point, nor one in which nothing fits.
    """
    gains = PRIOR if planner.options.gains is None else read_gains(planner.options.gains, planner.model.graph)
    free = planner.with_options(arena_bytes=None, update="auto")
    ends = [choose(free.with_options(update=update)).plan.arena_bytes for update in ("head", "all")]
    sizes, found = arenas(*sorted(ends)), list[ParetoPoint]()
    for done, size in enumerate(sizes):
        progress(done, len(sizes))
        smaller = planner.with_options(arena_bytes=size)
        try:
            point = point_with(smaller, choose(smaller), gains)
        except CompileError:
            continue
        if point is not None and all(point.gain > other.gain for other in found):
            found.append(point)
    return tuple(found)


def point_with(planner: Planner, candidate: Candidate, gains: GainTable) -> ParetoPoint | None:
    """Return a candidate as a point; None if it does not keep to the limits."""
    if not planner.meets(candidate.plan.arena_bytes, candidate.choice.cost.ps):
        return None
    gain = gain_of_plan(planner.model.graph, candidate.update, gains) / UNITS
    choice, best = candidate.choice.update, gain
    if choice is not None:
        best = max(gain, choice.best_gain)
    elif any(attempt.kind == "less" for attempt in candidate.choice.attempts):  # not all layers, and nothing is proven
        best = gain_of_plan(planner.model.graph, resolve_update(planner.model.graph, "all"), gains) / UNITS
    layers = layer_updates(planner.model.graph, candidate.update)
    trained = [index for index, layer in enumerate(layers) if layer.bias or layer.weight]
    return ParetoPoint(
        planner.options.arena_bytes or 0,
        candidate.plan.arena_bytes,
        candidate.choice.cost.ps,
        gain,
        best,
        candidate.label,
        len(trained),
        sum(layer.elements for layer in layers),
        len(layers) - trained[0] if trained else 0,
    )
