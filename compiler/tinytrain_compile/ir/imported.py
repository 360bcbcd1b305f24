"""What the frontend hands to the stages behind it: the forward graph and how its ONNX model relates to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinytrain_compile.ir.types import Array, Graph

LossKind = Literal["nll", "softmax-ce"]
LossReduction = Literal["mean", "sum"]


@dataclass(frozen=True, eq=False)
class ImportedLoss:
    """The loss operator that a model brings along (contract 2).

    kind: "softmax-ce" reads raw scores, "nll" reads log-probabilities.
    class_weights: one float32 factor per class, or None.
    ignore_index: the label whose samples do not count, or None.
    axis: the class axis of the graph's output (in the graph's own axis order).
    label / label_shape: the ONNX input that holds the labels, and its shape (the output's without the class axis).
    origin: the ONNX node.
    """

    kind: LossKind
    reduction: LossReduction
    class_weights: Array | None
    ignore_index: int | None
    axis: int
    label: str
    label_shape: tuple[int, ...]
    origin: str


@dataclass(frozen=True, eq=False)
class ImportedModel:
    """A forward graph with one data input and one output, and the way from ONNX arrays to it.

    contract: 1 is a forward model (the user names the loss), 2 a model that ends in its loss.
    graph: for contract 2 it ends where the loss reads it.
    input_shape / output_shape: ONNX shapes, batch included.
    input_perm / output_perm: graph array = ONNX array transposed by this permutation.
    quantised: the ONNX model was a quantised one; its ranges are the values' `quant`.
    """

    graph: Graph
    contract: Literal[1, 2]
    loss: ImportedLoss | None
    input_name: str
    input_shape: tuple[int, ...]
    input_perm: tuple[int, ...]
    output_name: str
    output_shape: tuple[int, ...]
    output_perm: tuple[int, ...]
    quantised: bool = False
