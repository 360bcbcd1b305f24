"""The schedule of the learning rate in C: it uses only the public header."""

from __future__ import annotations

from tinytrain_compile.parts.part import Part


class Schedule(Part):
    """`m_schedule.h`."""

    name, row, files = "schedule", "runtime", ("schedule.h", "schedule.c")
    has_fragments = True


PART = Schedule
