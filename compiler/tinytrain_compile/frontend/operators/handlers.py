"""Table of the functions that import ONNX operators, by family."""

from __future__ import annotations

from tinytrain_compile.frontend.operators import (
    choice,
    elementwise,
    loss,
    normalisation,
    products,
    recurrent,
    reductions,
    shape,
    slicing,
    windows,
)

_FAMILIES = (choice, elementwise, loss, normalisation, products, recurrent, reductions, shape, slicing, windows)
HANDLERS = {op: handler for family in _FAMILIES for op, handler in family.HANDLERS.items()}
