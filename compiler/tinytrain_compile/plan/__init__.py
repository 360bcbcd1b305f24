"""Where everything lies and when everything runs: order of nodes, lifetimes, addresses in one arena.

The only importer of ortools. `plan_memory` is the stage; every plan passes `validate_plan` before it is returned.
"""

from tinytrain_compile.plan.explain import live_buffers_at, load_per_step
from tinytrain_compile.plan.lock import Lock, plan_from_lock, read_lock
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.validate import validate_plan

__all__ = [
    "Lock",
    "PlanError",
    "PlanOptions",
    "live_buffers_at",
    "load_per_step",
    "plan_from_lock",
    "plan_memory",
    "read_lock",
    "validate_plan",
]
