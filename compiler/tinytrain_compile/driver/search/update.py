"""The update that gains most and keeps to --arena and --max-step-time (--update auto); the deepest last:N that does."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.driver.search.best import MOST_LAYERS, best_choice
from tinytrain_compile.driver.search.flash import FlashLimit, flash_limit
from tinytrain_compile.driver.search.rounds import near_limits
from tinytrain_compile.ir.cost import Attempt
from tinytrain_compile.sparse import PRIOR, GainTable, read_gains


def search_update(planner: Planner, layer_count: int, gains: GainTable | None = None, proof: bool = True) -> Candidate:
    """Find what gains most and keeps to the limits, for --update auto; the head alone if nothing does.

    gains: without them those of --gains, or the prior. proof: whether to ask if anything better fits.
    """
    if gains is None:
        gains = PRIOR if planner.options.gains is None else read_gains(planner.options.gains, planner.model.graph)
    every = f"last:{layer_count}"
    flash = flash_limit(planner)
    limits = planner.options.arena_bytes, planner.options.max_step_ps, flash.budget_bytes
    if all(limit is None for limit in limits):
        return replace(planner.exact(every if planner.options.input_lines else "all"), automatic=True)
    whole = _everything(planner, every, flash)
    if whole is not None:
        return replace(whole, automatic=True)
    found = best_choice(planner, gains, layer_count, proof, flash=flash)
    if found is None:
        # Where flash refused everything, the head has least code, and the error says what that needs.
        depth, best = (None if flash.measured else deepest(planner, layer_count)) or (1, planner.exact("last:1"))
        return replace(_with_attempts(best, planner.plain(every).plan.arena_bytes, f"last:{depth}"), automatic=True)
    whole_bytes = planner.plain(every).plan.arena_bytes
    best = _with_attempts(found.candidate, whole_bytes, found.candidate.update.label)
    return replace(best, automatic=True, choice=replace(best.choice, update=found.choice))


def _everything(planner: Planner, every: str, flash: FlashLimit) -> Candidate | None:
    """All layers, if they keep to the limits: nothing gains more. Priced quickly first."""
    if planner.impossible(every):
        return None
    if flash.over(flash.unplanned(every)) or not near_limits(planner, every, NEAR):
        return None
    found = planner.fitting(every, again=True)
    return None if flash.over(found) else found


def _with_attempts(candidate: Candidate, whole_bytes: int, label: str) -> Candidate:
    """What all layers need as they are, then what was taken."""
    note = f"{candidate.choice.cost.ps / 1e9:.3g} ms a step"
    attempts = (
        Attempt("asked", "all layers", whole_bytes),
        Attempt("less", f"--update {label}", candidate.plan.arena_bytes, note),
    )
    return replace(candidate, choice=replace(candidate.choice, attempts=attempts))


NEAR, NEAR_TRIES, LIKELY_TRIES = 1.2, 4, 8
"""Depths beyond what quick plans find that are planned with full effort: up to NEAR times what is known to fit, and how
many of these; how many of those that need no more than that."""


def deepest(planner: Planner, layer_count: int) -> tuple[int, Candidate] | None:
    """Find the largest N, of MOST_LAYERS at most, whose full plan of last:N meets the limits; return both, or None.

    Quick plans are bisected first. But a deeper update may need less (what is kept depends on what is trained), so
    every deeper one is planned once more without help, which is cheap, and those that need little more than what fits
    get a full plan, the deepest first. So: log2 N quick plans with help, N without, and LIKELY_TRIES + NEAR_TRIES + 1
    full ones (one more for each depth whose full plan needs more than its quick one, as second runs may).
    """
    layer_count, found = min(layer_count, MOST_LAYERS), None
    depth = _by_bisection(planner, layer_count)
    likely, near = _deeper(planner, depth, layer_count)
    for tries in (likely[:LIKELY_TRIES], near[:NEAR_TRIES]):
        for deeper in tries:
            if found is None or deeper > found[0]:
                candidate = planner.fitting(f"last:{deeper}")
                found = found if candidate is None else (deeper, candidate)
    while found is None and depth > 0:
        found, depth = _full(planner, depth), depth - 1
    return found


def surely_fitting(planner: Planner, layer_count: int) -> int:
    """The largest N for which last:N fits with nothing computed twice or moved, by quick plans; 0 if there is none.

    For where each full plan is a search of its own: its arena is not larger than that of a quick plan without help.
    """
    limit = planner.options.arena_bytes
    for depth in range(layer_count, 0, -1):
        price = planner.unhelped_price(f"last:{depth}")
        if price is not None and (limit is None or price.arena_bytes <= limit):
            return depth
    return 0


def _full(planner: Planner, depth: int) -> tuple[int, Candidate] | None:
    candidate = planner.exact(f"last:{depth}")
    return (depth, candidate) if planner.meets(candidate.plan.arena_bytes, candidate.choice.cost.ps) else None


def _by_bisection(planner: Planner, layer_count: int) -> int:
    """A depth whose quick plan meets the limits, 0 if none is found: the deepest, if deeper always needed more."""
    low, high = 0, layer_count + 1
    first = high - 1
    while high - low > 1:
        middle, first = first or (low + high) // 2, 0
        price = planner.price(f"last:{middle}")
        low, high = (middle, high) if planner.meets(price.arena_bytes, price.ps) else (low, middle)
    return low


def _deeper(planner: Planner, depth: int, layer_count: int) -> tuple[list[int], list[int]]:
    """Depths beyond one that fits that need no more than it without help, deepest first; and slightly more, by need."""
    o = planner.options
    known = planner.unhelped_price(f"last:{depth}") if 0 < depth < layer_count else None
    room = max(o.arena_bytes or 0, known.arena_bytes if known is not None else 0)
    likely, near = list[int](), list[tuple[int, int]]()
    for deeper in range(layer_count, depth, -1):
        price = planner.unhelped_price(f"last:{deeper}")
        if price is None or (o.max_step_ps is not None and price.ps > o.max_step_ps):
            continue
        if o.arena_bytes is None or price.arena_bytes <= room:
            likely.append(deeper)
        elif price.arena_bytes <= NEAR * room:
            near.append((price.arena_bytes, deeper))
    return likely, [deeper for _, deeper in sorted(near)]
