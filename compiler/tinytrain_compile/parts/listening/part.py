"""The C of inference on a stream: m_hear, and m_rehear, which fills the rings again (docs/listening.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinytrain_compile.emit.c_text import C_TYPES
from tinytrain_compile.emit.interface import shape_data
from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import COUNTER_BYTES, InputSlot, Listening, MemoryPlan, TrainGraph
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.names import operand
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.features.border import border_of
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.layout import bytes_text, grouped, plural

ONLY = "--listen only"
"""As errors name it."""
KEEP_CALLS, KEEP_SLOTS = 64, 5
"""Calls among which m_keep.h looks for the best (1.9 s of three rows of 10 ms), and features that it holds for that."""
_WORD = 4
"""Bytes of a number in a keeper, and alignment of its fields."""


class Listens(Part):
    """`m_hear` and `m_rehear`."""

    name, row, files, has_fragments = "listening", "listening", ("keep.h",), True
    flag, one_input = "--listen", True
    not_with = ("memories", "input_lines", "plans", "micro_batch", "lock", "dropout=on")

    def check_options(self, options: CompileOptions) -> None:
        """Refuse --features on for a step that takes nothing but features, besides what every part refuses."""
        super().check_options(options)
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
        held = self._held(code.train, code.plan)
        size = sum(value.size_bytes for _, value in held)
        return {
            **self._instead_of_samples(code),
            "hear_calls": [section.call for section in sections],
            "sections": [*code.model["sections"], *sections],
            "header_bytes": code.model["header_bytes"] + COUNTER_BYTES,
            "first_fields": [*code.model["first_fields"], f"m->unsettled = {listening.calls}u;"],
            "last_fields": [*code.model["last_fields"], *rings],
            "hear": {
                "frames": listening.frames,
                "row_elements": frames.elements // listening.frames,
                "window": listening.window,
                "settle": listening.settle,
                "rings": ring_bytes(listening),
                "input": sequencer.pointer(frames.name),
                "input_bytes": frames.size_bytes,
                "is_float": frames.dtype == "float32",
                "ctype": C_TYPES[frames.dtype],
                "quant": given.quant if frames.dtype == "int8" else None,
                "output": sequencer.pointer(output.name),
                "features": [
                    f"memcpy(to + {at}, {sequencer.pointer(listening.whole[value.name])}, {value.size_bytes}u);"
                    for at, value in held
                ],
                "only": code.train.windows is not None,
                "feature_bytes": size,
            },
            "keep": {"calls": KEEP_CALLS, "slots": KEEP_SLOTS, "bytes": keeper_bytes(listening, size)},
        }

    def _held(self, train: TrainGraph, plan: MemoryPlan) -> list[tuple[int, Value]]:
        """Return (place, value) of the features of the window, if a build has them and the pass holds all; else []."""
        assert plan.listening is not None, "the planner adds the pass"
        if train.windows is not None:
            return [(0, train.data[0])] if train.reads_state_of is None else []
        border = border_of(train, plan) if self.asked.features == "on" else None
        if border is None:
            return []
        found = [(one.at, one.value) for stretch in border.stretches for one in stretch.crossing]
        return found if all(value.name in plan.listening.whole for _, value in found) else []

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
            f"{bytes_text(kept_bytes(listening))} kept in rings, {bytes_text(ring_bytes(listening))} with new rows",
            f"{bytes_text(listening.plan.arena_bytes)} in all",
            f"settled {plural(listening.settle, 'call')} after an update",
            f"{bytes_text(self._keeper(summary))} beside the arena to keep the best of {KEEP_CALLS} calls (m_keep.h)",
            *([] if heard is None else [f"{grouped(sum(heard.values()))} instructions a call"]),
        ]

    def _keeper(self, summary: Summary) -> int:
        assert summary.plan.listening is not None
        held = self._held(summary.train, summary.plan)
        return keeper_bytes(summary.plan.listening, sum(value.size_bytes for _, value in held))

    def json(self, summary: Summary) -> dict[str, Any]:
        """Return rows, bytes and calls, as `pieces` do."""
        listening, counts = summary.plan.listening, summary.verify.counts
        assert listening is not None
        heard = None if counts is None else counts.hear
        return {
            "frames": listening.frames,
            "window": listening.window,
            "ring_bytes": ring_bytes(listening),
            "kept_bytes": kept_bytes(listening),
            "arena_bytes": listening.plan.arena_bytes,
            "settle_calls": listening.settle,
            "keeper_bytes": self._keeper(summary),
            "instructions": None if heard is None else sum(heard.values()),
        }


def keeper_bytes(listening: Listening, feature_bytes: int) -> int:
    """Return the bytes of an m_keep_t with its default numbers: of features, or (0) of rows."""
    if feature_bytes:
        return KEEP_SLOTS * (2 * _WORD + _padded(feature_bytes)) + 2 * _WORD
    frames = listening.graph.inputs[0]
    held = KEEP_CALLS - 1 + -(-listening.window // listening.frames)
    return _padded(held * frames.size_bytes) + (KEEP_CALLS + 3) * _WORD


def _padded(size: int) -> int:
    return -(-size // _WORD) * _WORD


def ring_bytes(listening: Listening) -> int:
    """Return the bytes of all rings, the places of a call's new rows included."""
    return sum(ring.size_bytes for ring in listening.graph.state)


def kept_bytes(listening: Listening) -> int:
    """Return the bytes of rings that are kept from call to call: all but the places of a call's new rows."""
    pushes = (node for node in listening.graph.nodes if node.op == "PushRows")
    return sum(operand(node, "ring").size_bytes - operand(node, "x").size_bytes for node in pushes)


def _byte(content: Any) -> str:
    """Return the byte that all of a ring is filled with: a zero point, or 0 in float32."""
    return str(int(content.flat[0]) & 0xFF)


PART = Listens
