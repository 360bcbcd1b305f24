"""Small networks of the kinds that people train on microcontrollers, in ONNX text with random weights."""

from __future__ import annotations

import numpy as np
import onnx

from tests.frontend.models import parse

Weights = dict[str, np.ndarray]


class Net:
    """Lines of ONNX text and their weights, written layer by layer."""

    def __init__(self, inputs: str, output: str, seed: int = 0) -> None:
        self.header = f"net ({inputs}) => ({output})"
        self._rng = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.weights: Weights = {}

    def weight(self, name: str, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:])) or 1
        self.weights[name] = (self._rng.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32)
        return name

    def table(self, name: str, values: object, dtype: type = np.int64) -> str:
        self.weights[name] = np.asarray(values, dtype)
        return name

    def add(self, line: str) -> None:
        self.lines.append(line)

    def conv(self, y: str, x: str, shape: tuple[int, ...], attrs: str = "") -> None:
        w, b = self.weight(f"{y}_w", *shape), self.weight(f"{y}_b", shape[0])
        self.add(f"{y} = Conv <{attrs}> ({x}, {w}, {b})" if attrs else f"{y} = Conv ({x}, {w}, {b})")

    def batch_norm(self, y: str, x: str, channels: int) -> None:
        names = [self.weight(f"{y}_{part}", channels) for part in ("gamma", "beta", "mean")]
        self.weights[f"{y}_var"] = self._rng.uniform(0.5, 2.0, channels).astype(np.float32)
        self.add(f"{y} = BatchNormalization ({x}, {', '.join(names)}, {y}_var)")

    def dense(self, y: str, x: str, inputs: int, outputs: int) -> None:
        w, b = self.weight(f"{y}_w", outputs, inputs), self.weight(f"{y}_b", outputs)
        self.add(f"{y} = Gemm <transB = 1> ({x}, {w}, {b})")

    def model(self, opset: int = 17) -> onnx.ModelProto:
        return parse(self.header + " {\n" + "\n".join(self.lines) + "\n}", self.weights, opset)


def mlp() -> onnx.ModelProto:
    net = Net("float[1, 20] x", "float[1, 5] y")
    net.dense("h1", "x", 20, 16)
    net.add("a1 = Relu (h1)")
    net.add(f"m2 = MatMul (a1, {net.weight('h2_w', 16, 12)})")
    net.add(f"h2 = Add (m2, {net.weight('h2_b', 12)})")
    net.add("a2 = Tanh (h2)")
    net.dense("y", "a2", 12, 5)
    return net.model()


def ds_cnn() -> onnx.ModelProto:
    """Keyword spotting on a 49x10 spectrogram: depthwise separable convolutions with batch normalisation."""
    net = Net("float[N, 1, 49, 10] x", "float[N, 12] y")
    net.conv("c0", "x", (8, 1, 10, 4), 'strides = [2, 2], auto_pad = "SAME_UPPER"')
    net.batch_norm("n0", "c0", 8)
    net.add("a0 = Relu (n0)")
    for i in (1, 2):
        net.conv(f"d{i}", f"a{i - 1}", (8, 1, 3, 3), "group = 8, pads = [1, 1, 1, 1]")
        net.batch_norm(f"dn{i}", f"d{i}", 8)
        net.add(f"da{i} = Relu (dn{i})")
        net.conv(f"p{i}", f"da{i}", (8, 8, 1, 1))
        net.batch_norm(f"pn{i}", f"p{i}", 8)
        net.add(f"a{i} = Relu (pn{i})")
    net.add("g = AveragePool <kernel_shape = [25, 5]> (a2)")
    net.add(f"r = Reshape (g, {net.table('flat', [-1, 8])})")
    net.dense("fc", "r", 8, 12)
    net.add("y = Softmax <axis = 1> (fc)")
    return net.model()


