"""What low-rank activations come to: the arena of the same update with inputs that are kept exactly."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.candidates.planner import Candidate, Planner


def activation_notes(planner: Planner, candidate: Candidate) -> tuple[str, ...]:
    """A note where low-rank copies were asked for: copies that are smaller need not make the arena smaller."""
    asked = planner.options.activations != "exact"
    if not candidate.train.low_rank:
        what = "no layer keeps fewer bytes with an error of at most"
        return (
            (f"--activations: {what} {planner.options.rank_error:g}: all keep their inputs exactly",) if asked else ()
        )
    exact = planner.with_options(activations="exact")
    update = replace(candidate.update, activations={})
    plain = exact.planned(update, exact.train(update, candidate.train.micro_batch))
    difference = plain.plan.arena_bytes - candidate.plan.arena_bytes
    verdict = f"{abs(difference):,} B {'more' if difference > 0 else 'less'}" if difference else "as much"
    return (f"with all inputs kept exactly the arena is {plain.plan.arena_bytes:,} B, {verdict}",)
