"""Memory planning: order of nodes, lifetimes, addresses in one arena.

The only importer of ortools. `plan_graph` (`planner.py`) is the stage, `plan_with_remat` (`remat/stage.py`) the stage
with second runs; `streamed` (`streams/search.py`) computes layers row by row, `spread` (`memories/spread.py`) moves
buffers to further memories, `optimise` chooses among such plans. Every plan passes `validate_plan` (`check/plan.py`).
"""
