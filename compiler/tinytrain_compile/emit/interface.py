"""Interface of a plan for its callers: inputs, outputs, labels and rates, for the header and the API."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinytrain_compile.emit.c_text import C_TYPES, comment_text
from tinytrain_compile.emit.sequence import Sequencer
from tinytrain_compile.emit.tables import float_text
from tinytrain_compile.ir.stages import InputSlot, Interface, MemoryPlan, StateSlot, TrainGraph, Velocity
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.loss import NllAttrs, classes_of
from tinytrain_compile.ops.names import error_exponents

_IMAGE_RANK, _SIGNAL_RANK = 4, 3
"""Axes of images (samples, height, width, channels) and of signals (samples, length, channels)."""


def interface_of(train: TrainGraph, plan: MemoryPlan, prefix: str, alignment_bytes: int) -> Interface:
    """Return the interface for callers of a plan's C, before parts of the project change it."""
    state = tuple(
        StateSlot(value.name, offset, value.size_bytes, value.dtype, memory)
        for value in train.graph.state
        for memory, offset in (plan.place(plan.offsets[value.name]),)
    )
    return Interface(
        prefix=prefix,
        input_elements=train.graph.inputs[0].elements,
        output_elements=train.graph.outputs[0].elements // train.micro_batch,
        label_ctype=label_ctype(train),
        label_elements=train.label.elements,
        arena_bytes=plan.arena_bytes,
        persistent_bytes=plan.persistent_bytes,
        alignment_bytes=alignment_bytes,
        accumulates=train.batch > 1,
        state=state,
        micro_batch=train.micro_batch,
        input_dtype=train.graph.inputs[0].dtype,
        exact=train.integer,
        further_bytes=tuple(memory.used_bytes for memory in plan.further),
        terms=train.terms,
        transient_offsets=transient_offsets(plan),
        more_inputs=slots(train),
        trains=train.reads_state_of is None,
    )


def transient_offsets(plan: MemoryPlan) -> tuple[int, ...]:
    """Return the end of the persistent buffers in every memory: they are at its bottom."""
    ends = [0] * (1 + len(plan.further))
    for buffer in plan.buffers:
        if buffer.kind in ("header", "state", "accumulator"):
            memory, offset = plan.place(buffer.offset)
            ends[memory] = max(ends[memory], offset + buffer.size_bytes)
    return tuple(ends)


def input_data(train: TrainGraph, plan: MemoryPlan, sequencer: Sequencer) -> dict[str, object]:
    """Tell the templates where the inputs are, and how they are checked.

    float_input_bytes: of the slots, 0 if all elements are integers. float_label_bytes: of labels that a float32 loss
    reads; in an integer loss a NaN has a meaning (docs/int8.md). step_checks, infer_checks: conditions in C under which
    an input is NaN or infinite, for all inputs and for those that an inference reads.
    """
    image = train.graph.inputs[0]
    floats = [value for value in train.data if value.dtype == "float32"]
    pointers = {v.name: sequencer.pointer(v.name) if v.name in plan.offsets else "" for v in train.data}
    checks = {value.name: f"!tt_holds_finite({pointers[value.name]}, {value.size_bytes}u)" for value in floats}
    inferred, label_bytes = _inferred(train), train.label.size_bytes if _is_checked(train) else 0
    return {
        "input": pointers[image.name],
        "float_input_bytes": sum(value.size_bytes for value in floats),
        "float_label_bytes": label_bytes,
        "label_checks": [f"!tt_are_finite(label, {label_bytes}u)"] if label_bytes else [],
        "step_checks": list(checks.values()),
        "infer_checks": [check for name, check in checks.items() if name in inferred],
        "more_inputs": [_slot_data(*pair, pointers) for pair in zip(train.data[1:], slots(train), strict=True)],
        "first_input": comment_text(image.origin or image.name),
        "input_quant": image.quant if image.dtype == "int8" else None,
        "input_zero_more": 0,
        "input_shape": "x".join(map(str, image.shape)),
        "stored_output": train.stored_output,
        "output_shape": "x".join(map(str, train.of_one(train.graph.outputs[0]))),
    }


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
    """Return names of the inputs that an inference reads; for a model of one input, that one."""
    needed = train.graph.ancestors(train.graph.outputs)
    read = {value.name for node in train.graph.nodes if node.name in needed for value in node.inputs}
    return frozenset(value.name for value in train.data if value.name in read or len(train.data) == 1)


def _slot_data(value: Value, slot: InputSlot, pointers: Mapping[str, str]) -> dict[str, object]:
    """Return the templates' values for an input besides the first."""
    return {
        "n": slot.number,
        "name": comment_text(slot.name),
        "ctype": C_TYPES[slot.dtype],
        "elements": slot.elements,
        "shape": value.shape,
        "quant": value.quant if slot.dtype == "int8" else None,
        "pointer": pointers[value.name],
    }


