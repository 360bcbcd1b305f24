"""An image that comes row by row from the caller: the place of the next row, and the calls for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.input_lines import BYTE_ZERO, takes_lines
from tinytrain_compile.ops.rows import row_pitch
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.parts.part import Part


class InputLines(Part):
    """`m_begin`, `m_push_rows` and the functions that end the calls that they begin."""

    name, has_fragments = "input_lines", True
    flag, one_input, not_with = "--input-lines", True, ("stream=off", "micro_batch", "cycles", "slices")

    def prepare(self, code: PlanCode) -> None:
        """Leave the stream that takes the rows, and the nodes before it, out of the calls that end an image."""
        step = [node for node in code.plan.order if node.phase == "step"]
        code.first = 1 + step.index(_stream_of(code.plan))
        image = _image_of(code.train, code.plan)
        code.interface = replace(code.interface, input_dtype=image.dtype, input_rows=image.shape[1])

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Tell where the next row goes, and the functions that run with a row and before the first."""
        stream, image, sequencer = _stream_of(code.plan), _image_of(code.train, code.plan), code.sequencer
        attrs = stream.attrs
        assert isinstance(attrs, StreamAttrs), "what takes rows is a stream"
        rows = attrs.nodes[0].outputs[0]
        ring = next((ring for ring in attrs.rings if ring.name == rows.name), None)
        at = sequencer.pointer(rows.name) if ring is None else sequencer.scratch(stream, ring.offset)
        slot = "m->rows" if ring is None else f"m->rows % {ring.rows}u"
        lines = {
            "rows": image.shape[1],
            "row_elements": image.elements // image.shape[1],
            "next": f"{at} + {slot} * {row_pitch(rows)}u",
        }
        step = [node for node in code.plan.order if node.phase == "step"]
        # Nodes before the stream need no image; the stream itself continues with every row.
        begin = sequencer.sections("begin", step[: code.first - 1])
        row = sequencer.sections("take_row", [stream])
        return {
            "lines": lines,
            "begin_parts": begin,
            "row_parts": row,
            "sections": [*begin, *row, *code.model["sections"]],
            "open_call": "call",
            "first_fields": ["m->call = 0;", "m->rows = 0;"],
            "infer_call": "infer_end",
            "accumulate_call": "accumulate_end",
            "train_call": "train_end",
            "callbacks": "callbacks",
            "input_text": "an image",
            "step_text": "Ends a training step that has all its rows",
            "float_input_bytes": image.size_bytes if image.dtype == "float32" else 0,
            "step_checks": [],  # each row was checked on arrival
            "infer_checks": [],
            "input_zero_more": BYTE_ZERO if image.dtype == "uint8" else 0,
        }


def _stream_of(plan: MemoryPlan) -> Node:
    """Find the stream that takes the image."""
    return next(node for node in plan.order if takes_lines(node))


def _image_of(train: TrainGraph, plan: MemoryPlan) -> Value:
    """Return the image in the caller's form."""
    return next(value for value in _stream_of(plan).inputs if value.name == train.graph.inputs[0].name)


PART = InputLines
