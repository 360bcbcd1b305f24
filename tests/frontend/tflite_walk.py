"""The numpy reference of a .tflite file's integer graph, node by node on LiteRT's own values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tests.quantize.nets import prepared
from tinytrain_compile.driver.file_check.litert import compare_integers
from tinytrain_compile.driver.file_check.litert_file import Stored
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training


def stored_values(runner: Any) -> dict[str, Stored]:
    """Every tensor that LiteRT stores in eight bits, after a run."""
    found: dict[str, Stored] = {}
    for one in runner.get_tensor_details():
        scale, zero = one["quantization"]
        if np.dtype(one["dtype"]).name in ("int8", "uint8") and scale:
            try:
                found[one["name"]] = Stored(runner.get_tensor(one["index"]).copy(), float(np.float32(scale)), zero)
            except ValueError:  # nothing was allocated for it
                continue
    return found


def walk(proto: onnx.ModelProto, x: np.ndarray, steps: Sequence[Mapping[str, Stored]]) -> dict[str, np.ndarray]:
    """Steps between us and LiteRT for every tensor that both have; each node reads LiteRT's integers.

    x: the input as int8, in the axes of the file. steps: all tensors of LiteRT, in each step of the stream.
    """
    known = prepared(proto, head="int8")
    floats = build_training(known, resolve_update(known.graph, "last:1"), TrainingOptions(loss="mse"))
    train, one = quantise(floats, QuantOptions(0, "sr8", False)), known.data[0]
    compared = compare_integers(known, train, x.transpose(one.perm).reshape(one.shape), steps)
    return {tensor.name: tensor.off for tensor in compared}
