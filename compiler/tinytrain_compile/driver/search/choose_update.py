"""The main decision: which update a command trains, `--update auto` or not, and with which micro-batch."""

from __future__ import annotations

from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.driver.search.micro_batch import with_micro_batch
from tinytrain_compile.driver.search.update import search_update


def choose(planner: Planner) -> Candidate:
    """Choose what a command trains: the update that was asked for or fits, and the largest micro-batch for it."""
    update = planner.options.update
    if update == "auto":
        return with_micro_batch(planner, search_update(planner, planner.layer_count))
    return with_micro_batch(planner, planner.exact(update))
