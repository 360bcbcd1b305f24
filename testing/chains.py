"""Random networks whose first layers can be computed row by row."""

from __future__ import annotations

import numpy as np
import onnx

from testing.models import Network


def random_chain(seed: int) -> onnx.ModelProto:
    """Four to eight layers (1x1; depthwise and dense 3x3 to 7x7; strides, uneven pads, residual adds), then a head."""
    random = np.random.default_rng([seed, 41])
    height, width, channels = (int(random.integers(low, high)) for low, high in ((7, 18), (6, 15), (1, 4)))
    net = Network("chain", f"float[1, {channels}, {height}, {width}] x", "float[1, 3] y", seed=seed)
    x, earlier = "x", dict[tuple[int, int, int], str]()
    for index in range(int(random.integers(4, 9))):
        kind = "dense" if index == 0 else str(random.choice(["dense", "depthwise", "product", "product", "depthwise"]))
        size = 1 if kind == "product" else int(random.choice([3, 3, 5, 7] if kind == "depthwise" else [1, 3, 3, 5]))
        stride = 1 if kind == "product" or min(height, width) < 5 else int(random.choice([1, 1, 2]))
        before, behind = (int(random.integers(0, size // 2 + 1)) for _ in range(2))
        if min(height, width) + before + behind < size or random.integers(3):
            before = behind = size // 2
        out = channels if kind == "depthwise" else int(random.choice([3, 4, 6, 8]))
        groups = f", group = {channels}" if kind == "depthwise" else ""
        attributes = f"pads = [{before}, {before}, {behind}, {behind}], strides = [{stride}, {stride}]{groups}"
        inner = 1 if kind == "depthwise" else channels
        x = net.conv(f"layer{index}", x, (out, inner, size, size), attributes)
        height, width = ((extent + before + behind - size) // stride + 1 for extent in (height, width))
        channels, kept = out, (out, height, width)
        if random.integers(2):
            x = net.relu(x)
        if kept in earlier and random.integers(3):
            x = net.node(f"join{index}", f"join{index} = Add ({x}, {earlier[kept]})")
        earlier[kept] = x
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, channels, 3)})")
    return net.model()
