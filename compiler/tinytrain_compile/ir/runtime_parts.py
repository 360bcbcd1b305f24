"""Which parts of the loop around a training step are in the output (docs/training-loop.md)."""

from __future__ import annotations

from dataclasses import dataclass

PURPOSES = {
    "replay": "old samples",
    "monitor": "early stopping",
    "schedule": "learning rate",
    "store": "power-safe saving",
    "delta": "messages to other devices",
    "average": "averaged weights",
}
"""Of each part, as errors say it."""
PARTS = tuple(PURPOSES)
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
