"""Random networks whose first layers can be computed row by row."""

from __future__ import annotations

import numpy as np
import onnx

from testing.networks.models import Network


def random_chain(seed: int) -> onnx.ModelProto:
    """Four to eight layers and a head.

    1x1, depthwise, dense and grouped 1x1 to 7x7, strides, dilations, uneven pads, pools, clips, residual adds.
    """
    random = np.random.default_rng([seed, 41])
    height, width, channels = (int(random.integers(low, high)) for low, high in ((7, 18), (6, 15), (1, 4)))
    chain = _Chain(seed, random, (channels, height, width))
    for index in range(int(random.integers(4, 9))):
        chain.layer(index)
        if random.integers(12) == 0:
            chain.pool(index)
    return chain.model()


def random_shares(model: onnx.ModelProto, seed: int) -> str:
    """A scheme that trains the biases of all layers of such a network, and some channels of a few convolutions, on
    either axis; where they do not follow each other, several slices are kept of a map."""
    random = np.random.default_rng([seed, 47])
    sizes = {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    entries: list[str] = []
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            lines = [f'[[update]]\nlayer = "{node.name}"\nbias = true\n']
            own, grouped = sizes[node.input[1]], any(a.name == "group" and a.i > 1 for a in node.attribute)
            axis = str(random.choice(["in", "in", "out"]))
            count = own[1 if axis == "in" else 0]
            if node.op_type == "Conv" and not grouped and count > 1 and random.integers(4):
                channels = random.permutation(count)[: int(random.integers(1, count))]
                lines.append(f'weight = {sorted(map(int, channels))}\naxis = "{axis}"\n')
            entries.append("".join(lines))
    return "\n".join(entries)


class _Chain:
    """Grows layer by layer: where it is, and what later layers may add to."""

    def __init__(self, seed: int, random: np.random.Generator, shape: tuple[int, int, int]) -> None:
        self._random, self._shape, self._x = random, shape, "x"
        sizes = ", ".join(map(str, shape))
        self._net = Network("chain", f"float[1, {sizes}] x", "float[1, 3] y", seed=seed)
        self._earlier: dict[tuple[int, int, int], str] = {}

    def layer(self, index: int) -> None:
        """A convolution, often with a clip, sometimes with a residual add."""
        random, (channels, _, _) = self._random, self._shape
        kinds = ["dense", "depthwise", "product", "product", "depthwise", "grouped"]
        kind = "dense" if index == 0 else str(random.choice(kinds))
        sizes = {"product": [1], "depthwise": [3, 3, 5, 7], "dense": [1, 3, 3, 5], "grouped": [1, 3]}
        kernel = [int(random.choice(sizes[kind]))] * 2
        if random.integers(6) == 0:
            kernel[int(random.integers(2))] = 1
        groups = {"depthwise": channels, "grouped": 2 if channels % 2 == 0 else 1}.get(kind, 1)
        dilation = 2 if kind != "product" and random.integers(8) == 0 else 1
        attributes = self._window(kernel, dilation, kind != "product")
        if attributes is None:
            return
        out = channels if kind == "depthwise" else int(random.choice([2, 3, 4, 6, 8]))
        out = out if groups == 1 or out % groups == 0 else groups
        text = f"{attributes}, dilations = [{dilation}, {dilation}], group = {groups}"
        self._x = self._net.conv(f"layer{index}", self._x, (out, channels // groups, *kernel), text)  # type: ignore[arg-type]
        self._shape = (out, *self._shape[1:])
        self._finish(index)

    def pool(self, index: int) -> None:
        """A pool of 2x2 or 3x3."""
        kind, size = str(self._random.choice(["MaxPool", "AveragePool"])), int(self._random.choice([2, 3]))
        attributes = self._window([size, size], 1, True)
        if attributes is not None:
            shape = f"kernel_shape = [{size}, {size}], {attributes}"
            self._x = self._net.node(f"pool{index}", f"pool{index} = {kind} <{shape}> ({self._x})")

    def _window(self, kernel: list[int], dilation: int, strides: bool) -> str | None:
        """Pads and strides, and the shape behind them; None if nothing is left."""
        random, (channels, *extents) = self._random, self._shape
        pads = [[int(random.integers(0, size // 2 + 1)) for _ in range(2)] for size in kernel]
        if random.integers(3):
            pads = [[size // 2 * dilation] * 2 if dilation == 1 else [size // 2] * 2 for size in kernel]
        steps = [int(random.choice([1, 1, 2])) if strides and extent > 4 else 1 for extent in extents]
        if strides and random.integers(2):
            steps = [steps[0]] * 2
        sizes = zip(extents, pads, kernel, steps, strict=True)
        left = [(n + sum(pad) - dilation * (size - 1) - 1) // step + 1 for n, pad, size, step in sizes]
        if min(left) < 1:
            return None
        self._shape = (channels, left[0], left[1])
        return f"pads = [{pads[0][0]}, {pads[1][0]}, {pads[0][1]}, {pads[1][1]}], strides = {steps}"

    def _finish(self, index: int) -> None:
        net, random = self._net, self._random
        kind = int(random.integers(4))
        if kind == 1:
            bounds = net.table("low", 0.0, np.float32), net.table("high", 6.0, np.float32)
            self._x = net.node(f"clip{index}", f"clip{index} = Clip ({self._x}, {', '.join(bounds)})")
        elif kind > 1:
            self._x = net.relu(self._x)
        if self._shape in self._earlier and random.integers(3):
            self._x = net.node(f"join{index}", f"join{index} = Add ({self._x}, {self._earlier[self._shape]})")
        self._earlier[self._shape] = self._x

    def model(self) -> onnx.ModelProto:
        """What there is, with a head."""
        net = self._net
        mean = net.node("mean", f"mean = GlobalAveragePool ({self._x})")
        flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
        net.node("logits", f"y = Identity ({net.dense('fc', flat, self._shape[0], 3)})")
        return net.model()
