"""Hooks through which the driver and the report use a part, besides those for the C in emit/ (ADR 49)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from tinytrain_compile.emit.c_text import comment_text
from tinytrain_compile.emit.checkpoint import stored
from tinytrain_compile.emit.part import Part as EmittedPart
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import MemoryPlan, PlannedStep, TrainGraph
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.options.compile_options import CompileOptions, as_typed, is_asked_for, refuse_auto

_KINDS = {"float32": "FLOAT32", "int8": "STEPS", "int32": "INT32"}
"""Type of a trained tensor -> unit of its numbers, as named in the C of parts: an int8 weight counts in steps."""


InImage = tuple[TrainGraph, MemoryPlan]
"""A step in the form for an emitter of several in one image."""
AnyPlanned = TypeVar("AnyPlanned", bound=PlannedStep)
"""A result of the driver's planner, from which a part reads the step and its plan."""


class Part(EmittedPart):
    """A part of a project. Every hook does nothing unless a part overrides it.

    flag: the option that requests it, as errors name it. not_with: options with which it is not possible (see
    `is_asked_for`); errors end with `why`. named_update: why --update must be named, "" if it need not. one_input:
    whether the model must have one data input. of_weights: whether it reads weights of several states, which must then
    count in the same steps. row: of the report to which it contributes, "" for none. uncounted: its RAM that only the
    caller can place.
    """

    of_weights: ClassVar[bool] = False
    row: ClassVar[str] = ""
    flag: ClassVar[str] = ""
    not_with: ClassVar[tuple[str, ...]] = ()
    one_input: ClassVar[bool] = False
    why: ClassVar[str] = ""
    named_update: ClassVar[str] = ""
    uncounted: str = ""

    def __init__(self, asked: Any) -> None:
        """Make the part. asked: the options; for a part of --runtime, all names given there."""
        self.asked = asked

    def check_options(self, options: CompileOptions) -> None:
        """Raise E0113 for options with which it is not possible, and if it needs a named --update."""
        for other in self.not_with:
            if is_asked_for(options, other):
                what = f"is not possible with {as_typed(other)}{self.why}"
                raise CompileError("E0113", self.flag, what, "leave one of the two out")
        if self.named_update and options.update == "auto":
            refuse_auto(self.flag, self.named_update)

    def settled(self, options: CompileOptions) -> CompileOptions:
        """Return the options with those changed that this part decides."""
        return options

    def with_state(self, train: TrainGraph) -> TrainGraph:
        """Return a step whose state, and so whose checkpoint, also has the tensors that this part keeps."""
        return train

    def beside(self, largest: AnyPlanned, make: Callable[[int], AnyPlanned]) -> tuple[AnyPlanned, ...]:
        """Return the project's further plans, the smallest arena first. Errors: E0113, E0401.

        make: plans the same command for an arena of this many bytes; its result may be larger.
        """
        return ()

    def told(self, summary: Summary, planned: Sequence[PlannedStep]) -> Summary:
        """Return the summary with data on all plans, of which its own is the last."""
        return summary

    def in_one_image(self, largest: MemoryPlan, smaller: tuple[InImage, ...]) -> tuple[InImage, ...]:
        """Return the smaller plans, with nodes renamed so that names differ between plans."""
        return smaller

    def check(self, train: TrainGraph, plan: MemoryPlan) -> None:
        """Raise CompileError for a plan that cannot have this part."""
        if self.of_weights:
            refuse_shifted(train, f"--runtime {self.name}")

    def pieces(self, summary: Summary) -> list[str]:
        """Return its figures in its row of the report."""
        return [self.name]

    def json(self, summary: Summary) -> dict[str, Any] | list[Any] | None:
        """Return its data for report.json."""
        return None

    def reports(self, train: TrainGraph, prefix: str) -> Mapping[str, str]:
        """Return files for the output folder that no C reads: name -> text."""
        return {}


def refuse_shifted(train: TrainGraph, where: str) -> None:
    """Raise E0113 for a reader of several states' weights, if channels change their scale."""
    if any(part.unit is not None and part.unit.shift for part in train.trained.values()):
        what = "is not possible with --rescale on, whose weights count in steps that change on the device"
        raise CompileError("E0113", where, what, "leave one of the two out")


def trained_slots(train: TrainGraph) -> list[dict[str, object]]:
    """Describe every trained tensor of a checkpoint for C: its place in `state_slots`, and that of its fractions."""
    places, rows = {value.name: place for place, value in enumerate(stored(train))}, list[dict[str, object]]()
    for value in stored(train):
        part = train.trained.get(value.name)
        if part is not None:
            fraction = "" if part.unit is None else part.unit.fraction
            at = {"place": places[value.name], "fraction": f"{places[fraction]}u" if fraction else "NO_SLOT"}
            row = {"name": comment_text(value.name), "count": value.elements, "kind": _KINDS[value.dtype], **at}
            rows.append({**row, "value": value.name, "fraction_value": fraction})
    return rows
