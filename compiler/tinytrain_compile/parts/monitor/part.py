"""Monitor of a training loop, in C: it uses the public header only."""

from __future__ import annotations

from tinytrain_compile.emit.checkpoint import checkpoint_bytes
from tinytrain_compile.ir.buffers import RuntimeBuffer
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.parts.part import Part


class Monitor(Part):
    """`m_monitor.h`."""

    name, row, files = "monitor", "runtime", ("monitor.h", "monitor.c")

    def buffer(self, train: TrainGraph, feature_bytes: int) -> RuntimeBuffer | None:
        """Return the RAM of the best state, unless callbacks of the caller keep it (monitor=flash)."""
        if not self.asked.best_in_ram:
            return None
        size, definition = checkpoint_bytes(train.training_step), "unsigned char best[{P}_MONITOR_BYTES]"
        return RuntimeBuffer(self.name, "best state (monitor)", size, definition)


PART = Monitor
