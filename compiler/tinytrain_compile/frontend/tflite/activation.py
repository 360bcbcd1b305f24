"""Fused activations: what an operator does to its sum before it is stored."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.file import Operator
from tinytrain_compile.frontend.tflite.translate import INTEGERS, Translation

CLAMPS = {1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""RELU, RELU_N1_TO_1, RELU6 by their numbers in the schema -> bounds."""
_NAMES = {4: "TANH", 5: "SIGN_BIT"}
_FUSED = "FusedActivationFunction"


def finish(to: Translation, operator: Operator, x: str, first: bool = False, shape: bool = False) -> None:
    """Note the sum x of an operator as its result, behind the fused activation. first, shape: as for `result`."""
    which, k = operator.number(_FUSED), operator.outputs[0]
    if which not in CLAMPS and which != 0:
        raise Refused("fused activation", f"it is {_NAMES.get(which, which)}", "RELU, RELU6 or RELU_N1_TO_1")
    if _acts(to, operator):
        x = clamped(to, x, to.made(k), *CLAMPS[which])
    to.result(k, x, first, shape)


def sum_name(to: Translation, operator: Operator) -> str:
    """Return the name of what an operator makes in front of its fused activation."""
    return to.made(operator.outputs[0], "sum" if _acts(to, operator) else "")


def clamped(to: Translation, x: str, output: str, low: float, high: float) -> str:
    """Add a Relu or Clip; returns its result."""
    if (low, high) == CLAMPS[1]:
        return to.node("Relu", (x,), output)
    bounds = [to.table(output, what, bound, np.float32) for what, bound in (("low", low), ("high", high))]
    return to.node("Clip", (x, *bounds), output)


def _acts(to: Translation, operator: Operator) -> bool:
    """Tell whether an operator clamps more than the type of its result does.

    Converters let the range of a RELU's result begin at 0, and that of a RELU6 end at 6: storing it clamps.
    """
    which = operator.number(_FUSED)
    if which not in CLAMPS:
        return False
    k = operator.outputs[0]
    scales = to.scales(k)
    if scales is None:
        return True
    low, high = ((q - int(scales.zero[0])) * float(scales.scale[0]) for q in INTEGERS[to.tensor(k).kind])
    asked = CLAMPS[which]
    return low < asked[0] or high > asked[1]
