"""The QDQ form of a float model, made by onnxruntime's quantiser as users make theirs."""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class _Samples(CalibrationDataReader):
    """Standard normal inputs."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        random = np.random.default_rng(seed)
        self._left = iter([{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        return next(self._left, None)


def qdq_form(model: onnx.ModelProto, source: Random, folder: Path) -> onnx.ModelProto:
    """8-bit activations and int8 weights; per channel, symmetric or not; leaves files in `folder`."""
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    float_path, path = folder / "float.onnx", folder / "qdq.onnx"
    float_path.write_bytes(model.SerializeToString())
    logging.disable(logging.WARNING)  # "please consider pre-processing"
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            float_path,
            path,
            _Samples(shape, source.randrange(1 << 30)),
            quant_format=QuantFormat.QDQ,
            activation_type=source.choice((QuantType.QInt8, QuantType.QInt8, QuantType.QUInt8)),
            weight_type=QuantType.QInt8,
            per_channel=bool(source.randrange(3)),
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": source.randrange(4) == 0},
        )
    return onnx.load(path)
