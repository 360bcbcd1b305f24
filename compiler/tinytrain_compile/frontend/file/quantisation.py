"""What a quantised model says about its tensors: plain data, made by `quantised.py`, read by `annotate.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.imported import StoredTensor
from tinytrain_compile.ir.types import Quant

QUANTISED_OPS = ("DequantizeLinear", "QuantizeLinear")
"""Operators that leave the model before it is imported."""
MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

INT32_LOW, INT32_HIGH = -(2**31), 2**31 - 1

Refusal = tuple[str, str, str]
"""attribute, reason, nearest: what makes an Unsupported."""


@dataclass(frozen=True, eq=False)
class QuantisedConstant:
    """A weight, bias or table that the model stores as integers: real = (q - zero) * scale.

    scale: one element, or one per channel; is_bias: int32 instead of int8 (uint8 counts as int8, zero point shifted).
    stored: the integers of the file; root: the initializer that they are, or are moved from. leaves_int8: whether
    these integers, less their zero point, do not fit int8.
    """

    scale: NDArray[np.float64]
    zero: int
    is_bias: bool
    stored: StoredTensor
    root: str
    leaves_int8: bool = False


def _no_tensors() -> Mapping[str, Quant]:
    return {}


def _no_aliases() -> Mapping[str, str]:
    return {}


def _no_constants() -> Mapping[str, QuantisedConstant]:
    return {}


def _no_places() -> Mapping[str, tuple[str, int]]:
    return {}


def _no_refusals() -> Mapping[str, Refusal]:
    return {}


@dataclass(frozen=True, eq=False)
class Quantisation:
    """All that is left of a model's quantisation once the model computes real numbers.

    found: whether the model has any of the QUANTISED_OPS.
    tensors: ONNX tensor -> how it is stored; constants: the same for initializers (now float32).
    aliases: outputs of Q and DQ nodes -> the real tensor that stands for them.
    refused: node name -> why it has no real counterpart (such nodes stay in the model, to be reported).
    places: real operand of a QLinear operator -> the output of the node of the file that reads its integers, and where.
    """

    found: bool = False
    tensors: Mapping[str, Quant] = field(default_factory=_no_tensors)
    constants: Mapping[str, QuantisedConstant] = field(default_factory=_no_constants)
    refused: Mapping[str, Refusal] = field(default_factory=_no_refusals)
    notes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=_no_aliases)
    places: Mapping[str, tuple[str, int]] = field(default_factory=_no_places)