def resnet8() -> onnx.ModelProto:
    net = Net("float[1, 3, 32, 32] x", "float[1, 10] y")
    net.conv("c0", "x", (16, 3, 3, 3), "pads = [1, 1, 1, 1]")
    net.batch_norm("n0", "c0", 16)
    net.add("s0 = Relu (n0)")
    channels = 16
    for i, width in enumerate((16, 32, 64), start=1):
        stride = 1 if i == 1 else 2
        net.conv(f"c{i}a", f"s{i - 1}", (width, channels, 3, 3), f"pads = [1, 1, 1, 1], strides = [{stride}, {stride}]")
        net.batch_norm(f"n{i}a", f"c{i}a", width)
        net.add(f"r{i} = Relu (n{i}a)")
        net.conv(f"c{i}b", f"r{i}", (width, width, 3, 3), "pads = [1, 1, 1, 1]")
        net.batch_norm(f"n{i}b", f"c{i}b", width)
        shortcut = f"s{i - 1}"
        if stride == 2:
            net.conv(f"k{i}", shortcut, (width, channels, 1, 1), "strides = [2, 2]")
            shortcut = f"k{i}"
        net.add(f"j{i} = Add (n{i}b, {shortcut})")
        net.add(f"s{i} = Relu (j{i})")
        channels = width
    net.add("g = GlobalAveragePool (s3)")
    net.add("f = Flatten (g)")
    net.dense("y", "f", 64, 10)
    return net.model()


def transformer() -> onnx.ModelProto:
    """One encoder block on float embeddings: 6 tokens of 16 numbers, 2 heads, GELU by erf as exporters write it."""
    net = Net("float[1, 6, 16] x", "float[1, 4] y")
    net.add(f"e = Add (x, {net.weight('position', 1, 6, 16)})")
    for part in "qkv":
        net.add(f"{part}m = MatMul (e, {net.weight(f'{part}_w', 16, 16)})")
        net.add(f"{part}b = Add (shift_{part}, {part}m)")
        net.weight(f"shift_{part}", 16)
        net.add(f"{part}r = Reshape ({part}b, heads)")
        perm = "[0, 2, 3, 1]" if part == "k" else "[0, 2, 1, 3]"
        net.add(f"{part} = Transpose <perm = {perm}> ({part}r)")
    net.table("heads", [0, 0, 2, 8])
    net.add("s = MatMul (q, k)")
    net.table("root", 8**0.5, np.float32)
    net.add("sc = Div (s, root)")
    net.add("p = Softmax <axis = -1> (sc)")
    net.add("o = MatMul (p, v)")
    net.add("ot = Transpose <perm = [0, 2, 1, 3]> (o)")
    net.add(f"oc = Reshape (ot, {net.table('merge', [0, 0, 16])})")
    net.add(f"om = MatMul (oc, {net.weight('o_w', 16, 16)})")
    net.add(f"ob = Add (om, {net.weight('o_b', 16)})")
    net.add("r1 = Add (e, ob)")
    net.add(f"l1 = LayerNormalization (r1, {net.weight('g1', 16)}, {net.weight('b1', 16)})")
    net.add(f"fm = MatMul (l1, {net.weight('f_w', 16, 32)})")
    net.add(f"fb = Add (fm, {net.weight('f_b', 32)})")
    _erf_gelu(net, "fg", "fb")
    net.add(f"dm = MatMul (fg, {net.weight('d_w', 32, 16)})")
    net.add(f"db = Add (dm, {net.weight('d_b', 16)})")
    net.add("r2 = Add (l1, db)")
    net.add(f"l2 = LayerNormalization (r2, {net.weight('g2', 16)}, {net.weight('b2', 16)})")
    net.add("mean = ReduceMean <axes = [1], keepdims = 0> (l2)")
    net.dense("y", "mean", 16, 4)
    return net.model()


def _erf_gelu(net: Net, y: str, x: str) -> None:
    net.table("sqrt2", 2**0.5, np.float32)
    net.table("one", 1.0, np.float32)
    net.table("half", 0.5, np.float32)
    net.add(f"{y}_d = Div ({x}, sqrt2)")
    net.add(f"{y}_e = Erf ({y}_d)")
    net.add(f"{y}_p = Add ({y}_e, one)")
    net.add(f"{y}_m = Mul ({x}, {y}_p)")
    net.add(f"{y} = Mul ({y}_m, half)")
