"""The store of checkpoints in C: it uses only the public header."""

from __future__ import annotations

from tinytrain_compile.ir.buffers import RuntimeBuffer
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.parts.part import Part

STORE_BYTES, STORE_UNIT_BYTES = 392, 256
"""Bytes of m_slot_store_t on a 32-bit machine without its program buffer, and of that buffer."""


class Store(Part):
    """`m_store.h`."""

    name, row, files = "store", "runtime", ("store.h", "store.c")
    has_fragments = True

    def buffer(self, train: TrainGraph, feature_bytes: int) -> RuntimeBuffer:
        """Return the RAM of a store."""
        return RuntimeBuffer(self.name, "store", STORE_BYTES + STORE_UNIT_BYTES, "{p}_slot_store_t store")


PART = Store