def shape_data(train: TrainGraph, interface: Interface, one_sample: bool = False) -> dict[str, object]:
    """Tell the templates C types and shapes.

    image: height, width and channels of an input of four axes, and whether channels come last. signal: length and
    channels of a signal whose channels come last on request. one_sample: shapes of one sample, not of all of a call.
    """
    given = train.graph.inputs[0]
    image = None
    if len(given.shape) == _IMAGE_RANK:
        last = given.layout == "NHWC"
        height, width, channels = given.shape[1:] if last else (*given.shape[2:], given.shape[1])
        image = {"last": last, "height": height, "width": width, "channels": channels}
    asked = len(given.shape) == _SIGNAL_RANK and given.layout == "NWC"
    return {
        "signal": {"length": given.shape[1], "channels": given.shape[2]} if asked else None,
        "input_ctype": C_TYPES[interface.input_dtype],
        "image": image,
        "shapes": [
            ("INPUT", "the input", train.of_one(given) if one_sample else given.shape),
            ("OUTPUT", "the output of one sample", train.of_one(train.graph.outputs[0])),
            ("LABEL", "the label", train.of_one(train.label) if one_sample else train.label.shape),
        ],
    }


def training_data(train: TrainGraph, sequencer: Sequencer, prefix: str) -> dict[str, object]:
    """Tell the templates where the scalars of a step are, and how it uses labels."""
    return {
        "loss": sequencer.pointer(train.loss.name),
        "rate": sequencer.pointer(train.learning_rate.name),
        "rate_float": sequencer.typed("F32", train.learning_rate.name),
        "rate_int": sequencer.typed("I32", train.rate.name) if train.rate else "",
        "velocity": None if train.velocity is None else _velocity(train.velocity),
        "first_rate": float(train.graph.constants[train.learning_rate.name]),
        "exponent": _first_exponent(train, sequencer),
        "dropout": sequencer.typed("I32", train.dropout.name) if train.dropout else "",
        "inverse": sequencer.typed("F32", train.inverse_count.name) if train.inverse_count else "",
        **label_data(train, sequencer, prefix),
    }


def _velocity(velocity: Velocity) -> dict[str, str]:
    """Write the factors of a velocity as C constants of float32; "" for a missing one."""
    factors = {"kept": velocity.kept, "stored": velocity.stored, "ahead": velocity.ahead}
    return {name: "" if value is None else f"{float(np.float32(value))!r}f" for name, value in factors.items()}


def _first_exponent(train: TrainGraph, sequencer: Sequencer) -> str:
    """Find an exponent whose state shows whether a step has found all of them; "" if errors have none."""
    exponents = error_exponents(train.graph.nodes)
    return sequencer.typed("I32", exponents[0]) if exponents else ""


def label_data(train: TrainGraph, sequencer: Sequencer, prefix: str) -> dict[str, object]:
    """Tell the templates which labels there are, their weights, and what these divide."""
    terms, weights = train.terms, train.terms.weights
    several = train.label.elements > 1
    return {
        "label_array": several,
        "label_read": any(value == train.label for node in train.graph.nodes for value in node.inputs),
        "label_type": label_ctype(train) if several else f"{prefix}_label_t",
        "label_elements": f"{prefix.upper()}_LABEL_ELEMENTS",
        "label_values": "labels->values" if several else "label",
        "classes": classes_of(train.graph.nodes, train.label.name),
        "ignored": _ignored(train),
        "without_weight": weights.nothing if weights else (),
        "label_weights": [float_text(weight) for weight in weights.table] if weights else [],
        "weight_sum": sequencer.typed("F32", train.weight_sum.name) if train.weight_sum else "",
        "by_weight": train.weight_sum is not None and terms.divisor == "weights",
        "step_samples": train.batch if train.in_place and terms.divisor != "one" else 1,
        "loss_text": _loss_text(train),
    }


def label_ctype(train: TrainGraph) -> str:
    """Return the C type of one label."""
    return "int32_t" if train.label.dtype == "int32" else "float"


def _loss_text(train: TrainGraph) -> str:
    """Describe the loss that a call reports, for its header comment."""
    of = "their" if train.micro_batch > 1 else "its"
    texts = {
        "samples": f"{of} mean loss" if train.micro_batch > 1 else "its loss",
        "weights": f"the mean of {of} labels' losses by their weights",
        "one": f"the sum of {of} labels' losses",
    }
    return texts[train.terms.divisor]


def _ignored(train: TrainGraph) -> int | None:
    """Find the label that does not count, if there is one and a label can hold it."""
    for node in train.graph.nodes:
        if isinstance(node.attrs, NllAttrs):
            index = node.attrs.ignore_index
            return index if index is not None and -(2**31) < index < 2**31 else None
    return None
