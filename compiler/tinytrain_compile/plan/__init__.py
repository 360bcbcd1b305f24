"""Where everything lies and when everything runs: order of nodes, lifetimes, addresses in one arena.

The only importer of ortools. `plan_memory` is the stage, `plan_with_remat` the stage with rematerialisation, `spread`
moves buffers to further memories, `optimise` chooses among such plans; every plan passes `validate_plan` before it is
returned.
"""

from tinytrain_compile.plan.check.paging import validate_paging
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.check.remat import validate_remat
from tinytrain_compile.plan.check.streams import validate_streams
from tinytrain_compile.plan.explain import live_buffers_at, load_per_step
from tinytrain_compile.plan.lock import Lock, plan_from_lock, read_lock
from tinytrain_compile.plan.memories.pages import Memory
from tinytrain_compile.plan.memories.spread import spread
from tinytrain_compile.plan.model import MemoryModel, build_model
from tinytrain_compile.plan.optimise import Goal, optimise
from tinytrain_compile.plan.options import PlanError, PlanOptions, RematOptions
from tinytrain_compile.plan.planned import Planned, plan_graph, streaming
from tinytrain_compile.plan.planner import arena_bound, node_needs, plan_memory
from tinytrain_compile.plan.prepared import choose_prepared, prepared_as_locked, with_prepared
from tinytrain_compile.plan.price import CoreModel, node_ps, step_cost
from tinytrain_compile.plan.remat.stage import plan_with_remat, share_of
from tinytrain_compile.plan.selection import Answer, Event, Row, Selection, select
from tinytrain_compile.plan.slices import SlicedPlan, sliced, step_pieces
from tinytrain_compile.plan.streams.again import streamed_again
from tinytrain_compile.plan.streams.rewrite import with_lines, with_streams, without_lines, without_streams
from tinytrain_compile.plan.streams.search import bound_with_streams, may_stream, streamed

__all__ = [
    "Answer",
    "CoreModel",
    "Event",
    "Goal",
    "Lock",
    "Memory",
    "MemoryModel",
    "PlanError",
    "PlanOptions",
    "Planned",
    "RematOptions",
    "Row",
    "Selection",
    "SlicedPlan",
    "arena_bound",
    "bound_with_streams",
    "build_model",
    "choose_prepared",
    "live_buffers_at",
    "load_per_step",
    "may_stream",
    "node_needs",
    "node_ps",
    "optimise",
    "plan_from_lock",
    "plan_graph",
    "plan_memory",
    "plan_with_remat",
    "prepared_as_locked",
    "read_lock",
    "select",
    "share_of",
    "sliced",
    "spread",
    "step_cost",
    "step_pieces",
    "streamed",
    "streamed_again",
    "streaming",
    "validate_paging",
    "validate_plan",
    "validate_remat",
    "validate_streams",
    "with_lines",
    "with_prepared",
    "with_streams",
    "without_lines",
    "without_streams",
]
