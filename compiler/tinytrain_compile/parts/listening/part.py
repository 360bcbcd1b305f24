"""The C of inference on a stream: m_hear, and m_rehear, which fills the rings again (docs/listening.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinytrain_compile.emit.c_text import C_TYPES
from tinytrain_compile.emit.interface import shape_data
from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import InputSlot, Listening
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.parts.features.border import border_of
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.layout import bytes_text, grouped, plural

ONLY = "--listen only"
"""As errors name it."""


class Listens(Part):
    """`m_hear` and `m_rehear`."""

    name, row, has_fragments = "listening", "listening", True
    flag, one_input = "--listen", True
    not_with = ("memories", "input_lines", "plans", "micro_batch", "lock", "dropout=on")

    def check_options(self) -> None:
        """Refuse --features on for a step that takes nothing but features, besides what every part refuses."""
        super().check_options()
        if self.asked.listen == "only":
            if self.asked.features == "on":
                raise CompileError("E0113", ONLY, "takes features in any case", "leave out --features")
            if self.asked.update == "auto":
                raise CompileError("E0113", ONLY, "trains what reads all of a window", "name it: --update head")

    def prepare(self, code: PlanCode) -> None:
        """Note how many rows a call takes, and the window if that is the only way in."""
        assert code.plan.listening is not None, "the planner adds the pass"
        face = replace(code.interface, hear_rows=code.plan.listening.frames)
        if code.train.windows is not None:
            (given,) = code.train.windows.data
            face = replace(face, window=InputSlot(1, given.origin or given.name, given.elements, given.dtype))
            if not face.trains:
                face = replace(face, input_elements=given.elements, input_dtype=given.dtype)
        code.interface = face

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the calls of the pass, its buffers, and what empties its rings."""
        listening, sequencer = code.plan.listening, code.sequencer
        assert listening is not None
        graph = listening.graph
        frames, output = graph.inputs[0], graph.outputs[0]
        sections = sequencer.sections("hear", listening.plan.order)
        rings = [
            f"memset({sequencer.pointer(ring.name)}, {_byte(graph.constants[ring.name])}, {ring.size_bytes}u);"
            for ring in graph.state
        ]
        given = code.train.on_windows.graph.inputs[0]
        return {
            **self._instead_of_samples(code),
            "hear_calls": [section.call for section in sections],
            "sections": [*code.model["sections"], *sections],
            "last_fields": [*code.model["last_fields"], *rings],
            "hear": {
                "frames": listening.frames,
                "row_elements": frames.elements // listening.frames,
                "window": listening.window,
                "settle": listening.settle,
                "rings": _ring_bytes(listening),
                "input": sequencer.pointer(frames.name),
                "input_bytes": frames.size_bytes,
                "is_float": frames.dtype == "float32",
                "ctype": C_TYPES[frames.dtype],
                "quant": given.quant if frames.dtype == "int8" else None,
                "output": sequencer.pointer(output.name),
                "features": _features(code, listening),
                "only": code.train.windows is not None,
                "feature_bytes": code.train.data[0].size_bytes,
            },
        }

    def _instead_of_samples(self, code: PlanCode) -> Mapping[str, object]:
        """Return what the header says of the input, if that is the features of a window."""
        windows, prefix = code.train.windows, code.interface.prefix
        if windows is None:
            return {}
        if not code.interface.trains:
            return {
                "takes_input": False,
                "input_text": f"a window, whose rows {prefix}_hear takes",
                "input_shape": "x".join(map(str, windows.data[0].shape)),
                "float_input_bytes": windows.data[0].size_bytes if windows.data[0].dtype == "float32" else 0,
                **shape_data(windows, code.interface),
            }
        return {
            "input_quant": None,
            "input_text": f"the features of a window, as {prefix}_hear_features writes them",
            "slots_text": ("Returns the place of the features", "it", "its"),
            "sample_text": "behind the features in the slot",
            "step_text": "Trains on the features in the slot",
        }

    def pieces(self, summary: Summary) -> list[str]:
        """Return the rows of a call, the bytes of rings and pass, and the calls after an update."""
        listening, counts = summary.plan.listening, summary.verify.counts
        assert listening is not None
        heard = None if counts is None else counts.hear
        return [
            f"m_hear takes {plural(listening.frames, 'row')} of {listening.window}",
            f"{bytes_text(_ring_bytes(listening))} of rings",
            f"{bytes_text(listening.plan.arena_bytes)} in all",
            f"settled {plural(listening.settle, 'call')} after an update",
            *([] if heard is None else [f"{grouped(sum(heard.values()))} instructions a call"]),
        ]

    def json(self, summary: Summary) -> dict[str, Any]:
        """Return rows, bytes and calls, as `pieces` do."""
        listening, counts = summary.plan.listening, summary.verify.counts
        assert listening is not None
        heard = None if counts is None else counts.hear
        return {
            "frames": listening.frames,
            "window": listening.window,
            "ring_bytes": _ring_bytes(listening),
            "arena_bytes": listening.plan.arena_bytes,
            "settle_calls": listening.settle,
            "instructions": None if heard is None else sum(heard.values()),
        }


def _features(code: PlanCode, listening: Listening) -> list[str]:
    """Return the copies that make the features of the window, if the pass has all of them; [] without --features on."""
    if code.train.windows is not None:
        (value,) = code.train.data
        held = code.sequencer.pointer(listening.whole[value.name])
        return [f"memcpy(to, {held}, {value.size_bytes}u);"] if code.interface.trains else []
    if not code.interface.feature_bytes:
        return []
    border, copies = border_of(code.train, code.plan), list[str]()
    assert border is not None, "m_features exists"
    for crossing in (one for stretch in border.stretches for one in stretch.crossing):
        held = listening.whole.get(crossing.value.name)
        if held is None:
            return []
        copies.append(f"memcpy(to + {crossing.at}, {code.sequencer.pointer(held)}, {crossing.value.size_bytes}u);")
    return copies


def _ring_bytes(listening: Listening) -> int:
    return sum(ring.size_bytes for ring in listening.graph.state)


def _byte(content: Any) -> str:
    """Return the byte that all of a ring is filled with: a zero point, or 0 in float32."""
    return str(int(content.flat[0]) & 0xFF)


PART = Listens
