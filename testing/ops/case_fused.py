"""Random cases of updates that make their gradient themselves: a case of the gradient, and one of the update on it."""

from __future__ import annotations

import numpy as np

from testing.ops import case_groups, case_linear, case_qupdate, case_subspace
from testing.ops.case import GENERATORS, Case, Rng, generator, make
from testing.ops.random_linear import RANDOM_PRODUCTS
from tinytrain_compile.ops.fused_update import FUSED_UPDATE, INTEGER_UPDATES, PAIRS, FusedUpdateAttrs

__all__ = ["case_groups", "case_linear", "case_qupdate", "case_subspace"]

FEW = 8
"""Cases of an update whose loops are those of another one, of which all gradients are tried."""
THOROUGH = ("SgdUpdate", "MomentumUpdate", "AdamUpdate")
SQUARED = 5
"""Cases of one that adds up squares as well: for that, its loops are those without, or those of Adam; of one of a
low-rank activation, whose loops are those of a dense layer's."""


INTEGER_FORMS = {"QSum": ("QRoundedSum",), "QUpdate": ("QRoundedUpdate", "QRoundedUpdateFine")}
"""Forms of integer updates that have a float32 gradient."""


def _fused(gradient: str, update: str, squares: bool, form: str) -> None:
    gradients, updates = GENERATORS[gradient], GENERATORS[form]
    low_rank, integer = gradient == "SubspaceGradWeight", update in INTEGER_UPDATES
    count = SQUARED if squares or low_rank else max(gradients[1], updates[1]) if update in THOROUGH else FEW

    @generator(gradient + ("Squared" if squares else "") + form, count)
    def _case(rng: Rng, index: int) -> Case:
        draw = gradients[0] if index < count else RANDOM_PRODUCTS.get(gradient, gradients[0])
        of_gradient = draw(rng, (index if count > FEW else 5 * index) % gradients[1])
        of_update = updates[0](rng, index % updates[1])
        shape = of_gradient.node().outputs[0].shape
        whole = of_update.inputs[0].shape  # what is neither updated nor a gradient is a scalar or a pair of numbers
        sizes = {whole: shape} | ({whole[:1]: shape[:1]} if integer else {})  # or of each channel
        operands = [np.resize(a, sizes.get(a.shape, a.shape)) for a in of_update.arrays]
        rows = [np.zeros(shape[:1])] if squares else []
        first, *others = of_gradient.arrays
        attrs = FusedUpdateAttrs(gradient, update, of_gradient.attrs, of_update.attrs, squares)
        operands[attrs.place : attrs.place + 1] = [300 * first if integer else first, *others, *rows]
        images = tuple(attrs.place + i for i, value in enumerate(of_gradient.inputs) if value.layout)
        return make(FUSED_UPDATE.name, tuple(operands), attrs, images=images)


for _gradient, _update, _squares in PAIRS:
    for _form in INTEGER_FORMS.get(_update, (_update,)):
        _fused(_gradient, _update, _squares, _form)
