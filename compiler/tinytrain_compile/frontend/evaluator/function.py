"""The model file as a function of its numbers, in float64: what the derivative check differentiates.

No code of the importer runs here. A file with formats (QDQ, QOperator) is taken as the real numbers that it stands for:
stored weights are dequantised once, and a QuantizeLinear clamps to its range without rounding (it may be all that is
left of a ReLU).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.frontend.evaluator.model import EvaluatorLacksError, FileModel, FileNode
from tinytrain_compile.frontend.evaluator.quantised import is_qlinear, real_operand
from tinytrain_compile.frontend.evaluator.reference import array_in_float64, is_float
from tinytrain_compile.frontend.file.model import changed
from tinytrain_compile.ir.imported import FileNumbers
from tinytrain_compile.ir.types import Array

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}
_HEAVY = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum"))
"""Operators whose cost is their multiply-accumulates."""
_LEEWAY = 0.01
"""By how much a number that is not at the end of its range may lie beyond it: a share of the format's step.

A number at the end to the last place of float32 saturates on one side alone: 2^-24 of 4.0 is 1.6e-4 of a step of
0.0015.
"""


@dataclass(frozen=True, eq=False)
class Rounded:
    """A tensor as a format holds it, or what rounding adds to it. ends: where it is at an end of its range."""

    array: NDArray[np.float64]
    ends: NDArray[np.bool_]

    def fits(self, real: Array) -> bool:
        """Tell whether it can be what becomes of these real numbers (a mask may hold -inf)."""
        same = real.shape == self.array.shape and is_float(real.dtype)
        return same and bool(np.isfinite(real).all() and np.isfinite(self.array).all())


class FileFunction:
    """The file's outputs as a function of any of its tensors.

    constants: initializers in float64. inputs: numpy type of every input as it is fed. work: evaluations so far; one
    of a part of the nodes counts by its share of the multiply-accumulates.
    """

    def __init__(
        self, path: Path, output: str = "", weights: Path | None = None, tensors: Sequence[FileNumbers] = ()
    ) -> None:
        """Read the file. tensors: those whose numbers may change by themselves, whatever makes them in the file.

        EvaluatorLacksError if onnx cannot make it ready to run; CompileError if it cannot be read.
        """
        self._file = FileModel(path, output, weights, wide=True)
        self.inputs, self.outputs = self._file.inputs, self._file.outputs
        own = {one.name: array_in_float64(one.initial) for one in tensors}
        self._nodes = tuple(node for node in _with_readers(self._file.nodes, tensors) if node.outputs[0] not in own)
        read = [node for node in self._nodes if node.op == "DequantizeLinear"]
        self._real_name = {node.inputs[0]: node.outputs[0] for node in read}
        """Stored tensor -> the tensor that DequantizeLinear makes of it."""
        self.constants = {**self._file.constants, **own}
        fed = self.readers(self.inputs)
        self._fed = {name for node in self._nodes for name in node.outputs if name in fed}
        """Tensors that depend on an input. The range of a stored weight is no part of the function: an update that is
        written back gets a scale that holds it."""
        self.work = 0.0
        self._costs: dict[str, float] = {}

    @property
    def nodes(self) -> tuple[FileNode, ...]:
        """Return the nodes that the outputs depend on, in their order."""
        return self._nodes

    def ends_of_output(self) -> tuple[float, float] | None:
        """Return between which numbers the first output lies that are not rounded to an end of its format, if any."""
        made = next((node for node in self._nodes if self.outputs[0] in node.outputs), None)
        if made is None or made.op != "DequantizeLinear" or any(name not in self.constants for name in made.inputs[1:]):
            return None
        scale, zero = (np.ravel(self.constants[name])[0].item() for name in made.inputs[1:3])
        integers = np.iinfo(self.constants[made.inputs[2]].dtype)
        return (integers.min - zero + 0.5) * scale, (integers.max - zero - 0.5) * scale

    def batch_of(self, name: str) -> int:
        """Return how many samples an input takes at once; 1 if the file leaves it open."""
        return self._file.batch_of(name)

    def values(self, feeds: Mapping[str, Array], changed: Mapping[str, Array]) -> dict[str, Array]:
        """Return every tensor of one evaluation. changed: those of `constants` that have other numbers than there."""
        return self.values_near(feeds, changed, {})[0]

    def values_near(
        self, feeds: Mapping[str, Array], changed: Mapping[str, Array], rounded: Mapping[str, Rounded]
    ) -> tuple[dict[str, Array], dict[str, Rounded]]:
        """Return the same with tensors that are rounded on the way, and what that adds to each: for `again`.

        rounded: what becomes of them; what is added is taken for a constant, so that derivatives pass.
        """
        values, added = {**self.constants, **feeds, **changed}, dict[str, Rounded]()
        for node in self._nodes:
            self._run((node,), values, rounded)
            for name in node.outputs:
                one = rounded.get(name)
                if one is not None and one.fits(values[name]):
                    added[name] = replace(one, array=one.array - values[name])
                    values[name] = one.array
        self.work += 1.0
        return values, added

    def again(
        self, known: Mapping[str, Array], changed: Mapping[str, Array], added: Mapping[str, Rounded] | None = None
    ) -> dict[str, Array]:
        """Return the same as `values` if that was `known` and only these tensors change: the rest is not run again.

        added: see `values_near`.
        """
        values, moved, after = {**known, **changed}, set(changed), list[FileNode]()
        for node in self._nodes:
            if not moved.isdisjoint(node.inputs):
                moved.update(node.outputs)
                after.append(node)
        self._run(after, values, added or {}, known)
        self.work += sum(self._costs[node.outputs[0]] for node in after) / (sum(self._costs.values()) or 1.0)
        return values

    def readers(self, names: Iterable[str]) -> frozenset[str]:
        """Return all tensors that depend on any of these."""
        found = set(names)
        for node in self._nodes:
            if not found.isdisjoint(node.inputs):
                found.update(name for name in node.outputs if name)
        return frozenset(found)

    def _run(
        self,
        nodes: Iterable[FileNode],
        values: dict[str, Array],
        held: Mapping[str, Rounded],
        known: Mapping[str, Array] | None = None,
    ) -> None:
        """Run nodes. held: tensors whose ends of ranges are known. known: their numbers at those ends, which stay."""
        for node in nodes:
            results = self._real(node, values, held)
            for name, result in zip(node.outputs, results, strict=False):
                if name in held and known is not None:
                    values[name] = np.where(held[name].ends, known[name], result + held[name].array)
                elif name:
                    values[name] = result
            self._costs.setdefault(node.outputs[0], _cost(node, values))

    def _real(self, node: FileNode, values: Mapping[str, Array], held: Mapping[str, Rounded]) -> tuple[Array, ...]:
        """Run a node on real numbers."""
        if node.op == "QuantizeLinear":
            return (self._clamped(node, values, held.get(self._real_name.get(node.outputs[0], ""))),)
        if node.op == "DequantizeLinear":
            return (self._dequantised(node, values),)
        if is_qlinear(node.proto):
            return self._file.spelt_out(node, values, lambda part, known: self._real(part, known, held))
        return self._file.run(node, values)

    def _clamped(self, node: FileNode, values: Mapping[str, Array], held: Rounded | None) -> Array:
        """Return numbers within the range of a format. held: what becomes of them; its ends decide close to an end."""
        real, (scale, zero, kind) = values[node.inputs[0]], self._format(node, values)
        if node.outputs[0] not in self._fed:
            return real
        if kind not in _RANGES:
            raise EvaluatorLacksError(f"node {node.name} ({node.op})", f"numbers stored as {kind}")
        low, high = _RANGES[kind]
        leeway = np.where(held.ends, 0.0, _LEEWAY) if held is not None and held.fits(real) else 0.0
        return np.clip(real, (low - zero - leeway) * scale, (high - zero + leeway) * scale)

    def _dequantised(self, node: FileNode, values: Mapping[str, Array]) -> Array:
        given = values[node.inputs[0]]
        if is_float(given.dtype):  # real numbers already: of a QuantizeLinear, or changed
            return given
        scale, zero, _ = self._format(node, values)
        return (given.astype(np.float64) - zero) * scale

    def _format(self, node: FileNode, values: Mapping[str, Array]) -> tuple[Array, Array, str]:
        """Return scale and zero point in shapes that broadcast, and the numpy type of the integers."""
        shape = values[node.inputs[0]].shape
        scale = values[node.inputs[1]].astype(np.float64)
        rest = node.inputs[2:]
        zero = values[rest[0]] if rest and rest[0] else np.zeros((), np.uint8)
        axis = next((a.i for a in node.proto.attribute if a.name == "axis"), 1)
        if scale.size > 1:
            along = [1] * len(shape)
            along[axis % len(shape)] = scale.size
            scale, zero = scale.reshape(along), zero.reshape(along) if zero.size > 1 else zero
        elif scale.ndim:
            scale, zero = scale.reshape(()), zero.reshape(-1)[:1].reshape(())
        return scale, zero.astype(np.float64), zero.dtype.name


def _with_readers(nodes: Sequence[FileNode], tensors: Sequence[FileNumbers]) -> tuple[FileNode, ...]:
    """Return the nodes with these tensors in the places that they were given (--classes, --untie)."""
    places = {reader: one.name for one in tensors for reader in one.readers}
    made: list[FileNode] = []
    for node in nodes:
        inputs = list(node.inputs)
        for (output, index), name in places.items():
            if output == node.outputs[0]:
                inputs += [""] * (index + 1 - len(inputs))
                inputs[index] = name
        if tuple(inputs) == node.inputs:
            made.append(node)
            continue
        made.append(replace(node, inputs=tuple(inputs), proto=changed(node.proto, inputs)))
    return tuple(made)


def _cost(node: FileNode, values: Mapping[str, Array]) -> float:
    """Return multiply-accumulates of a node, about; its elements if it has none."""
    results = sum(values[name].size for name in node.outputs if name in values)
    if node.meaning not in _HEAVY:
        return float(results)
    weight = values[real_operand(node.proto, min(1, len(node.inputs) - 1))]
    if node.meaning in ("Conv", "ConvTranspose"):
        return float(results * math.prod(weight.shape[1:]))
    return float(results * (weight.shape[0] if weight.ndim < 2 else max(weight.shape[-2:])))
