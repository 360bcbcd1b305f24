"""Where a caller puts samples: the input slot, or the place of the next row; and what of it may be no number."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.emit.names import comment_text
from tinytrain_compile.emit.sequence import Sequencer
from tinytrain_compile.emit.weights import C_TYPES
from tinytrain_compile.ir.stages import InputSlot, MemoryPlan, TrainGraph
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

    float_input_bytes: of the slots, 0 if all elements are integers. float_label_bytes: of labels that a float32 loss
    reads; in an integer loss a NaN has a meaning (docs/int8.md). step_checks, infer_checks: conditions in C under which
    an input is no number, of all inputs and of those that an inference reads.
    """
    image, stream = image_of(train, plan), line_stream(plan)
    floats = [value for value in (image, *train.data[1:]) if value.dtype == "float32"]
    pointers = {value.name: "" if stream else sequencer.pointer(value.name) for value in train.data}
    checks = {value.name: f"!tt_holds_finite({pointers[value.name]}, {value.size_bytes}u)" for value in floats}
    inferred = _inferred(train)
    checked = {
        "float_input_bytes": sum(value.size_bytes for value in floats),
        "float_label_bytes": train.label.size_bytes if _is_checked(train) else 0,
        "step_checks": [] if stream else list(checks.values()),
        "infer_checks": [] if stream else [check for name, check in checks.items() if name in inferred],
        "more_inputs": [_slot_data(*pair, pointers) for pair in zip(train.data[1:], slots(train), strict=True)],
    }
    if stream is None:
        return {"input": pointers[image.name], "lines": None, **checked}
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


def slots(train: TrainGraph) -> tuple[InputSlot, ...]:
    """Return the data inputs besides the first."""
    return tuple(
        InputSlot(number, value.origin or value.name, value.elements, value.dtype)
        for number, value in enumerate(train.data[1:], 2)
    )


def _is_checked(train: TrainGraph) -> bool:
    read = any(value.name == train.label.name for node in train.graph.nodes for value in node.inputs)
    return read and train.label.dtype == "float32" and not train.integer


def _inferred(train: TrainGraph) -> frozenset[str]:
    """Return names of the inputs that an inference reads; of a model of one input, this."""
    needed = train.graph.ancestors(train.graph.outputs)
    read = {value.name for node in train.graph.nodes if node.name in needed for value in node.inputs}
    return frozenset(value.name for value in train.data if value.name in read or len(train.data) == 1)


def _slot_data(value: Value, slot: InputSlot, pointers: Mapping[str, str]) -> dict[str, object]:
    """Tell the templates of an input besides the first."""
    return {
        "n": slot.number,
        "name": comment_text(slot.name),
        "ctype": C_TYPES[slot.dtype],
        "elements": slot.elements,
        "shape": value.shape,
        "quant": value.quant if slot.dtype == "int8" else None,
        "pointer": pointers[value.name],
    }
