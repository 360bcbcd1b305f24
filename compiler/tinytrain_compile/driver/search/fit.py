"""Whether what was planned keeps to --arena and --max-step-time: an error with ways out where it does not."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.candidates.inference_only import check_room
from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.driver.search.board_ram import board_ways
from tinytrain_compile.driver.search.suggestions import arena_is_there, faster, suggestions
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.report.choice import milliseconds
from tinytrain_compile.report.ways_out import does_not_fit_text, too_slow_text


def check_fit(summary: Summary, planner: Planner, candidate: Candidate, asked: CompileOptions) -> None:
    """E0401, E0402: with ways out below them, priced. asked: the options without what a board offers."""
    limit, needed = planner.options.arena_bytes, candidate.plan.arena_bytes
    if planner.options.inference_only:
        check_room(candidate, planner.options, does_not_fit_text(summary))
        return
    if limit is None or needed <= limit:
        _check_time(summary, planner, candidate)
        return
    ways = suggestions(planner, candidate)
    if not arena_is_there(planner, needed):
        ways = (*ways, *board_ways(planner, candidate, asked))
    summary = replace(summary, suggestions=ways)
    fitting = [way.options for way in ways if way.arena_bytes <= limit]
    larger = next((way.options for way in ways if way.sets_arena), "")
    if not larger:
        larger = f"--arena {needed}" if arena_is_there(planner, needed) else "a larger board (--list-targets)"
    try_ = f"try {fitting[0]}" if fitting else f"nothing fits into it; try {larger}"
    what = f"training needs {needed} B, the arena is {limit} B (over by {needed - limit} B)"
    raise CompileError("E0401", f"--update {candidate.label}", what, try_, tuple(does_not_fit_text(summary)))


def _check_time(summary: Summary, planner: Planner, candidate: Candidate) -> None:
    longest, needed = planner.options.max_step_ps, candidate.choice.cost.ps
    if longest is None or needed <= longest:
        return
    ways = faster(planner, candidate)
    what = f"a step takes {milliseconds(needed)} by the target's figures, the limit is {milliseconds(longest)}"
    details = too_slow_text(replace(summary, suggestions=ways))
    try_ = f"try {ways[0].options}" if ways else "allow a longer step, or leave other options out"
    raise CompileError("E0402", f"--update {candidate.label}", what, try_, tuple(details))
