"""Dropout in a training step: random masks from a count of samples, which is state; inference never drops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.dropout import HASH_BITS, CountAttrs, DropoutAttrs, RandomDropoutAttrs
from tinytrain_compile.ops.fixed_point import GOLDEN
from tinytrain_compile.ops.names import operand


@dataclass(frozen=True)
class Dropouts:
    """State of dropout. count: samples trained so far; active: a scalar that the generated code sets to 1 in a step."""

    count: Value
    active: Value


def with_dropout(
    builder: GraphBuilder, nodes: Iterable[Node], samples: int, seed: int | None
) -> tuple[list[Node], Dropouts | None]:
    """Return the forward nodes with every Dropout replaced by its training form, and the state that this reads, if any.

    seed None: nothing is dropped. A mask depends on the seed, the node's place among the others, the sample and the
    element in it. So it is the same for every micro-batch and plan, and in a second run.
    """
    given = list(nodes)
    if seed is None or not any(node.op == "Dropout" for node in given):
        return given, None
    count = builder.constant("dropout_samples", np.zeros((), np.int32))
    dropouts = Dropouts(count, Value(builder.unique("dropout_active"), (), "int32"))
    made: list[Node] = []
    place = 0
    for node in given:
        if isinstance(node.attrs, DropoutAttrs):
            place += 1
            scale = float(np.float32(1.0) / (np.float32(1.0) - np.float32(node.attrs.ratio)))
            own = (seed * GOLDEN + place) * GOLDEN & 0xFFFFFFFF
            limit = round(node.attrs.ratio * (1 << HASH_BITS))
            attrs = RandomDropoutAttrs(limit, scale, own - (1 << 32 if own >> 31 else 0), node.attrs.samples)
            inputs = (operand(node, "x"), dropouts.count, dropouts.active)
            node = replace(node, op="RandomDropout", inputs=inputs, attrs=attrs)
        made.append(node)
    return made, dropouts


def count_samples(builder: GraphBuilder, dropouts: Dropouts, samples: int) -> tuple[Value, Value]:
    """Emit the update of the count by a step; return (count, its new content)."""
    after = builder.emit("CountSamples", (dropouts.count,), CountAttrs(samples), name="count_samples")
    return dropouts.count, after
