"""Parts of the loop around a training step in the output (docs/training-loop.md)."""

from __future__ import annotations

from dataclasses import dataclass

JOURNAL = "journal"
"""The part that keeps its state in the checkpoint, so a project records that it has this part."""
PURPOSES = {
    "replay": "old samples",
    "monitor": "early stopping",
    "schedule": "learning rate",
    "store": "power-safe saving",
    "delta": "messages to other devices",
    "average": "averaged weights",
    JOURNAL: "a record of every update",
}
"""Part -> its purpose, for errors."""
PARTS = tuple(PURPOSES)
"""Names of parts. Each is a header and a C file of the output, which use only the model's public header, except those
in OF_WEIGHTS."""
OF_WEIGHTS = ("delta", "average")
"""Parts that read and write trained parameters: not possible if two states count in different steps."""

MAX_SAMPLES = 1 << 20
"""Most samples for which the output reserves room, and the largest window of an average."""


IN_FLASH = "flash"
"""Value of monitor=flash: callbacks of the caller keep the best state, which takes no RAM."""


@dataclass(frozen=True)
class RuntimeParts:
    """names: of PARTS, in that order. replay_samples: for which the header reserves RAM; 0: the caller sets the number.
    average_window: states that an average weighs equally, set by the header; 0: by the caller. best_in_ram: whether the
    best state of the monitor is kept in RAM, as m_ram_store does; else callbacks keep it (flash)."""

    names: tuple[str, ...] = ()
    replay_samples: int = 0
    average_window: int = 0
    best_in_ram: bool = True

    @property
    def text(self) -> str:
        """Text of --runtime for these parts."""
        values = {"replay": self.replay_samples, "average": self.average_window}
        numbers = {name: str(value) for name, value in values.items() if value}
        numbers |= {} if self.best_in_ram else {"monitor": IN_FLASH}
        return ",".join(f"{name}={numbers[name]}" if name in numbers else name for name in self.names)


NO_PARTS = RuntimeParts()
