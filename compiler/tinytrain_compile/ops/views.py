"""Views that the planner puts in place of Concat and Slice if no byte has to move (`OpDef.placed`)."""

from __future__ import annotations

from tinytrain_compile.ops.base import MOVES_DATA, OPS, NonDifferentiable, Placed, operator
from tinytrain_compile.ops.shape import ConcatAttrs, SliceAttrs

_WHY = NonDifferentiable("parts of a buffer are planned after differentiation")
_CONCAT, _SLICE = OPS["Concat"], OPS["Slice"]
operator(
    "ConcatView",
    "A Concat whose inputs were written where they belong.",
    _CONCAT.infer,
    _CONCAT.reference,
    _WHY,
    ConcatAttrs,
    placed=Placed(True, _CONCAT.placed.starts),
    inputs=("x*",),
    traits=MOVES_DATA,
)
operator(
    "SliceView",
    "A Slice that is a run of bytes of its input, where they lie.",
    _SLICE.infer,
    _SLICE.reference,
    _WHY,
    SliceAttrs,
    placed=Placed(True, _SLICE.placed.starts),
    inputs=("x",),
    traits=MOVES_DATA,
)
