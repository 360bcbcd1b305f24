"""Random cases of updates that make their gradient themselves: a case of the gradient, and one of the update on it."""

from __future__ import annotations

import numpy as np

from testing.ops import case_groups, case_linear, case_qupdate, case_subspace
from testing.ops.case import GENERATORS, Case, Rng, generator, make
from tinytrain_compile.ops.fused_update import INTEGER_UPDATES, PAIRS, FusedUpdateAttrs, Pair

__all__ = ["case_groups", "case_linear", "case_qupdate", "case_subspace"]

FEW = 8
"""Cases of an update whose loops are those of another one, of which all gradients are tried."""
THOROUGH = ("SgdUpdate", "MomentumUpdate", "AdamUpdate")
SQUARED = 5
"""Cases of one that adds up squares as well: for that, its loops are those without, or those of Adam; of one of a
low-rank activation, whose loops are those of a dense layer's."""


INTEGER_FORMS = {"QSum": ("QRoundedSum",), "QUpdate": ("QRoundedUpdate", "QRoundedUpdateFine")}
"""Forms of integer updates that have a float32 gradient."""


def _fused(pair: Pair, form: str) -> None:
    gradients, updates = GENERATORS[pair.gradient.name], GENERATORS[form]
    low_rank, integer = pair.gradient.name == "SubspaceGradWeight", pair.update in INTEGER_UPDATES
    count = (
        SQUARED if pair.squares or low_rank else max(gradients[1], updates[1]) if pair.update.name in THOROUGH else FEW
    )

    @generator(pair.name.removesuffix(pair.update.name) + form, count)
    def _case(rng: Rng, index: int) -> Case:
        of_gradient = gradients[0](rng, (index if count > FEW else 5 * index) % gradients[1])
        of_update = updates[0](rng, index % updates[1])
        shape = of_gradient.node().outputs[0].shape
        whole = of_update.inputs[0].shape  # what is neither updated nor a gradient is a scalar or a pair of numbers
        sizes = {whole: shape} | ({whole[:1]: shape[:1]} if integer else {})  # or of each channel
        operands = [np.resize(a, sizes.get(a.shape, a.shape)) for a in of_update.arrays]
        rows = [np.zeros(shape[:1]) for _ in pair.rows]
        first, *others = of_gradient.arrays
        operands[pair.place : pair.place + 1] = [300 * first if integer else first, *others, *rows]
        images = tuple(pair.place + i for i, value in enumerate(of_gradient.inputs) if value.layout)
        return make(pair.name, tuple(operands), FusedUpdateAttrs(of_gradient.attrs, of_update.attrs), images=images)


for _pair in PAIRS.values():
    for _form in INTEGER_FORMS.get(_pair.update.name, (_pair.update.name,)):
        _fused(_pair, _form)
