"""The shapes of MLPerf Tiny with random weights, as ONNX files with samples to calibrate on: what their layers cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from testing.networks.models import Network, ds_cnn

SAMPLES = 16
MOBILENET = (
    *((8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)),
    *((128, 128, 1),) * 5,
    *((128, 256, 2), (256, 256, 1)),
)
"""Blocks of MobileNetV1 of width 0.25: input channels, output channels, stride."""


def autoencoder(inputs: int = 640, width: int = 128, code: int = 8) -> onnx.ModelProto:
    """Anomaly detection: 640-128x4-8-128x4-640, all dense."""
    net = Network("autoencoder", f"float[1, {inputs}] x", f"float[1, {inputs}] y", seed=3)
    x, sizes = "x", (inputs, *(width,) * 4, code, *(width,) * 4)
    for i, (before, after) in enumerate(itertools.pairwise(sizes)):
        x = net.relu(net.dense(f"fc{i}", x, before, after))
    net.node("output", f"y = Identity ({net.dense('last', x, width, inputs)})")
    return net.model()


def mobilenet_v1(size: int = 96) -> onnx.ModelProto:
    """Visual wake words: MobileNetV1 of width 0.25, two classes."""
    net = Network("vww", f"float[1, 3, {size}, {size}] x", "float[1, 2] y", seed=4)
    x = net.relu(net.conv("stem", "x", (8, 3, 3, 3), "strides = [2, 2], pads = [0, 0, 1, 1]"))
    for i, (before, after, stride) in enumerate(MOBILENET):
        pads = "pads = [1, 1, 1, 1]" if stride == 1 else "pads = [0, 0, 1, 1]"
        attributes = f"group = {before}, strides = [{stride}, {stride}], {pads}"
        x = net.relu(net.conv(f"dw{i}", x, (before, 1, 3, 3), attributes))
        x = net.relu(net.conv(f"pw{i}", x, (after, before, 1, 1), "pads = [0, 0, 0, 0]"))
    pooled = net.node("pool", f"pooled = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({pooled})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, MOBILENET[-1][1], 2)})")
    return net.model()


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "autoencoder": autoencoder,
    "ds-cnn": ds_cnn,
    "vww": mobilenet_v1,
}


def write_model(name: str, folder: Path) -> tuple[Path, Path]:
    """(NAME.onnx, NAME.npz with samples of its input), made in `folder`."""
    model = MODELS[name]()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    samples = np.random.default_rng(7).standard_normal((SAMPLES, *shape[1:])).astype(np.float32)
    paths = folder / f"{name}.onnx", folder / f"{name}.npz"
    onnx.save(model, paths[0])
    np.savez(paths[1], x=samples)
    return paths
