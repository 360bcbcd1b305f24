"""Page moves: a tensor is copied to another memory and back, so that its place in the first one is free meanwhile."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.types import Array, TensorType, Value
from tinytrain_compile.ops.base import MOVES_DATA, NonDifferentiable, Placed, operator


def _infer(inputs: tuple[Value, ...], _attrs: Any) -> tuple[TensorType, ...]:
    (x,) = inputs
    return (x.type,)


def _reference(arrays: tuple[Array, ...], _attrs: Any) -> tuple[Array, ...]:
    (x,) = arrays
    return (x.copy(),)


_WHY = NonDifferentiable("page moves are planned after differentiation")
operator(
    "PageOut",
    "A copy in a further memory (tt_page_out).",
    _infer,
    _reference,
    _WHY,
    placed=Placed(page="out"),
    inputs=("x",),
    traits=MOVES_DATA,
)
operator(
    "PageIn",
    "A copy in the arena of what lies in a further memory (tt_page_in).",
    _infer,
    _reference,
    _WHY,
    placed=Placed(page="in"),
    inputs=("x",),
    traits=MOVES_DATA,
)
