"""Conversion between the state of a device and the tensors of the model file: trained weights, by the file's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.data.samples import as_array
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import FileNumbers, ImportedModel, ParameterSource
from tinytrain_compile.ir.stages import IntegerUnit, TrainedPart, TrainGraph, channel_axis
from tinytrain_compile.ir.types import Array

_ONE = 256
"""Fraction units per unit of a weight."""
_LARGEST = {"int8": 127, "int32": 2**31 - 1}


class FileParameters:
    """The file's tensors that one compilation trains, at least in part, in real numbers (float32).

    Numbers that training has not moved keep their original bits, even if the device rounds them.
    """

    def __init__(self, model: ImportedModel, train: TrainGraph) -> None:
        self._model, self._train = model, train
        sources = [model.sources[part.parameter] for part in train.trained.values()]
        self.tensors: dict[str, FileNumbers] = {source.tensor.name: source.tensor for source in sources}
        self._parts = [self._part(name, part) for name, part in train.trained.items()]

    def _part(self, name: str, part: TrainedPart) -> _Part:
        source, piece = self._model.sources[part.parameter], part.piece
        if piece is not None:
            source = source.cut(channel_axis(piece.axis, source.places.ndim), piece.channels)
        return _Part(name, source, part.unit, self._train.graph.constants)

    def of_state(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """Return the contents of the tensors for a state of the device. E0112 if the file has no numbers for it."""
        tensors = {name: np.array(tensor.initial, np.float32) for name, tensor in self.tensors.items()}
        for part in self._parts:
            moved, numbers = part.moved(state), part.source.in_file(part.real(state))
            if not np.isfinite(numbers[moved]).all():
                what = "it has learned something, and the normalisation folded into it takes its channel times 0"
                way = "compile with --batch-norm keep (float32), which trains the two apart"
                raise CompileError("E0112", f"weight {part.source.tensor.name}", what, way)
            tensors[part.source.tensor.name].reshape(-1)[part.source.places[moved]] = numbers[moved]
        return tensors

    def put(self, tensors: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        """Write such tensors into the arrays of a state. Unchanged numbers keep their bits.

        Raises CompileError E0105 for other names and shapes, and for numbers that the device has no room for; then
        nothing is written.
        """
        given = self._checked(tensors)
        now, fixed = self.of_state(state), {name: np.ones(tensor.size, bool) for name, tensor in given.items()}
        written: list[tuple[Array, Array]] = []
        for part in self._parts:
            name, places = part.source.tensor.name, part.source.places
            fixed[name][places] = False
            changed = given[name].reshape(-1)[places] != now[name].reshape(-1)[places]
            written += part.with_numbers(given[name], changed, state)
        for name, places in fixed.items():
            if not np.array_equal(given[name].reshape(-1)[places], now[name].reshape(-1)[places]):
                what = "differs in a part that this build does not train, which lies in flash"
                raise CompileError("E0105", f"weight {name}", what, "train that part too, or compile the other file")
        for place, array in written:
            place[...] = array

    def _checked(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        known, names = self.tensors, ", ".join(sorted(self.tensors))
        if not isinstance(tensors, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            way = "give what state_dict returned, or dict(np.load(FILE)); a checkpoint: twin.load(FILE)"
            raise CompileError("E0105", "weights", f"{type(tensors).__name__} is no dict of arrays", way)
        for name in sorted(known.keys() ^ tensors.keys()):
            what = "is missing" if name in known else "is no weight that this build trains"
            raise CompileError("E0105", f"weight {name}", what, f"give {names}")
        found = {name: as_array("weights", name, array).astype(np.float32) for name, array in tensors.items()}
        for name, array in found.items():
            shape = known[name].initial.shape
            if array.shape != shape:
                way = f"give shape {shape}, as state_dict does" + (": transpose it" if array.T.shape == shape else "")
                raise CompileError("E0105", f"weight {name}", f"has shape {array.shape}", way)
            if not np.isfinite(array).all():
                raise CompileError("E0105", f"weight {name}", "holds NaN or infinity", "give finite numbers")
        return found


@dataclass(frozen=True, eq=False)
class _Part:
    """A tensor of the state that is a parameter, or some of its channels. first: initial contents of every state."""

    name: str
    source: ParameterSource
    unit: IntegerUnit | None
    first: Mapping[str, Array]

    def real(self, state: Mapping[str, Array]) -> Array:
        """Return its real numbers."""
        held = self._held(state)
        if self.unit is None:
            return held[0]
        whole = held[0].astype(np.float64)
        fine = whole + held[1].astype(np.float64) / _ONE if self.unit.fraction else whole
        return fine * self._scale(self.unit, state)

    def moved(self, state: Mapping[str, Array]) -> Array:
        """Tell which elements differ from their initial contents."""
        pairs = zip(self._held(state), self._held(self.first), strict=True)
        moved = np.logical_or.reduce([now != first for now, first in pairs])
        if self.unit is not None and self.unit.shift:
            moved |= self._along(self._doubled(self.unit, state) != 0)
        return moved

    def with_numbers(self, tensor: Array, changed: Array, state: Mapping[str, Array]) -> list[tuple[Array, Array]]:
        """Return (array of the state, its new contents) if a tensor of the file has changed."""
        held, first = self._held(state), self._held(self.first)
        real, made = self.source.in_graph(tensor), [array.copy() for array in held]
        back = changed & (tensor.reshape(-1) == self.source.tensor.initial.reshape(-1))[self.source.places]
        if self.unit is None:
            made[0][changed] = real[changed]
        elif changed.any():
            for array, integers in zip(made, self._integers(self.unit, real, changed, state), strict=True):
                array[changed] = integers[changed]
        if self.unit is None or not self.unit.shift or not self._doubled(self.unit, state).any():
            for array, begun in zip(made, first, strict=True):  # the device's initial number, which may be rounded
                array[back] = begun[back]
        return list(zip(held, made, strict=True))

    def _integers(self, unit: IntegerUnit, real: Array, wanted: Array, state: Mapping[str, Array]) -> list[Array]:
        count = real.astype(np.float64) / self._scale(unit, state)
        kind = state[self.name].dtype.name
        if not np.abs(count[wanted]).max() < _LARGEST[kind] + 0.5:
            what = f"a number is larger than {kind} holds in this build's scale"
            raise CompileError(
                "E0105", f"weight {self.source.tensor.name}", what, "use save and load, which keep scales"
            )
        if not unit.fraction:
            return [np.rint(count).astype(np.int64)]
        fine = np.rint(count * _ONE).astype(np.int64)
        whole = np.minimum((fine + _ONE // 2) // _ONE, _LARGEST[kind])
        return [whole, np.minimum(fine - whole * _ONE, _ONE // 2 - 1)]

    def _held(self, state: Mapping[str, Array]) -> list[Array]:
        """Return its arrays: the numbers, and their fractions if there are any."""
        names = (self.name, self.unit.fraction) if self.unit is not None and self.unit.fraction else (self.name,)
        return [state[name].reshape(self.source.places.shape) for name in names]

    def _doubled(self, unit: IntegerUnit, state: Mapping[str, Array]) -> Array:
        """Count how often each channel's scale was doubled."""
        shifts = (state[unit.shift], self.first[unit.shift])
        now, first = (shift.reshape(-1)[list(unit.channels)].astype(np.int64) for shift in shifts)
        return now - first

    def _scale(self, unit: IntegerUnit, state: Mapping[str, Array]) -> Array:
        return self._along(unit.scale * 2.0 ** self._doubled(unit, state) if unit.shift else unit.scale)

    def _along(self, channels: Array) -> Array:
        return channels.reshape(-1, *[1] * (self.source.places.ndim - 1))
