"""Hooks through which the emitter uses an optional part of a project; the parts themselves are in parts/ (ADR 49)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tinytrain_compile.emit.c_text import Names
from tinytrain_compile.emit.sequence import Section, Sequencer
from tinytrain_compile.ir.buffers import RuntimeBuffer
from tinytrain_compile.ir.stages import Interface, MemoryPlan, StepPart, TrainGraph

Render = Callable[[str, Mapping[str, object]], str]
"""(name of a template, its values) -> text of the file."""


@dataclass
class PlanCode:
    """One plan of a project while its C is assembled.

    step: functions of a training step; those from `cut` on come after the loss. slices: the parts of a step that can be
    computed in slices. starts: nodes with which a function begins. first: nodes of the step that run before a call,
    while its input arrives. model: values of the templates.
    """

    train: TrainGraph
    plan: MemoryPlan
    tables: Names
    sequencer: Sequencer
    interface: Interface
    model: dict[str, Any] = field(default_factory=dict[str, Any])
    starts: set[str] = field(default_factory=set[str])
    first: int = 0
    step: list[Section] = field(default_factory=list[Section])
    cut: int = 0
    slices: tuple[StepPart, ...] = ()


class Part:
    """A part of a generated project. Every hook does nothing unless a part overrides it.

    name: of its folder in parts/. files: suffixes of additional C files of the project, each a template of the folder:
    m_average.c from average.c.j2. has_fragments: whether <name>.j2 of the folder has macros, each of which fills a slot
    of this name in the project's templates.
    """

    name: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ()
    has_fragments: ClassVar[bool] = False

    def tables(self, planned: Sequence[tuple[TrainGraph, MemoryPlan]], prefix: str) -> list[Names] | None:
        """Return the names of each plan's tables in flash, if this part defines them."""
        return None

    def prepare(self, code: PlanCode) -> None:
        """Change settings of the call sequence and the interface, before any call is written."""

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the values of its fragments for a plan, and those that it changes for other templates."""
        return {}

    def together(self, codes: Sequence[PlanCode]) -> None:
        """Add to each plan's model the values that depend on all plans of the project, which are sorted by size."""

    def public(self, code: PlanCode) -> Mapping[str, object]:
        """Return values that differ in the public header and the part's own files."""
        return {}

    def sequences(self, codes: Sequence[PlanCode], render: Render) -> Mapping[str, str] | None:
        """Return the C files of all call sequences, name -> text, if one file is not enough."""
        return None

    def buffer(self, train: TrainGraph, feature_bytes: int) -> RuntimeBuffer | None:
        """Return the RAM beside the arena that it needs. feature_bytes: of a sample's features, 0 without any."""
        return None
