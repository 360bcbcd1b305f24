"""Choice of a plan, and the cost of its step by the target's figures (a model): in words and as data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tinytrain_compile.ir.cost import Attempt, LayerReason, PlanChoice, RuleTried
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.layout import Row, bytes_text, printable, row, wrapped

LEAST = "least extra time that fits"
"""The objective without --optimise."""

GOALS = {"memory": "smallest arena", "time": "least time", "energy": "least energy"}


def choice_json(choice: PlanChoice | None) -> dict[str, Any]:
    """Return keys of report.json's `plan`: objective, modelled cost of a step, and what was tried (`ladder`)."""
    if choice is None:
        return {"objective": None, "model": None, "ladder": []}
    cost = choice.cost
    model = {
        "step_us": cost.ps / 1e6,
        "compute_us": cost.compute_ps / 1e6,
        "access_us": cost.access_ps / 1e6,
        "paging_us": cost.paging_ps / 1e6,
        "step_uj": cost.pj / 1e6,
        "limit_us": None if choice.limit_ps is None else choice.limit_ps / 1e6,
    }
    ladder = [
        {"how": attempt.how, "arena_bytes": attempt.arena_bytes, "note": attempt.note} for attempt in choice.attempts
    ]
    return {"objective": choice.objective or "fit", "model": model, "ladder": ladder}


def update_choice_json(choice: PlanChoice | None) -> dict[str, Any] | None:
    """Tell how --update auto has chosen what is trained; None if it had nothing to choose."""
    found = None if choice is None else choice.update
    if found is None:
        return None
    rounds = [
        {"effort": one.effort, "gain": one.gain, "arena_bytes": one.arena_bytes, "fits": one.fits}
        for one in found.rounds
    ]
    return {
        "gains": found.gains,
        "gain": found.gain,
        "best_gain": found.best_gain,
        "proven": found.proven,
        "rounds": rounds,
        "why": list(found.why),
        "layers": [
            {
                "layer": one.layer,
                "way": one.way,
                "gain": one.gain,
                "next_way": one.next_way or None,
                "next_gain": one.more,
                "over_bytes": one.over_bytes,
                "over_us": one.over_ps / 1e6,
            }
            for one in found.layers
        ],
        "held_samples": found.held,
        "rules": [
            {
                "rule": one.rule,
                "parameters": one.parameters,
                "arena_bytes": one.arena_bytes,
                "loss": one.loss if math.isfinite(one.loss) else None,
                "accuracy": one.accuracy,
                "learning_rate": one.rate,
                "finalist": one.finalist,
            }
            for one in found.tried
        ],
    }


def update_choice_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield what --update auto gains, how sure that is, which limit binds, and what more room would buy."""
    found = None if summary.choice is None else summary.choice.update
    if found is None:
        return
    yield row("gain", gain_pieces(summary), width, " ")
    for index, text in enumerate(rule_texts(summary)):
        yield row("" if index else "rules", [text], width)
    for text in found.why:
        yield row("", printable(text).split(" "), width, " ")


def gain_pieces(summary: Summary) -> list[str]:
    """Tell what --update auto gains, how sure that is, and what was planned for it; nothing without a choice."""
    found = None if summary.choice is None else summary.choice.update
    if found is None:
        return []
    sure = "PROVEN BEST" if found.proven else f"no scheme that fits has more than {found.best_gain:.1f}"
    quick = sum(one.effort == "quick" for one in found.rounds)
    plans = f"{quick} quick and {len(found.rounds) - quick} full plans"
    return [f"{found.gain:.1f} ({printable(found.gains)});", f"{sure};", plans]


def reason_lines(summary: Summary, width: int) -> list[str]:
    """Tell why each layer is trained as it is, for -v."""
    found = None if summary.choice is None else summary.choice.update
    if found is None:
        return []
    return [line for one in found.layers for line in wrapped("why        ", reason_text(one), width)]


def reason_text(one: LayerReason) -> str:
    """Tell why a layer is trained so: `fc: in/2, gain 24.0; all would gain 9.9 more, and be 1,152 B above --arena`."""
    taken = f"{printable(one.layer)}: {one.way}, gain {one.gain:.1f}"
    if not one.next_way:
        return taken
    more = f"{taken}; {one.next_way} would gain {one.more:.1f} more"
    over = [f"{bytes_text(one.over_bytes)} above --arena"] if one.over_bytes else []
    over += [f"{milliseconds(one.over_ps)} above --max-step-time"] if one.over_ps else []
    if over:
        return f"{more}, and be {' and '.join(over)}"
    return f"{more}; the model sees no limit against it: plans did, or what stands in its place gains more"


def rule_texts(summary: Summary) -> list[str]:
    """List each rule that was compared on samples, and how well it did."""
    found = None if summary.choice is None else summary.choice.update
    return [] if found is None else [_tried(one) for one in found.tried]


def _tried(one: RuleTried) -> str:
    """Tell in a line how well a rule's scheme did on held-back samples; short: it was not tried for longer."""
    what = [] if one.rate is None else [f"{one.parameters:,} trained"]
    right = [] if one.accuracy is None else [f"{one.accuracy:.1%} right"]
    short = [] if one.finalist or one.rate is None else ["short"]
    return f"{printable(one.rule)}: {', '.join([*what, f'loss {one.loss:.3f}', *right, *short])}"


def cost_pieces(summary: Summary) -> list[str]:
    """Return time and energy of a step by the target's figures, called a model; nothing if no plan was priced."""
    choice = summary.choice
    if choice is None or not choice.cost.ps:
        return []
    cost = choice.cost
    limit = "" if choice.limit_ps is None else f" of {milliseconds(choice.limit_ps)}"
    parts = "" if cost.compute_ps == cost.ps else f" ({cost_parts(choice)})"
    what = "an inference" if summary.train.reads_state_of is not None else "a step"
    goal = [GOALS[choice.objective]] if choice.objective else [LEAST] if summary.plan.further else []
    model = "by the target's figures, not measured"
    return [f"{milliseconds(cost.ps)}{limit}{parts}", f"{cost.pj / 1e9:.3g} mJ {what}", model, *goal]


def tried_pieces(summary: Summary) -> list[str]:
    """List what was tried to make the plan fit, if it was more than one way."""
    choice = summary.choice
    if choice is None or len(choice.attempts) <= 1:
        return []
    tried = [_attempt(attempt) for attempt in choice.attempts]
    return [*(f"{one};" for one in tried[:-1]), tried[-1]]


def cost_parts(choice: PlanChoice) -> str:
    """Split the time of a step: `compute 1.2 ms, paging 0.3 ms`."""
    cost = choice.cost
    parts = {"compute": cost.compute_ps, "access": cost.access_ps, "paging": cost.paging_ps}
    return ", ".join(f"{name} {milliseconds(ps)}" for name, ps in parts.items() if ps) or "nothing"


def _attempt(attempt: Attempt) -> str:
    size = "nothing found" if attempt.arena_bytes is None else bytes_text(attempt.arena_bytes)
    return f"{printable(attempt.how)} -> {size}"


def milliseconds(ps: int) -> str:
    """Write a time as a person reads it."""
    return f"{ps / 1e9:.4g} ms"
