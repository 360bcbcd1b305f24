"""What a caller may say about how a model is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tinytrain_compile.ir.types import Array


@dataclass(frozen=True, eq=False)
class FrontendOptions:
    """Options of `load_model`.

    input_shapes: ONNX shapes of inputs with symbolic dimensions (--input-shape).
    input_layout: "chw" takes images in ONNX order, all others channels-last, as a camera gives them; "lc" takes signals
    channels-last, as the FIFO of a sensor gives them, all others in ONNX order.
    output: the one to be trained, of several (--model-output).
    label: the input that holds the labels, where the user names it (--label).
    constant_inputs: inputs to treat as weights (single-operator tests).
    classes: replace the last Gemm, MatMul or Conv by a fresh one with so many outputs (--classes).
    seed: draws the weights of that one (--seed).
    batch_norm: "fold" takes a BatchNormalization into the layer before it; "keep" leaves gamma and beta as they are.
    dropout: keep every Dropout in training mode (--dropout on).
    trainable, frozen: patterns of names of initializers that are parameters, or are not (--trainable, --frozen).
    chosen: whether these initializers are parameters, where the model has them: goes before rules.
    untie: equal values that an exporter has written once are parameters of their own (--untie).
    weights: an .npz with the weights of training artifacts (--weights).
    max_window: longest window of a file with state, in frames; None: the default (--max-window).
    any_batch: also accept several samples at once, several outputs and no input at all (single-operator tests).
    """

    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    input_layout: Literal["hwc", "chw", "lc", "cl"] = "hwc"
    label: str = ""
    output: str = ""
    constant_inputs: Mapping[str, Array] = field(default_factory=dict[str, Array])
    batch_norm: Literal["fold", "keep"] = "fold"
    dropout: bool = False
    trainable: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    chosen: Mapping[str, bool] = field(default_factory=dict[str, bool])
    untie: bool = False
    any_batch: bool = False
    classes: int | None = None
    seed: int = 0
    weights: Path | None = None
    max_window: int | None = None
