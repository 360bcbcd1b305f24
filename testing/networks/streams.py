"""Random networks over time that can be inferred row by row, and some that cannot: their layer that is in the way."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import onnx

from testing.networks.models import Network

FLAWS = ("padded", "late", "stepped", "raw")
"""Why a network cannot: padding in time, rows left out at its end, every second row, a dense layer on the input."""
MOST_HOP = 6
"""Most rows in a call: the product of the strides."""


@dataclass(frozen=True)
class _Stage:
    """A layer or some side by side: rows that one of its rows reads, its stride, rows it makes fewer than that says."""

    kind: str
    kernel: int
    dilation: int = 1
    stride: int = 1
    cut: int = 0

    @property
    def reach(self) -> int:
        """Rows that a row reads."""
        return (self.kernel - 1) * self.dilation + 1

    def rows(self, made: int) -> int:
        """Rows that it needs to make so many."""
        return (made - 1) * self.stride + self.reach + self.cut


@dataclass(frozen=True, eq=False)
class RandomStream:
    """A network, rows of a call (0: it cannot be streamed), and the layer that is in the way.

    channels_last: whether it is a signal whose channels must lie together (--input-layout lc).
    """

    model: onnx.ModelProto
    hop: int
    blamed: str
    channels_last: bool


def random_stream(seed: int, flawed: bool) -> RandomStream:
    """Two to five layers and a head, over 1 to 3 channels of up to 6 frequencies, or without any: a signal."""
    return _Stream(Random(f"stream {seed}"), seed, flawed).made()


class _Stream:
    def __init__(self, source: Random, seed: int, flawed: bool) -> None:
        self._source, self._seed = source, seed
        self._flaw = source.choice(FLAWS) if flawed else ""
        self._wide = (4, 6) if flawed else (2, 3, 4, 6)
        self._channels, self._width = source.choice((1, 1, 2, 3)), source.choice((0, 1, 2, 4, 6))
        self._blamed = ""

    def made(self) -> RandomStream:
        """The network; its rows follow from those that are left for the head."""
        source, stages = self._source, list[_Stage]()
        if self._flaw or not self._width:
            # Rows of fewer than four numbers are computed together, which no flaw disturbs; a signal has rows behind a
            # convolution.
            stages.append(_Stage("conv", 2))
        for _ in range(source.randint(2, 5)):
            stages.append(self._stage(MOST_HOP // _hop(stages)))
        if self._flaw == "late":
            stages.append(_Stage("conv", 3, stride=2, cut=1))
        self._bad = source.randrange(len(stages)) if self._flaw == "padded" else -1
        left = source.randint(2 if self._flaw == "stepped" else 1, 6)
        left = max(left, 2) if all(stage.rows(1) == 1 for stage in stages) else left  # one row is no stream
        rows = left
        for stage in reversed(stages):
            rows = stage.rows(rows)
        channels, self._signal = self._channels, not self._width
        shape = f"float[1, {channels}, {rows}{'' if self._signal else f', {self._width}'}] x"
        self._width = max(1, self._width)
        self._net = net = Network("stream", shape, "float[1, 3] y", seed=self._seed)
        if self._flaw == "raw":
            self._blamed = net.node("dense/Flatten", "flat = Flatten (x)") and "dense/"
            net.dense("dense", "flat", channels * rows * self._width, 3)
            net.node("end", "y = Identity (dense)")
            return RandomStream(net.model(), 0, self._blamed, self._signal and channels > 1)
        x = "x"
        for index, stage in enumerate(stages):
            x, rows = self._layer(index, stage, x, rows)
        left = rows
        if self._flaw == "stepped":
            x, left = self._slice("every", x, 0, left, 2), -(-left // 2)
            self._blamed = "every/Slice"
        output = self._head(x, left)
        return RandomStream(
            net.model(output=output), 0 if self._flaw else _hop(stages), self._blamed, self._signal and channels > 1
        )

    def _stage(self, most_stride: int) -> _Stage:
        source = self._source
        kind = source.choice(("conv", "conv", "depthwise", "depthwise", "pool", "branch", "residual", "slice", "relu"))
        if kind == "relu":
            return _Stage(kind, 1)
        if kind == "slice":
            return _Stage(kind, 1, cut=source.randint(1, 3))
        kernel, dilation = source.randint(1, 5), 2 if source.randrange(5) == 0 and kind != "pool" else 1
        if kind in ("branch", "residual"):
            return _Stage(kind, max(2, kernel), dilation)
        strides = [s for s in (1, 1, 1, 2, 3) if s <= min(most_stride, (kernel - 1) * dilation + 1)]
        return _Stage(kind, kernel, dilation, source.choice(strides))

    def _layer(self, index: int, stage: _Stage, x: str, rows: int) -> tuple[str, int]:
        """Write a stage; return its result and the rows of that."""
        name, source = f"layer{index}", self._source
        made = (rows - stage.reach - (stage.cut if stage.kind == "slice" else 0)) // stage.stride + 1
        if self._flaw == "late" and stage.cut and stage.kind == "conv":
            self._blamed = f"{name}/Conv"
        padded = index == self._bad
        if stage.kind in ("relu", "slice", "pool") and padded:
            stage, made = _Stage("pool" if stage.kind == "pool" else "conv", 2), rows - 1
        if stage.kind == "relu":
            op = source.choice(("Relu", "Tanh", "Sigmoid", "HardSwish"))
            return self._net.node(f"{name}/{op}", f"{name} = {op} ({x})"), rows
        if stage.kind == "slice":
            start = source.randint(0, stage.cut)
            return self._slice(name, x, start, start + made), made
        if stage.kind == "pool":
            return self._pool(name, stage, x, padded), made + padded
        if stage.kind in ("branch", "residual"):
            return self._side_by_side(name, stage, x, rows, padded), made + padded
        x = self._conv(name, stage.kind, stage, x, padded)
        return (self._net.relu(x) if source.randrange(3) else x), made + padded

    def _conv(self, name: str, kind: str, stage: _Stage, x: str, padded: bool = False, out: int = 0) -> str:
        source, channels = self._source, self._channels
        wide = source.randint(1, min(3, self._width))
        pads = source.randint(0, wide - 1) if wide > 1 else 0
        across = source.choice((1, 1, 2)) if not out else 1
        if out:
            wide, pads = 1, 0
        groups = channels if kind == "depthwise" else 1
        out = out or (channels if kind == "depthwise" else source.choice(self._wide))
        rows = stage.stride if padded else 0  # one more row
        attributes = (
            f"strides = {self._axes(stage.stride, across)}, dilations = {self._axes(stage.dilation, 1)}, "
            f"group = {groups}, pads = {[rows, 0] if self._signal else [rows, pads, 0, 0]}"
        )
        if padded:
            self._blamed = f"{name}/Conv"
        self._width = (self._width + pads - wide) // across + 1
        self._channels = out
        sizes = (out, channels // groups, *self._axes(stage.kernel, wide))
        return self._net.conv(name, x, sizes, attributes)  # type: ignore[arg-type]

    def _axes(self, along: int, across: int) -> list[int]:
        """Return numbers of the axes of time and, if there is one, of frequency."""
        return [along] if self._signal else [along, across]

    def _pool(self, name: str, stage: _Stage, x: str, padded: bool) -> str:
        op = self._source.choice(("MaxPool", "AveragePool"))
        self._blamed = f"{name}/{op}" if padded else self._blamed
        kernel, strides = self._axes(stage.kernel, 1), self._axes(stage.stride, 1)
        pads = [int(padded), *[0] * (1 if self._signal else 3)]
        text = f"kernel_shape = {kernel}, strides = {strides}, pads = {pads}"
        return self._net.node(f"{name}/{op}", f"{name} = {op} <{text}> ({x})")

    def _side_by_side(self, name: str, stage: _Stage, x: str, rows: int, padded: bool) -> str:
        """Two ways through the same moments, of which one is shorter: rows of it are left out at both ends."""
        source, channels, width = self._source, self._channels, self._width
        op = "Concat" if stage.kind == "branch" and source.randrange(2) else source.choice(("Add", "Add", "Mul", "Sub"))
        out = channels if stage.kind == "residual" else source.choice(self._wide)
        long = self._conv(f"{name}_long", "conv", stage, x, padded, out)
        short, reach = x, 1
        if stage.kind == "branch":
            less = _Stage("conv", source.randint(1, stage.kernel - 1), stage.dilation)
            self._channels, self._width = channels, width
            short, reach = self._conv(f"{name}_short", "conv", less, x, False, out), less.reach
        more = stage.reach - reach
        start = source.randint(0, more)
        made = rows - stage.reach + 1
        if padded:
            made, start = made + 1, max(0, start - 1)
        short = self._slice(f"{name}_same", short, start, start + made)
        if op == "Concat":
            self._channels = 2 * out
            return self._net.node(f"{name}/Concat", f"{name} = Concat <axis = 1> ({long}, {short})")
        return self._net.node(f"{name}/{op}", f"{name} = {op} ({long}, {short})")

    def _slice(self, name: str, x: str, start: int, end: int, step: int = 1) -> str:
        tables = [
            self._net.table(f"{name}_{what}", [n])
            for what, n in (("from", start), ("to", end), ("axis", 2), ("by", step))
        ]
        return self._net.node(f"{name}/Slice", f"{name} = Slice ({x}, {', '.join(tables)})")

    def _head(self, x: str, rows: int) -> str:
        net, source, channels, width = self._net, self._source, self._channels, self._width
        kind = source.choice(("flatten", "flatten", "mean", "max", "conv", "over time", "two"))
        inputs = channels * rows * width
        if kind in ("mean", "max"):
            op = {"mean": "GlobalAveragePool", "max": "GlobalMaxPool"}[kind]
            x, inputs = net.node(f"pool/{op}", f"pooled = {op} ({x})"), channels
        if kind == "over time":
            x = net.node("over/ReduceMean", f"over = ReduceMean <axes = [2], keepdims = 1> ({x})")
            inputs = channels * width
        if kind == "conv":
            x = net.relu(net.conv("whole", x, (4, channels, *self._axes(rows, width)), "group = 1"))
            inputs = 4
        x = net.node("flat", f"flat = Flatten ({x})")
        if kind == "two":
            x, inputs = net.relu(net.dense("hidden", x, inputs, 5)), 5
        return "float[1, 3] " + net.dense("y", x, inputs, 3)


def _hop(stages: list[_Stage]) -> int:
    hop = 1
    for stage in stages:
        hop *= stage.stride
    return hop
