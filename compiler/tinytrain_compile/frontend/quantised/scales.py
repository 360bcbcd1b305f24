"""Scales and zero points of quantisation nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.ir.types import Array, Quant

_SYMMETRIC = 'symmetric weights (onnxruntime: quantize with extra_options={"WeightSymmetric": True})'
_INTEGERS: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}


@dataclass(frozen=True, eq=False)
class Scales:
    """scale and zero: one element, or as many as channels; kind: numpy's name of the stored type."""

    scale: NDArray[np.float64]
    zero: NDArray[np.int64]
    kind: str

    def per_tensor(self) -> Quant:
        """Return how an activation is stored: as int8, the zero point of uint8 shifted."""
        if self.scale.size != 1:
            raise Refused("scale", "an activation with a scale per channel", "one scale for the whole tensor")
        if self.kind not in _INTEGERS:
            raise Refused("zero_point", f"activations of {self.kind}", "int8 or uint8")
        return Quant((float(self.scale[0]),), int(self.zero[0]) - (128 if self.kind == "uint8" else 0))

    def along(self, shape: tuple[int, ...], axis: int, node: OnnxNode) -> NDArray[np.float64]:
        """Return the scale in a shape that broadcasts against a constant with channels on this axis."""
        if self.scale.size == 1:
            return self.scale.reshape(())
        if not -len(shape) <= axis < len(shape) or shape[axis] != self.scale.size:
            raise _senseless(node, f"{self.scale.size} scales for axis {axis} of shape {list(shape)}")
        return self.scale.reshape(tuple(-1 if i == axis % len(shape) else 1 for i in range(len(shape))))

    def zeros_along(self, along: Array) -> NDArray[np.int64]:
        """Return the zero points in the shape of the scale that `along` gave."""
        return self.zero.reshape(()) if self.zero.size == 1 else self.zero.reshape(along.shape)

    def quantise(self, data: Array, node: OnnxNode) -> Array:
        """Return a constant as QuantizeLinear stores it."""
        if self.kind not in _INTEGERS:
            raise Refused("zero_point", f"constants of {self.kind}", "int8 or uint8")
        axis = node.integer("axis", 1)
        scale = self.along(data.shape, axis, node).astype(np.float32)
        with np.errstate(over="ignore"):  # saturates below
            rounded = np.rint(data.astype(np.float32) / scale) + self.zeros_along(scale)
        return np.clip(rounded, *_INTEGERS[self.kind]).astype(self.kind)


def read_scales(node: OnnxNode, known: Mapping[str, Array], scale_name: str, zero_name: str, kind: str) -> Scales:
    """Scale and zero point of a quantisation node; `kind` is the stored type where there is no zero point."""
    if node.integer("block_size", 0):
        raise Refused("block_size", "a scale per block", "one scale per tensor or per channel")
    if scale_name not in known or (zero_name and zero_name not in known):
        raise Refused("scale", "it is computed at run time", "a constant scale and zero point")
    given = node.integer("output_dtype", 0) if node.op == "QuantizeLinear" else 0
    if zero_name:
        kind = known[zero_name].dtype.name
    elif given:
        kind = _type_name(given)
    scale = known[scale_name].astype(np.float64)
    if scale.ndim > 1 and scale.size > 1:
        raise Refused("scale", f"scales of shape {list(scale.shape)}", "one scale per tensor or per channel")
    scale = scale.reshape(-1)
    if scale.size == 0 or not bool((np.isfinite(scale) & (scale > 0)).all()):
        raise _senseless(node, "a scale is not above 0")
    if zero_name and known[zero_name].dtype.kind not in "iu":
        raise Refused("zero_point", f"integers of type {kind}", "int8 or uint8")
    zero = known[zero_name].astype(np.int64).reshape(-1) if zero_name else np.zeros(1, np.int64)
    if zero.size not in (1, scale.size):
        raise _senseless(node, f"{zero.size} zero points for {scale.size} scales")
    return Scales(scale, zero, kind)


def as_int8(stored: Array, scales: Scales, zeros: Array, is_weight: bool, tensor: str) -> tuple[Array, int]:
    """Return stored integers as int8 and their zero point: uint8 shifted by 128, a weight by its own, to 0.

    zeros: the zero points, in a shape that broadcasts against the integers. A weight's integers may leave int8: then
    it takes other scales.
    """
    if scales.kind == "int32":
        if np.any(zeros):
            raise Refused("zero_point", f"int32 bias {tensor} with a zero point", "zero point 0")
        return stored.astype(np.int64), 0
    shift = 128 if scales.kind == "uint8" else 0
    if zeros.size == 1 and not is_weight:
        return stored.astype(np.int64) - shift, int(zeros.reshape(())) - shift
    centred = stored.astype(np.int64) - zeros
    low, high = int(centred.min(initial=0)), int(centred.max(initial=0))
    if not is_weight and (low < -128 or high > 127):
        off = sorted(set(zeros.ravel().tolist()))
        what = f"{scales.kind} with zero point {off[0]}" + (f" to {off[-1]}" if len(off) > 1 else "")
        far = f"it reaches {high if high > 127 else low} from there, int8 {127 if high > 127 else -128}"
        raise Refused("zero_point", f"constant {tensor} is {what}: {far}", _SYMMETRIC)
    return centred, 0


def _type_name(number: int) -> str:
    names: Any = TensorProto.DataType
    try:
        return str(helper.tensor_dtype_to_np_dtype(number).name)
    except KeyError:
        return str(names.Name(number)).lower() if number in names.values() else f"type {number}"


def _senseless(node: OnnxNode, what: str) -> CompileError:
    return CompileError("E0212", f"node {node.name} ({node.op})", what, "export the model again")
