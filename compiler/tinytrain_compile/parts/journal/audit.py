"""Repeat a journal on the desk, record by record, and find the first one that does not fit (docs/journal.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.ir.types import Array
from tinytrain_compile.parts.journal.twin import Chain, Layout, Record, head_of, name_of, state_of


class Audited(Protocol):
    """The calls of a model that an audit makes: `Instance` of tinytrain_compile.twin."""

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        ...

    def train(self, x: Array, y: Array) -> Array:
        """Update once; return the loss of each call."""
        ...

    def tensor(self, name: str) -> Array:
        """Return a tensor of the state as a view."""
        ...


@dataclass(frozen=True)
class Named:
    """Samples as the calls take them, by their names in a journal."""

    samples: Samples
    places: Mapping[bytes, int]

    @classmethod
    def of(cls, samples: Samples, with_labels: bool) -> Named:
        """Name samples. with_labels: whether the loss reads labels, which then are part of a name."""
        names = (name_of(x, y if with_labels else None) for x, y in zip(samples.x, samples.y, strict=True))
        return cls(samples, {name: place for place, name in enumerate(names)})


@dataclass(frozen=True)
class Journal:
    """A journal that was read from a file. where: its name, for errors.

    head, noise: tensors of the state with the head of the chain and the noise of rounding ("" for none).
    """

    where: str
    data: bytes
    layout: Layout
    chain: Chain
    head: str
    noise: str = ""

    def repeat(self, model: Audited, named: Named) -> int:
        """Make all updates on a model, and return how many there are; its head is then that of the last record.

        Raises CompileError E0608 for the first record that does not fit.
        """
        number, head = head_of(model.tensor(self.head))
        size = self.layout.record_bytes
        if not self.data:
            raise CompileError("E0608", self.where, "it has no record", "give the records that the device has written")
        starts = range(0, len(self.data), size)
        for place, at in enumerate(starts, 1):
            number += 1
            record = self._record(place, self.data[at : at + size])
            head = self.chain.after(head, record.content)
            self._check_chain(place, record, head, number)
            self._make(place, record, model, named)
        model.tensor(self.head)[:] = state_of(number, head)
        return len(starts)

    def _record(self, place: int, data: bytes) -> Record:
        if len(data) < self.layout.record_bytes:
            what = f"ends after {len(data)} of {self.layout.record_bytes} bytes"
            raise self._off(place, what, "copy the journal again, or leave this record out")
        try:
            return self.layout.record(data)
        except ValueError as problem:
            what = f"has {problem} (an update takes 1 to {self.layout.samples})"
            raise self._off(place, what, "copy the journal again: it is damaged, or of another build") from problem

    def _check_chain(self, place: int, record: Record, head: bytes, number: int) -> None:
        """Check that a record follows those before it. head: of the chain after it; number: that it must have."""
        if not head.startswith(record.link):
            way = "copy the journal again; if this is record 1, check --from and --key"
            raise self._off(place, "does not continue the chain: it, or its place, has changed", way)
        if record.number != number:
            what = f"is of update {record.number}, where update {number} must follow"
            raise self._off(place, what, "begin with the checkpoint before the first record (--from)")

    def _make(self, place: int, record: Record, model: Audited, named: Named) -> None:
        """Make an update as a record says, and compare what it gives."""
        missing = next((name for name in record.names if name not in named.places), None)
        if missing is not None:
            what = f"names a sample {missing.hex()} that --samples does not have"
            raise self._off(place, what, "give all samples and labels as the device had them")
        (rate,) = struct.unpack("<f", struct.pack("<I", record.rate))
        chosen = [named.places[name] for name in record.names]
        try:
            model.set_rate(rate)
            losses = model.train(named.samples.x[chosen], named.samples.y[chosen])
        except CompileError as problem:
            raise self._off(place, f"is of an update that cannot be made: {problem.what}", _OTHER) from problem
        loss = np.float32(losses[-1])
        if int(loss.view(np.uint32)) != record.loss:
            (given,) = struct.unpack("<f", struct.pack("<I", record.loss))
            raise self._off(place, f"has the loss {given:.9g}, and the update gives {loss:.9g}", _OTHER)
        noise = int(model.tensor(self.noise).view(np.uint32)[0]) if self.noise else 0
        if noise != record.noise:
            what = f"has the noise 0x{record.noise:08x}, and the update leaves 0x{noise:08x}"
            raise self._off(place, what, _OTHER)

    def _off(self, place: int, what: str, way: str) -> CompileError:
        return CompileError("E0608", self.where, f"record {place} {what}", way)


_OTHER = "look for updates, loads or weights before it that the journal does not have"
"""Advice if the device has computed something else than the journal says."""
