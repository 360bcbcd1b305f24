"""`--micro-batch auto`: the largest micro-batch that fits, before anything else is given up.

One sample needs least memory. Several are taken where --arena has room for them with nothing computed twice and nothing
moved; then a weight is read once for all of them. Every size is priced by a plan of its own. What training computes is
the same for all sizes: int8 to the byte, float32 but for the order of sums.
"""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.ir.cost import Attempt
from tinytrain_compile.ir.stages import UpdatePlan
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import SamplesMixError


def with_micro_batch(planner: Planner, candidate: Candidate) -> Candidate:
    """The same training with as many samples in a step as --arena holds; `candidate` has one.

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
    """The candidate with so many samples in a step if it fits, and what was found out about it."""
    how = f"micro-batch {size}"
    means = replace(planner.means, remat="off", memories=(), objective=None, limit_ps=None)
    try:
        train = planner.train(update, size)
        found = planner.planned(update, train, means, quick=True)
        if found.plan.lower_bound_bytes <= limit_bytes:  # else no plan of this order fits
            found = planner.planned(update, train, means)
    except SamplesMixError as problem:
        return None, Attempt("micro-batch", how, None, str(problem))
    arena, time = found.plan.arena_bytes, found.choice.cost.ps
    slow = ", too slow" if arena <= limit_bytes and not planner.meets(arena, time) else ""
    attempt = Attempt("micro-batch", how, arena, f"{time / size / 1e9:.3g} ms a sample{slow}")
    return (found if planner.meets(arena, time) else None), attempt


def _at_one(candidate: Candidate, tried: list[Attempt]) -> Candidate:
    """The candidate of one sample, with what was tried before it; why, if not for the memory."""
    first, *rest = candidate.choice.attempts
    named = replace(first, how="micro-batch 1") if first.kind == "asked" else first
    candidate = replace(candidate, choice=replace(candidate.choice, attempts=(*tried, named, *rest)))
    if any(attempt.arena_bytes is not None for attempt in tried):
        return candidate
    graph = candidate.train.graph
    notes = (*graph.notes, f"one sample at a time: {tried[-1].note}")
    return replace(candidate, train=replace(candidate.train, graph=replace(graph, notes=notes)))
