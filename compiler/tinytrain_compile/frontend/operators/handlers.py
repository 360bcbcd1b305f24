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

FAMILIES = {
    "convolutions and pools": windows,
    "matrix products": products,
    "recurrent layers": recurrent,
    "element by element": elementwise,
    "selections, comparisons, logic and similar": choice,
    "normalisations and softmax": normalisation,
    "reductions": reductions,
    "shapes": shape,
    "parts of tensors": slicing,
    "losses": loss,
}
"""Purpose -> the module that imports the operators for it."""
HANDLERS = {op: handler for family in FAMILIES.values() for op, handler in family.HANDLERS.items()}
