"""Which parts of the loop around a training step are in the output (docs/training-loop.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PARTS = ("replay", "monitor", "schedule", "store", "delta", "average")
"""Each is a header and a C file of the output, which know the model by its public header alone; but
for those in OF_WEIGHTS."""
OF_WEIGHTS = ("delta", "average")
"""Parts that read and write trained parameters: not where two states count in different steps."""

MAX_SAMPLES = 1 << 20
"""That the output reserves room for, and the largest window of an average."""


IN_FLASH = "flash"
"""monitor=flash: the best state is kept by callbacks of the caller, and takes no RAM."""


@dataclass(frozen=True)
class RuntimeParts:
    """names: of PARTS, in that order. replay_samples: that the header reserves RAM for; 0: the caller says how many.
    average_window: states that an average weighs alike, which the header says; 0: the caller says it. best_in_ram:
    whether the best state of the monitor is kept in RAM, as m_ram_store does; else it is behind callbacks (flash)."""

    names: tuple[str, ...] = ()
    replay_samples: int = 0
    average_window: int = 0
    best_in_ram: bool = True

    @property
    def text(self) -> str:
        """As --runtime takes it."""
        values = {"replay": self.replay_samples, "average": self.average_window}
        numbers = {name: str(value) for name, value in values.items() if value}
        numbers |= {} if self.best_in_ram else {"monitor": IN_FLASH}
        return ",".join(f"{name}={numbers[name]}" if name in numbers else name for name in self.names)


NO_PARTS = RuntimeParts()


@dataclass(frozen=True)
class FeatureCut:
    """A step that is cut where training begins (--features). size_bytes: of the features of a call.

    values: what crosses, by the names that users know; frozen: nodes of the plan that a step on features leaves out.
    """

    size_bytes: int
    values: tuple[str, ...]
    frozen: tuple[str, ...]


@dataclass(frozen=True)
class ReplayRoom:
    """What a reservoir takes. record_bytes: of one sample with its label; samples: that the header reserves RAM for."""

    record_bytes: int
    samples: int

    @property
    def size_bytes(self) -> int:
        """RAM beside the arena; 0 where the caller says how many samples there are."""
        return self.record_bytes * self.samples


DeltaType = Literal["float32", "steps", "int32"]
"""What a number of a delta counts: real numbers; 1/256 step of an int8 weight; units of an int32 bias."""


@dataclass(frozen=True)
class DeltaSlot:
    """A trained tensor in a delta (docs/fleet.md): an int16 exponent, and `count` int16 numbers behind it.

    offset: of the exponent, in bytes from the start of the delta. parameter: the tensor's name in the imported graph.
    fine: whether an int8 weight has a fraction on the device (else it keeps whole steps).
    """

    name: str
    parameter: str
    type: DeltaType
    count: int
    offset: int
    fine: bool = False


@dataclass(frozen=True)
class DeltaTable:
    """A delta of a build: its tensors, its size, and the hash of the model that it belongs to (hexadecimal)."""

    model_hash: str
    size_bytes: int
    slots: tuple[DeltaSlot, ...]
