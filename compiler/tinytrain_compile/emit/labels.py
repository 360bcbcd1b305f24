"""What the generated code knows about labels: which there are, what they weigh, and what divides by that."""

from __future__ import annotations

from tinytrain_compile.emit.sequence import Sequencer
from tinytrain_compile.emit.weights import float_text
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.loss import NllAttrs, classes_of


def label_data(train: TrainGraph, sequencer: Sequencer, prefix: str) -> dict[str, object]:
    """For the templates."""
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
        "divided": terms.divided,
        "divisor": terms.divisor,
        "step_samples": train.batch if train.in_place and terms.divisor != "one" else 1,
        "loss_text": _loss_text(train),
    }


def label_ctype(train: TrainGraph) -> str:
    """C type of one label."""
    return "int32_t" if train.label.dtype == "int32" else "float"


def _loss_text(train: TrainGraph) -> str:
    """What a call reports, for its header comment."""
    of = "their" if train.micro_batch > 1 else "its"
    texts = {
        "samples": f"{of} mean loss" if train.micro_batch > 1 else "its loss",
        "weights": f"the mean of {of} labels' losses by their weights",
        "one": f"the sum of {of} labels' losses",
    }
    return texts[train.terms.divisor]


def _ignored(train: TrainGraph) -> int | None:
    """The label that does not count, if there is one and a label can hold it."""
    for node in train.graph.nodes:
        if isinstance(node.attrs, NllAttrs):
            index = node.attrs.ignore_index
            return index if index is not None and -(2**31) < index < 2**31 else None
    return None
