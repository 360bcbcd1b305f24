"""The update that a command trains and with how many samples in a step: `choose` is the main decision.

`--update auto` takes what gains most and keeps to --arena and --max-step-time (`best.py`), or the deepest last:N that
does. `--micro-batch auto` then takes as many samples in a step as fit, before anything else is given up: what training
computes is the same for all sizes, int8 to the byte, float32 but for the order of sums.
"""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.search.best import MOST_LAYERS, best_choice
from tinytrain_compile.driver.search.rounds import near_limits
from tinytrain_compile.ir.cost import Attempt
from tinytrain_compile.ir.stages import UpdatePlan
from tinytrain_compile.sparse import PRIOR, GainTable, read_gains, resolve_update
from tinytrain_compile.training import SamplesMixError


def search_update(planner: Planner, layer_count: int, gains: GainTable | None = None, proof: bool = True) -> Candidate:
    """Find what gains most and keeps to the limits, for --update auto; the head alone if nothing does.

    gains: without them those of --gains, or the prior. proof: whether to ask if anything better fits.
    """
    if gains is None:
        gains = PRIOR if planner.options.gains is None else read_gains(planner.options.gains, planner.model.graph)
    every = f"last:{layer_count}"
    planner.compiled = 0
    limits = planner.options.arena_bytes, planner.options.max_step_ps, planner.flash_limit
    if all(limit is None for limit in limits):
        return replace(planner.exact(every if planner.options.input_lines else "all"), automatic=True)
    if not planner.impossible(every) and near_limits(planner, every, NEAR):
        whole = planner.fitting(every, again=True)
        if whole is not None:  # nothing gains more
            return replace(whole, automatic=True)
    found = best_choice(planner, gains, layer_count, proof)
    if found is None:
        # If flash refused something, the head has least code, and the error says what that needs.
        refused = any(over != 0 for over in planner.flash_lack.values())
        depth, best = (None if refused else deepest(planner, layer_count)) or (1, planner.exact("last:1"))
        return replace(_with_attempts(best, planner.plain(every).plan.arena_bytes, f"last:{depth}"), automatic=True)
    whole_bytes = planner.plain(every).plan.arena_bytes
    best = _with_attempts(found.candidate, whole_bytes, found.candidate.update.label)
    return replace(best, automatic=True, choice=replace(best.choice, update=found.choice))


def _with_attempts(candidate: Candidate, whole_bytes: int, label: str) -> Candidate:
    """Return what all layers need as they are, then what was taken."""
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
        candidate = planner.exact(f"last:{depth}")
        found, depth = (depth, candidate) if planner.keeps(candidate) else None, depth - 1
    return found


def surely_fitting(planner: Planner, layer_count: int) -> int:
    """Return the largest N for which last:N fits with nothing computed twice or moved, by quick plans; 0 if there is
    none.

    For where each full plan is a search of its own: its arena is not larger than that of a quick plan without help.
    """
    for depth in range(layer_count, 0, -1):
        price = planner.unhelped_price(f"last:{depth}")
        if price is not None and planner.meets(price.arena_bytes, 0):
            return depth
    return 0


def _by_bisection(planner: Planner, layer_count: int) -> int:
    """Return a depth whose quick plan meets the limits, 0 if none is found: the deepest, if deeper always needed
    more."""
    low, high = 0, layer_count + 1
    first = high - 1
    while high - low > 1:
        middle, first = first or (low + high) // 2, 0
        price = planner.price(f"last:{middle}")
        low, high = (middle, high) if planner.meets(price.arena_bytes, price.ps) else (low, middle)
    return low


def _deeper(planner: Planner, depth: int, layer_count: int) -> tuple[list[int], list[int]]:
    """Return depths beyond one that fits that need no more than it without help, deepest first; and slightly more, by
    need."""
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


def with_micro_batch(planner: Planner, candidate: Candidate) -> Candidate:
    """Return the same training with as many samples in a step as --arena holds; `candidate` has one.

    It stays at one without --arena, and where the smallest arena is asked for. If less had to be updated, one sample
    did not fit: then larger sizes are only priced, for the whole update.
    """
    o = planner.options
    if o.micro_batch != "auto":
        return candidate
    if o.batch == 1 or o.accumulate != "exact" or o.arena_bytes is None or o.optimise == "memory" or o.remat == "min":
        return candidate
    less = any(attempt.kind == "less" for attempt in candidate.choice.attempts)
    update = resolve_update(planner.model.graph, "all") if less else candidate.update
    if o.activations in ("asi", "subspace"):  # ranks are those of as many samples as a step takes
        update = resolve_update(planner.model.graph, o.update)
    attempts: list[Attempt] = []
    for size in (size for size in range(o.batch, 1, -1) if o.batch % size == 0):
        found, attempt = _priced(planner, update, size, o.arena_bytes)
        attempts.append(attempt)
        if found is not None and not less:
            choice = replace(candidate.choice, cost=found.choice.cost, attempts=tuple(attempts))
            return replace(found, automatic=candidate.automatic, choice=choice)
    return _at_one(candidate, attempts)


def _priced(planner: Planner, update: UpdatePlan, size: int, limit_bytes: int) -> tuple[Candidate | None, Attempt]:
    """Return the candidate with so many samples in a step if it fits, and what was found out about it."""
    how = f"micro-batch {size}"
    try:
        train = planner.train(update, size)
        found = planner.planned(update, train, planner.wish.alone, quick=True)
        if found.plan.lower_bound_bytes <= limit_bytes:  # else no plan of this order fits
            found = planner.planned(update, train, planner.wish.alone)
    except SamplesMixError as problem:
        return None, Attempt("micro-batch", how, None, str(problem))
    arena, time = found.plan.arena_bytes, found.choice.cost.ps
    fits = planner.keeps(found)
    why = "too slow" if not planner.meets(arena, time) else "too much code"
    note = f"{time / size / 1e9:.3g} ms a sample{'' if fits or arena > limit_bytes else f', {why}'}"
    return (found if fits else None), Attempt("micro-batch", how, arena, note)


def _at_one(candidate: Candidate, tried: list[Attempt]) -> Candidate:
    """Return the candidate of one sample, with what was tried before it; why, if not for the memory."""
    first, *rest = candidate.choice.attempts
    named = replace(first, how="micro-batch 1") if first.kind == "asked" else first
    candidate = replace(candidate, choice=replace(candidate.choice, attempts=(*tried, named, *rest)))
    if any(attempt.arena_bytes is not None for attempt in tried):
        return candidate
    graph = candidate.train.graph
    notes = (*graph.notes, f"one sample at a time: {tried[-1].note}")
    return replace(candidate, train=replace(candidate.train, graph=replace(graph, notes=notes)))


def choose(planner: Planner) -> Candidate:
    """Choose what a command trains: the update that was asked for or fits, and the largest micro-batch for it."""
    update = planner.options.update
    if update == "auto":
        return with_micro_batch(planner, search_update(planner, planner.layer_count))
    return with_micro_batch(planner, planner.exact(update))
