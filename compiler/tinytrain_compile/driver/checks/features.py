"""Whether a step can be cut where training begins (`--features on`): what the plan has to be for that."""

from __future__ import annotations

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.options.compile_options import CompileOptions


def check_features(train: TrainGraph, plan: MemoryPlan, options: CompileOptions) -> None:
    """E0101 for a plan in several memories, or of several samples a call, which a lock may bring."""
    if options.features == "off":
        return
    what = ""
    if plan.further:
        what = "page moves of the frozen part would be waited for that nothing began"
    elif train.micro_batch > 1:
        what = f"a call takes {train.micro_batch} samples, and features are those of one"
    if what:
        way = "leave out --memory" if plan.further else "leave out --micro-batch"
        raise CompileError("E0101", "--features on", what, f"{way}, or --features")
