"""Table of the functions that import ONNX operators: one line for each family."""

from __future__ import annotations

from tinytrain_compile.frontend.operators import (
    choice,
    elementwise,
    loss,
    normalisation,
    products,
    recurrent,
    reductions,
    resize,
    shape,
    slicing,
    windows,
)

HANDLERS = {
    **choice.HANDLERS,
    **elementwise.HANDLERS,
    **loss.HANDLERS,
    **normalisation.HANDLERS,
    **products.HANDLERS,
    **recurrent.HANDLERS,
    **reductions.HANDLERS,
    **resize.HANDLERS,
    **shape.HANDLERS,
    **slicing.HANDLERS,
    **windows.HANDLERS,
}
