"""Where a caller puts samples: the input slot, or the place of the next row; and what of it may be no number."""

from __future__ import annotations

from tinytrain_compile.emit.sequence import Sequencer
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.ops.row_form import row_pitch
from tinytrain_compile.ops.stream import StreamAttrs


def line_stream(plan: MemoryPlan) -> Node | None:
    """Find the stream that takes the image row by row from the caller, if the plan has one."""
    return next((node for node in plan.order if takes_lines(node)), None)


def image_of(train: TrainGraph, plan: MemoryPlan) -> Value:
    """Return the image as the caller gives it."""
    stream = line_stream(plan)
    image = train.graph.inputs[0]
    return image if stream is None else next(value for value in stream.inputs if value.name == image.name)


def input_data(train: TrainGraph, plan: MemoryPlan, sequencer: Sequencer) -> dict[str, object]:
    """Tell the templates where the image lies (where its next row does, if it comes by rows), and what is checked.

    float_input_bytes: of the slot, 0 if its elements are integers. float_label_bytes: of labels that a float32 loss
    reads; in an integer loss a NaN has a meaning (docs/int8.md).
    """
    image, stream = image_of(train, plan), line_stream(plan)
    checked = {
        "float_input_bytes": image.size_bytes if image.dtype == "float32" else 0,
        "float_label_bytes": train.label.size_bytes if train.label.dtype == "float32" and not train.integer else 0,
    }
    if stream is None:
        return {"input": sequencer.pointer(image.name), "lines": None, **checked}
    attrs = stream.attrs
    assert isinstance(attrs, StreamAttrs), "a plan whose image comes row by row has a stream that takes it"
    rows = attrs.nodes[0].outputs[0]
    ring = next((ring for ring in attrs.rings if ring.name == rows.name), None)
    at = sequencer.pointer(rows.name) if ring is None else sequencer.scratch(stream, ring.offset)
    slot = "m->rows" if ring is None else f"m->rows % {ring.rows}u"
    lines = {
        "rows": image.shape[1],
        "row_elements": image.elements // image.shape[1],
        "next": f"{at} + {slot} * {row_pitch(rows)}u",
    }
    return {"input": "", "lines": lines, **checked}
