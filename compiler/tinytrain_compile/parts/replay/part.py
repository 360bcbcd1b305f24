"""The reservoir of past samples in C, and its records. It uses only the public header."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.ir.buffers import RuntimeBuffer
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.layout import bytes_text, plural

_WORD = 4
"""Bytes of a label's value, and alignment of records."""


class Replay(Part):
    """`m_replay.h`."""

    name, row, files = "replay", "runtime", ("replay.h", "replay.c")
    has_fragments = True
    flag, one_input = "--runtime replay", True

    def __init__(self, asked: RuntimeParts) -> None:
        """Leave the samples uncounted if the caller sets their number."""
        super().__init__(asked)
        self.uncounted = "" if asked.replay_samples else "samples of your number"

    def public(self, code: PlanCode) -> Mapping[str, object]:
        """Describe a record: its kind of data, the calls that take these, bytes of x, labels and their first byte.

        classes: that are balanced, with one for labels that do not count; 1 if labels are no classes. samples: number
        to reserve room for, 0 if the caller sets it.
        """
        train, face = code.train, code.interface
        slot = f"{face.prefix}_input(m)->values"
        what, hint = "one input of the model", f"for instance {slot}"
        if face.window is not None:
            what, hint = "the features of one window", f"as {face.prefix}_hear_features writes them"
        elif face.feature_bytes:
            what, hint = "the features of one input", f"as {face.prefix}_features writes them"
        elif face.counted:
            hint = f"for instance {face.prefix}_input(m)[k].values"
        elif train.micro_batch > 1:
            hint = f"for instance those of sample k in {slot}"
        x_bytes, labels, label_at = _layout(train, face.feature_bytes)
        record = {"x_bytes": x_bytes, "labels": labels, "label_at": label_at, "record_bytes": label_at + labels * _WORD}
        classes = code.model["classes"] + 1 if code.model["classes"] and labels == 1 else 1
        record |= {"classes": classes, "samples": self.asked.replay_samples}
        return {"replay": {"what": what, "hint": hint, **record}}

    def buffer(self, train: TrainGraph, feature_bytes: int) -> RuntimeBuffer | None:
        """Return the RAM of the samples, unless the caller sets their number."""
        count = self.asked.replay_samples
        if not count:
            return None
        what, definition = f"{count:,} kept sample{'' if count == 1 else 's'}", "unsigned char past[{P}_REPLAY_BYTES]"
        return RuntimeBuffer(self.name, what, count * record_bytes(train, feature_bytes), definition)

    def pieces(self, summary: Summary) -> list[str]:
        """Return bytes of a sample, and of all reserved RAM."""
        found = self.json(summary)
        each = f"{bytes_text(found['record_bytes'])} a sample"
        if not found["samples"]:
            return [f"{self.name} ({each})"]
        room = f"{bytes_text(found['bytes'])} beside the arena: {plural(found['samples'], 'sample')}"
        return [f"{self.name} ({room}, {each})"]

    def json(self, summary: Summary) -> dict[str, int]:
        """Return the bytes of a record, and samples and bytes of reserved RAM (0: the caller's)."""
        size, samples = record_bytes(summary.train, summary.feature_bytes), self.asked.replay_samples
        return {"record_bytes": size, "samples": samples, "bytes": size * samples}


def _layout(train: TrainGraph, feature_bytes: int) -> tuple[int, int, int]:
    """Return (bytes of x, values of the label, first byte of these) for one sample of the input.

    feature_bytes: of its features, which are kept instead if not 0.
    """
    together = train.micro_batch
    x_bytes = feature_bytes or train.graph.inputs[0].size_bytes // together
    return x_bytes, train.label.elements // together, -(-x_bytes // _WORD) * _WORD


def record_bytes(train: TrainGraph, feature_bytes: int = 0) -> int:
    """Return the bytes of a sample with its label in a reservoir."""
    _, labels, label_at = _layout(train, feature_bytes)
    return label_at + labels * _WORD


PART = Replay
