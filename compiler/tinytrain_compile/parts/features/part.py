"""A step that is cut where training begins: the lines of m_features, and of an inference and a step on features.

They are calls of the step's own functions, and copies between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.emit.sequence import Section, Sequencer
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.parts.features.border import Border, Crossing, FeatureCut, Stretch, border_of, feature_cut
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.analysis import analyse, work_of
from tinytrain_compile.report.layout import bytes_text, grouped, macs_text, share

FROM, TO = "from", "to"
"""Places at which features are read and written."""


class Features(Part):
    """`m_features`, `m_infer_features` and `m_train_features`."""

    name, row, has_fragments = "features", "features", True
    flag, one_input, not_with = "--features on", True, ("memories", "input_lines")

    def prepare(self, code: PlanCode) -> None:
        """Let functions begin where the border is crossed; nothing if only views are frozen."""
        border = border_of(code.train, code.plan)
        if border is not None:
            code.starts |= border.starts
            code.interface = replace(code.interface, feature_bytes=border.size_bytes)

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the lines of m_features, of an inference on features, and of a step on them up to the loss and
        after it."""
        border = border_of(code.train, code.plan)
        if border is None:
            return {"feature_bytes": 0}
        lines = _Lines(border, code.sequencer)
        floats = sorted({(one.at, one.value.size_bytes) for one in _floats(border)})
        return {
            "feature_bytes": border.size_bytes,
            "take_lines": [*lines.taken(code.step)],
            "feature_infer_lines": [*_Lines(border, code.sequencer).given(code.model["infer_parts"])],
            "feature_loss_lines": [*lines.given(code.step[: code.cut])],
            "feature_gradient_lines": [*lines.given(code.step[code.cut :])],
            "feature_checks": [f"!tt_are_finite({FROM} + {at}, {size}u)" for at, size in floats],
        }

    def check(self, train: TrainGraph, plan: MemoryPlan) -> None:
        """Raise E0113 for a plan in several memories, or of several samples a call, which a lock may bring."""
        what = ""
        if plan.further:
            what = "page moves of the frozen part would be waited for that nothing began"
        elif train.micro_batch > 1:
            what = f"a call takes {train.micro_batch} samples, and features are those of one"
        if what:
            way = "leave out --memory" if plan.further else "leave out --micro-batch"
            raise CompileError("E0113", self.flag, what, f"{way}, or --features")

    def pieces(self, summary: Summary) -> list[str]:
        """Describe the cut of the step, and the share of a whole step that a step on features takes."""
        cut, counts = feature_cut(summary.train, summary.plan), summary.verify.counts
        if cut is None:
            return ["none: the first layer is trained, features would be the input"]
        size = f"{bytes_text(cut.size_bytes)} a sample"
        if counts is None or counts.train_features is None:
            whole = sum(work_of(summary.train))
            rest = whole - _frozen_macs(summary, cut)
            return [size, f"a step on them: {macs_text(rest)} of {macs_text(whole)} MAC ({share(rest, whole)})"]
        whole, rest = (sum(found.values()) for found in (counts.step, counts.train_features))
        return [size, f"a step on them: {grouped(rest)} of {grouped(whole)} instructions ({share(rest, whole)})"]

    def json(self, summary: Summary) -> dict[str, Any]:
        """Return data on the features and the saving of a step on them.

        bytes: of a sample's features, 0 if training begins at the input; values: their names; frozen_macs: left out of
        a step on them; instructions: of both calls, if they were counted.
        """
        cut, counts = feature_cut(summary.train, summary.plan), summary.verify.counts
        taken = None if counts is None or counts.features is None else sum(counts.features.values())
        given = None if counts is None or counts.train_features is None else sum(counts.train_features.values())
        return {
            "bytes": 0 if cut is None else cut.size_bytes,
            "values": [] if cut is None else list(cut.values),
            "frozen_macs": 0 if cut is None else _frozen_macs(summary, cut),
            "features_instructions": taken,
            "train_features_instructions": given,
        }


def _frozen_macs(summary: Summary, cut: FeatureCut) -> int:
    """Sum the multiply-accumulates of the nodes that a step on features leaves out."""
    analysis, names = analyse(summary.train, summary.plan), set(cut.frozen)
    pairs = zip(summary.plan.order, analysis.macs, strict=True)
    return sum(macs for node, macs in pairs if node.name in names)


def _floats(border: Border) -> Iterator[Crossing]:
    """Yield the features that may be NaN or infinite."""
    for stretch in border.stretches:
        yield from (crossing for crossing in stretch.crossing if crossing.value.dtype == "float32")


class _Lines:
    def __init__(self, border: Border, sequencer: Sequencer) -> None:
        self._border, self._sequencer = border, sequencer
        self._where = {node.name: index for index, stretch in enumerate(border.stretches) for node in stretch.nodes}
        self._given = 0
        """Number of stretches whose crossing values are in place."""

    def taken(self, sections: Sequence[Section]) -> Iterator[str]:
        """Yield all frozen calls, each followed by copies of the values that cross there, once each."""
        done = set[int]()
        last = max(index for index, stretch in enumerate(self._border.stretches) if self._new(stretch, done))
        done.clear()
        for index, stretch in enumerate(self._border.stretches[: last + 1]):
            if stretch.frozen:
                yield from (part.call for part in sections if self._where[part.first] == index)
            for crossing in self._new(stretch, done):
                yield self._copy(f"{TO} + {crossing.at}", self._place(crossing), crossing)

    def _new(self, stretch: Stretch, done: set[int]) -> list[Crossing]:
        """Return the values that cross here and were not copied yet."""
        found = [crossing for crossing in stretch.crossing if crossing.at not in done]
        done.update(crossing.at for crossing in found)
        return found

    def given(self, sections: Sequence[Section]) -> Iterator[str]:
        """Yield all calls that are not frozen, and before each stretch copies of the values that cross there."""
        for part in sections:
            index = self._where[part.first]
            stretches = self._border.stretches
            for stretch in stretches[self._given : index + 1]:
                for crossing in stretch.crossing:
                    yield self._copy(self._place(crossing), f"{FROM} + {crossing.at}", crossing)
            self._given = max(self._given, index + 1)
            if not stretches[index].frozen:
                yield part.call

    def _place(self, crossing: Crossing) -> str:
        return self._sequencer.pointer(crossing.value.name)

    def _copy(self, to: str, source: str, crossing: Crossing) -> str:
        return f"memcpy({to}, {source}, {crossing.value.size_bytes}u);"


PART = Features
