"""Optional parts of a project: the loop around the step (docs/training-loop.md). They know the public header alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import jinja2

from tinytrain_compile.emit.c_text import fitted
from tinytrain_compile.emit.checkpoint import checkpoint_bytes
from tinytrain_compile.emit.parts.delta import delta_table
from tinytrain_compile.ir.ram import RuntimeBuffer
from tinytrain_compile.ir.runtime_parts import ReplayRoom, RuntimeParts
from tinytrain_compile.ir.stages import TrainGraph

_WORD = 4
"""Bytes of a label's value, and what records are aligned to."""


@dataclass(frozen=True)
class Record:
    """What a reservoir keeps of a sample. x_bytes: of `what`; labels: values of 4 bytes, from byte `label_at` on.

    samples: that there is to be room for, 0 if the caller says it. hint: what to give a call, for its comment.
    """

    what: str
    hint: str
    x_bytes: int
    labels: int
    label_at: int
    record_bytes: int
    samples: int


def record_of(
    train: TrainGraph, parts: RuntimeParts, prefix: str = "m", feature_bytes: int = 0, counted: bool = False
) -> Record:
    """Of one sample of the input, as the slot holds it; of its features, where there are any.

    counted: every sample has a slot of its own (`emit/counted.py`).
    """
    together, image = train.micro_batch, train.graph.inputs[0]
    x_bytes, labels = feature_bytes or image.size_bytes // together, train.label.elements // together
    label_at = -(-x_bytes // _WORD) * _WORD
    slot = f"{prefix}_input(m)->values"
    hint = f"for instance those of sample k in {slot}" if together > 1 else f"for instance {slot}"
    if counted:
        hint = f"for instance {prefix}_input(m)[k].values"
    what = "one input of the model"
    if feature_bytes:
        what, hint = "the features of one input", f"as {prefix}_features writes them"
    return Record(what, hint, x_bytes, labels, label_at, label_at + labels * _WORD, parts.replay_samples)


def replay_room(train: TrainGraph, parts: RuntimeParts, feature_bytes: int = 0) -> ReplayRoom | None:
    """What a reservoir takes; None without one. feature_bytes: of a sample's features, which it then holds."""
    if "replay" not in parts.names:
        return None
    return ReplayRoom(record_of(train, parts, feature_bytes=feature_bytes).record_bytes, parts.replay_samples)


STORE_BYTES, STORE_UNIT_BYTES = 392, 256
"""Of m_slot_store_t on a machine of 32 bits: without its buffer for what is programmed at once, and that."""


def runtime_buffers(train: TrainGraph, parts: RuntimeParts, feature_bytes: int = 0) -> tuple[RuntimeBuffer, ...]:
    """RAM beside the arena that the parts need: kept samples, the best state, a store, a message.

    A reservoir of as many samples as the caller says, an average (behind callbacks) and small structures are the
    caller's statics: a board has its reserve for them.
    """
    room = replay_room(train, parts, feature_bytes)
    step = train.training_step
    found = [
        RuntimeBuffer("replay", _samples(parts.replay_samples), 0 if room is None else room.size_bytes),
        RuntimeBuffer("monitor", "best state (monitor)", checkpoint_bytes(step) if parts.best_in_ram else 0),
        RuntimeBuffer("store", "store", STORE_BYTES + STORE_UNIT_BYTES),
        RuntimeBuffer("delta", "message (delta)", delta_table(step).size_bytes if "delta" in parts.names else 0),
    ]
    return tuple(buffer for buffer in found if buffer.part in parts.names and buffer.size_bytes)


def _samples(count: int) -> str:
    """`1 kept sample`, `100 kept samples`."""
    return f"{count:,} kept sample{'' if count == 1 else 's'}"


def part_files(
    environment: jinja2.Environment, model: Mapping[str, object], train: TrainGraph, parts: RuntimeParts, prefix: str
) -> dict[str, str]:
    """File name -> text of a header and a C file for each part. model: what templates of the project know."""
    one_class = bool(model["classes"]) and not model["label_array"]
    feature_bytes = model["feature_bytes"]
    assert isinstance(feature_bytes, int)
    record = record_of(train, parts, prefix, feature_bytes, bool(model["counted"]))
    known = {**model, "replay": asdict(record), "one_class": one_class}
    return {
        f"{prefix}_{name}.{kind}": fitted(environment.get_template(f"{name}.{kind}.j2").render(known))
        for name in parts.names
        for kind in ("h", "c")
    }
