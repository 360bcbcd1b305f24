"""The four architectures of issue 2 with seeded weights, in sizes for the emulator and in their usual ones."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

IR_VERSION = 10


class Network:
    """ONNX text written layer by layer; every layer has a node name and weights of its own."""

    def __init__(self, name: str, inputs: str, output: str, seed: int = 0) -> None:
        self._header = f"{name} ({inputs}) => ({output})"
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

    def model(self, opset: int = 17) -> onnx.ModelProto:
        text = self._header + " {\n" + "\n".join(self._lines) + "\n}"
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
    """Contract 2: the same model, ending in a SoftmaxCrossEntropyLoss over its output."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    old = graph.output[0]
    graph.input.append(onnx.helper.make_tensor_value_info("target", onnx.TensorProto.INT64, [1]))
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
