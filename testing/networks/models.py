"""Four architectures with seeded weights, in sizes for the emulator and in their usual ones."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

IR_VERSION = 10


class Network:
    """ONNX text written layer by layer; every layer has a node name and weights of its own."""

    def __init__(self, name: str, inputs: str, output: str, seed: int = 0) -> None:
        self._header, self._output = f"{name} ({inputs})", output
        self._random = np.random.default_rng(seed)
        self._lines: list[str] = []
        self._names: list[str] = []
        self._weights: dict[str, np.ndarray] = {}

    def node(self, name: str, line: str) -> str:
        """A node by its ONNX text `output = Op <attributes> (inputs)`; returns the output's name."""
        self._names.append(name)
        self._lines.append(line)
        return line.partition(" = ")[0]

    def weight(self, name: str, *shape: int, fan_in: int = 0) -> str:
        """A weight of variance 1 / fan_in (by default all axes but the first)."""
        scale = np.sqrt(fan_in or int(np.prod(shape[1:])) or 1)
        self._weights[name] = (self._random.standard_normal(shape) / scale).astype(np.float32)
        return name

    def near(self, name: str, centre: float, spread: float, *shape: int) -> str:
        """A weight around a number: scales, shifts, statistics."""
        self._weights[name] = (centre + spread * self._random.standard_normal(shape)).astype(np.float32)
        return name

    def table(self, name: str, numbers: object, dtype: type = np.int64) -> str:
        """A constant that is no parameter (a shape, an axis, a factor)."""
        self._weights[name] = np.asarray(numbers, dtype)
        return name

    def dense(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """Gemm with a transposed weight and a bias."""
        weight, bias = self.weight(f"{name}_weight", outputs, inputs), self.near(f"{name}_bias", 0.0, 0.1, outputs)
        return self.node(f"{name}/Gemm", f"{name} = Gemm <transB = 1> ({x}, {weight}, {bias})")

    def matmul(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """MatMul and Add, as exporters write a linear layer over tokens."""
        weight = self.weight(f"{name}_weight", inputs, outputs, fan_in=inputs)
        product = self.node(f"{name}/MatMul", f"{name}_product = MatMul ({x}, {weight})")
        return self.node(f"{name}/Add", f"{name} = Add ({product}, {self.near(f'{name}_bias', 0.0, 0.1, outputs)})")

    def conv(self, name: str, x: str, shape: tuple[int, int, int, int], attributes: str) -> str:
        """Conv without bias and its batch normalisation."""
        weight = self.weight(f"{name}_weight", *shape)
        raw = self.node(f"{name}/Conv", f"{name}_raw = Conv <{attributes}> ({x}, {weight})")
        gamma, beta = self.near(f"{name}_gamma", 1.0, 0.1, shape[0]), self.near(f"{name}_beta", 0.1, 0.2, shape[0])
        mean, variance = self.near(f"{name}_mean", 0.0, 0.1, shape[0]), self.near(f"{name}_var", 1.0, 0.02, shape[0])
        return self.node(f"{name}/Norm", f"{name} = BatchNormalization ({raw}, {gamma}, {beta}, {mean}, {variance})")

    def relu(self, x: str) -> str:
        return self.node(f"{x}/Relu", f"{x}_relu = Relu ({x})")

    def layer_norm(self, name: str, x: str, width: int) -> str:
        gamma, beta = self.near(f"{name}_gamma", 1.0, 0.1, width), self.near(f"{name}_beta", 0.0, 0.1, width)
        return self.node(f"{name}/Norm", f"{name} = LayerNormalization <axis = -1> ({x}, {gamma}, {beta})")

    def model(self, opset: int = 17, output: str = "") -> onnx.ModelProto:
        """The model; output: of a network whose output was not known when it was begun."""
        text = f"{self._header} => ({output or self._output}) {{\n" + "\n".join(self._lines) + "\n}"
        model = parser.parse_model(f'<ir_version: {IR_VERSION}, opset_import: ["" : {opset}]>\n{text}')
        for node, name in zip(model.graph.node, self._names, strict=True):
            node.name = name
        for name, array in self._weights.items():
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return model


def mlp(inputs: int = 12, hidden: int = 10, classes: int = 4, tail: str = "") -> onnx.ModelProto:
    """Three dense layers; `tail` is an activation behind the last one (Softmax, Sigmoid ...)."""
    net = Network("mlp", f"float[1, {inputs}] x", f"float[1, {classes}] y", seed=1)
    hidden1 = net.relu(net.dense("fc1", "x", inputs, hidden))
    hidden2 = net.node("fc2/Tanh", f"fc2_tanh = Tanh ({net.dense('fc2', hidden1, hidden, hidden)})")
    logits = net.dense("fc3", hidden2, hidden, classes)
    net.node("tail", f"y = {tail or 'Identity'} ({logits})")
    return net.model()


def ds_cnn(channels: int = 64, blocks: int = 4, size: tuple[int, int] = (49, 10)) -> onnx.ModelProto:
    """Keyword spotting: depthwise separable convolutions over (time, coefficients), 12 words."""
    height, width = size
    net = Network("ds_cnn", f"float[1, 1, {height}, {width}] x", "float[1, 12] y", seed=2)
    x = net.relu(net.conv("stem", "x", (channels, 1, 10, 4), "strides = [2, 2], pads = [4, 1, 5, 2]"))
    for i in range(blocks):
        depthwise = net.conv(f"dw{i}", x, (channels, 1, 3, 3), f"group = {channels}, pads = [1, 1, 1, 1]")
        x = net.relu(net.conv(f"pw{i}", net.relu(depthwise), (channels, channels, 1, 1), "pads = [0, 0, 0, 0]"))
    pooled = net.node("pool", f"pooled = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({pooled})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, channels, 12)})")
    return net.model()


def resnet8(channels: int = 16, size: int = 32, classes: int = 10) -> onnx.ModelProto:
    """A stem and three residual blocks, the last two with stride 2 and a 1x1 shortcut."""
    net = Network("resnet8", f"float[1, 3, {size}, {size}] x", f"float[1, {classes}] y", seed=3)
    same = "pads = [1, 1, 1, 1]"
    x = net.relu(net.conv("stem", "x", (channels, 3, 3, 3), same))
    for i, stride in enumerate((1, 2, 2)):
        wide = channels * stride
        strided = f"strides = [{stride}, {stride}]"
        first = net.relu(net.conv(f"block{i}_a", x, (wide, channels, 3, 3), f"{same}, {strided}"))
        second = net.conv(f"block{i}_b", first, (wide, wide, 3, 3), same)
        shortcut = x if stride == 1 else net.conv(f"block{i}_short", x, (wide, channels, 1, 1), strided)
        x = net.relu(net.node(f"block{i}/Add", f"block{i} = Add ({second}, {shortcut})"))
        channels = wide
    pooled = net.node("pool", f"pooled = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({pooled})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, channels, classes)})")
    return net.model()


def transformer(tokens: int = 16, width: int = 32, heads: int = 4, classes: int = 6) -> onnx.ModelProto:
    """One pre-norm encoder block over float embeddings: attention, GELU MLP, mean over tokens, head."""
    net = Network("encoder", f"float[1, {tokens}, {width}] x", f"float[1, {classes}] y", seed=4)
    place = net.near("position", 0.0, 0.1, 1, tokens, width)
    x = net.node("embed/Add", f"embedded = Add (x, {place})")
    attended = _attention(net, net.layer_norm("norm1", x, width), tokens, width, heads)
    x = net.node("residual1", f"after_attention = Add ({x}, {attended})")
    hidden = _gelu(net, net.matmul("up", net.layer_norm("norm2", x, width), width, 2 * width))
    x = net.node("residual2", f"after_mlp = Add ({x}, {net.matmul('down', hidden, 2 * width, width)})")
    pooled = net.node("pool", f"pooled = ReduceMean <axes = [1], keepdims = 0> ({x})")
    net.node("logits", f"y = Identity ({net.dense('head', pooled, width, classes)})")
    return net.model()


def _attention(net: Network, x: str, tokens: int, width: int, heads: int) -> str:
    depth = width // heads
    split = net.table("split_shape", [1, tokens, heads, depth])
    parts: dict[str, str] = {}
    for part, order in (("query", "0, 2, 1, 3"), ("key", "0, 2, 3, 1"), ("value", "0, 2, 1, 3")):
        rows = net.node(f"{part}/Reshape", f"{part}_split = Reshape ({net.matmul(part, x, width, width)}, {split})")
        parts[part] = net.node(f"{part}/Transpose", f"{part}_heads = Transpose <perm = [{order}]> ({rows})")
    raw = net.node("scores", f"scores = MatMul ({parts['query']}, {parts['key']})")
    factor = net.table("score_scale", depth**-0.5, np.float32)
    scaled = net.node("scores/Mul", f"scaled = Mul ({raw}, {factor})")
    weights = net.node("attention", f"attention = Softmax <axis = -1> ({scaled})")
    mixed = net.node("mix", f"mixed = MatMul ({weights}, {parts['value']})")
    rows = net.node("merge/Transpose", f"merged_heads = Transpose <perm = [0, 2, 1, 3]> ({mixed})")
    merged = net.node("merge", f"merged = Reshape ({rows}, {net.table('merge_shape', [1, tokens, width])})")
    return net.matmul("project", merged, width, width)


def _gelu(net: Network, x: str) -> str:
    """As exporters write it: 0.5 x (1 + erf(x / sqrt 2))."""
    net.table("root_half", 2**-0.5, np.float32)
    net.table("one", 1.0, np.float32)
    net.table("half", 0.5, np.float32)
    net.node("gelu/Scale", f"gelu_scaled = Mul ({x}, root_half)")
    net.node("gelu/Erf", "gelu_erf = Erf (gelu_scaled)")
    net.node("gelu/Add", "gelu_shifted = Add (gelu_erf, one)")
    net.node("gelu/Mul", f"gelu_product = Mul ({x}, gelu_shifted)")
    return net.node("gelu/Half", "gelu_out = Mul (gelu_product, half)")


def with_loss(
    model: onnx.ModelProto, weights: list[float] | None = None, reduction: str = "mean", ignore: int | None = None
) -> onnx.ModelProto:
    """The same model, ending in a SoftmaxCrossEntropyLoss over its output."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    old = graph.output[0]
    batch, _, *places = (d.dim_value for d in old.type.tensor_type.shape.dim)
    graph.input.append(onnx.helper.make_tensor_value_info("target", onnx.TensorProto.INT64, [batch, *places]))
    operands = [old.name, "target"]
    if weights is not None:
        graph.initializer.append(numpy_helper.from_array(np.asarray(weights, np.float32), "class_weights"))
        operands.append("class_weights")
    attributes: dict[str, object] = {"reduction": reduction}
    if ignore is not None:
        attributes["ignore_index"] = ignore
    node = onnx.helper.make_node("SoftmaxCrossEntropyLoss", operands, ["loss"], "loss/SCE", **attributes)
    graph.node.append(node)
    del graph.output[:]
    graph.output.append(onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return result


def segmenter(size: int = 8, classes: int = 3) -> onnx.ModelProto:
    """A small U-Net: down by MaxPool, up by ConvTranspose, a skip by Concat; one class for every pixel."""
    net = Network("segmenter", f"float[1, 2, {size}, {size}] x", f"float[1, {classes}, {size}, {size}] y", seed=5)
    high = net.relu(net.conv("down", "x", (4, 2, 3, 3), "pads = [1, 1, 1, 1]"))
    low = net.node("shrink", f"small = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> ({high})")
    middle = net.relu(net.conv("middle", low, (6, 4, 3, 3), "pads = [1, 1, 1, 1]"))
    weight, bias = net.weight("up_weight", 6, 4, 2, 2, fan_in=6), net.near("up_bias", 0.0, 0.1, 4)
    up = net.node("up", f"large = ConvTranspose <strides = [2, 2]> ({middle}, {weight}, {bias})")
    both = net.node("skip", f"both = Concat <axis = 1> ({high}, {up})")
    weight, bias = net.weight("last_weight", classes, 8, 1, 1), net.near("last_bias", 0.0, 0.1, classes)
    net.node("last", f"y = Conv ({both}, {weight}, {bias})")
    return net.model()


def _zoo_maps(net: Network) -> None:
    """From the image x to the maps cl."""
    net.table("ends", [0, 0, 1, 0, 0, 0, 0, 1])
    net.table("rows", [0])
    net.table("stop", [10])
    net.table("height", [2])
    net.table("stride", [2])
    net.node("pad", "padded = Pad (x, ends)")
    net.node("slice", "cut = Slice (padded, rows, stop, height, stride)")
    net.node(
        "conv", f"c = Conv <group = 2, pads = [1, 0, 1, 0], dilations = [1, 2]> (cut, {net.weight('k', 8, 2, 3, 3)})"
    )
    net.node("instance", f"n = InstanceNormalization (c, {net.near('ig', 1.0, 0.1, 8)}, {net.near('ib', 0.0, 0.1, 8)})")
    net.node("prelu", f"p = PRelu (n, {net.near('slope', 0.3, 0.05, 8, 1, 1)})")
    net.table("halves", [4, 4])
    net.node("split", "left, right = Split <axis = 1> (p, halves)")
    net.node("swish", "a = HardSwish (left)")
    net.node("leaky", "b = LeakyRelu <alpha = 0.1> (right)")
    net.node("concat", "joined = Concat <axis = 1> (b, a)")
    net.node("average", "avg = AveragePool <kernel_shape = [2, 2], strides = [2, 1], pads = [1, 0, 0, 1]> (joined)")
    net.node("hard", "hs = HardSigmoid <alpha = 0.3, beta = 0.4> (avg)")
    net.node("sigmoid", "sg = Sigmoid (avg)")
    net.node("silu", "silu = Mul (avg, sg)")
    net.node("add", "mix = Add (silu, hs)")
    net.node("max", 'mx = MaxPool <kernel_shape = [3, 3], strides = [1, 2], auto_pad = "SAME_UPPER"> (mix)')
    net.node("clip", "cl = Clip (mx, low, high)")
    net.table("low", -1.5, np.float32)
    net.table("high", 1.25, np.float32)


def zoo() -> onnx.ModelProto:
    """Every activation, norm, pool and shape operator that the four architectures do not have, in one line."""
    net = Network("zoo", "float[1, 4, 9, 8] x", "float[1, 5] y", seed=11)
    _zoo_maps(net)
    net.table("wide", [1, 8])
    net.table("pixels", [2, 3])
    net.table("middle_axis", [1])
    net.table("small", 0.05, np.float32)
    net.table("two", 2.0, np.float32)
    net.node("global", "g = GlobalMaxPool (cl)")
    net.node("sum", "s = ReduceSum <keepdims = 1> (cl, pixels)")
    net.node("scaled", "ss = Mul (s, small)")
    net.node("minus", "d = Sub (g, ss)")
    net.node("flat", "f = Reshape (d, wide)")
    net.node("exp", "e = Exp (f)")
    net.node("plus", "e1 = Add (e, two)")
    net.node("log", "l = Log (e1)")
    net.node("sqrt", "r = Sqrt (l)")
    net.node("div", "q = Div (f, r)")
    net.node("pow", "sq = Pow (q, two)")
    net.node("neg", "ng = Neg (sq)")
    net.node("tanh", "t = Tanh (ng)")
    net.node("erf", "er = Erf (t)")
    net.node("add2", "u = Add (er, q)")
    net.node("up", "row = Unsqueeze (u, middle_axis)")
    net.node("down", "line = Squeeze (row, middle_axis)")
    net.node("softmax", "sm = LogSoftmax <axis = 1> (line)")
    net.node("y", f"y = Identity ({net.dense('fc', 'sm', 8, 5)})")
    return net.model()


def dense_features(width: int = 64, growth: int = 32, layers: int = 4, classes: int = 5) -> onnx.ModelProto:
    """A DenseNet of features without an image: every layer reads all before it, joined."""
    net = Network("dense_features", f"float[1, {width}] x", f"float[1, {classes}] y", seed=21)
    x = net.relu(net.dense("stem", "x", width, width))
    for layer in range(layers):
        new = net.relu(net.dense(f"layer{layer}", x, width, growth))
        x = net.node(f"join{layer}", f"joined{layer} = Concat <axis = 1> ({x}, {new})")
        width += growth
    net.node("logits", f"y = Identity ({net.dense('fc', x, width, classes)})")
    return net.model()


def bands(size: int = 16, channels: int = 8, classes: int = 5) -> onnx.ModelProto:
    """An image in three bands of rows, each with convolutions of its own, joined again."""
    net = Network("bands", f"float[1, 3, {size}, {size}] x", f"float[1, {classes}] y", seed=22)
    same = "pads = [1, 1, 1, 1]"
    stem = net.relu(net.conv("stem", "x", (channels, 3, 3, 3), same))
    net.table("rows", [size // 4, size // 2, size // 4])
    net.node("split", f"top, middle, bottom = Split <axis = 2> ({stem}, rows)")
    parts = ("top", "middle", "bottom")
    done = [net.relu(net.conv(f"{name}_conv", name, (channels, channels, 3, 3), same)) for name in parts]
    whole = net.node("join", f"whole = Concat <axis = 2> ({', '.join(done)})")
    x = net.relu(net.conv("last", whole, (2 * channels, channels, 3, 3), f"{same}, strides = [2, 2]"))
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 2 * channels, classes)})")
    return net.model()


def tower(size: int = 16, channels: int = 8, classes: int = 5) -> onnx.ModelProto:
    """Three convolutions of one image, one below the other; then a convolution over all of them."""
    net = Network("tower", f"float[1, 3, {size}, {size}] x", f"float[1, {classes}] y", seed=23)
    same = "pads = [1, 1, 1, 1]"
    stem = net.relu(net.conv("stem", "x", (channels, 3, 3, 3), same))
    done = [net.relu(net.conv(f"branch{i}", stem, (channels, channels, 3, 3), same)) for i in range(3)]
    whole = net.node("join", f"whole = Concat <axis = 2> ({', '.join(done)})")
    x = net.relu(net.conv("last", whole, (channels, channels, 3, 3), f"{same}, strides = [2, 2]"))
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, channels, classes)})")
    return net.model()


def inverted(size: int = 16, channels: int = 4, blocks: int = 4, classes: int = 4) -> onnx.ModelProto:
    """Inverted bottlenecks: each widens its map six times, filters it, and makes it narrow again."""
    net = Network("inverted", f"float[1, 3, {size}, {size}] x", f"float[1, {classes}] y", seed=24)
    same, wide = "pads = [1, 1, 1, 1]", 6 * channels
    x = net.relu(net.conv("stem", "x", (channels, 3, 3, 3), same))
    for b in range(blocks):
        widened = net.relu(net.conv(f"b{b}_widen", x, (wide, channels, 1, 1), "group = 1"))
        how = f"{same}, group = {wide}, strides = [{1 + b % 2}, {1 + b % 2}]"
        filtered = net.relu(net.conv(f"b{b}_filter", widened, (wide, 1, 3, 3), how))
        x = net.conv(f"b{b}_narrow", filtered, (channels, wide, 1, 1), "group = 1")
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, channels, classes)})")
    return net.model()
