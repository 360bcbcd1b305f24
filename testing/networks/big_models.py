"""Two nets too large for a small RAM when all of them is trained: ResNet-18 at quarter width, a small BERT encoder.

`python -m testing.networks.big_models FOLDER` writes them as ONNX files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx

from testing.networks.models import Network


def resnet18(width: int = 16, size: int = 32, classes: int = 10) -> onnx.ModelProto:
    """A stem, then four stages of two residual blocks with width, 2, 4 and 8 times width channels."""
    net = Network("resnet18", f"float[1, 3, {size}, {size}] x", f"float[1, {classes}] y", seed=18)
    same = "pads = [1, 1, 1, 1]"
    x, channels = net.relu(net.conv("stem", "x", (width, 3, 3, 3), same)), width
    for stage in range(4):
        for index in range(2):
            name, wide = f"stage{stage}_{index}", width << stage
            stride = 2 if stage and index == 0 else 1
            strided = f"strides = [{stride}, {stride}]"
            first = net.relu(net.conv(f"{name}_a", x, (wide, channels, 3, 3), f"{same}, {strided}"))
            second = net.conv(f"{name}_b", first, (wide, wide, 3, 3), same)
            short = x if wide == channels else net.conv(f"{name}_short", x, (wide, channels, 1, 1), strided)
            x, channels = net.relu(net.node(f"{name}/Add", f"{name} = Add ({second}, {short})")), wide
    pooled = net.node("pool", f"pooled = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({pooled})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, channels, classes)})")
    return net.model()


def bert(layers: int = 4, tokens: int = 64, width: int = 128, heads: int = 4, classes: int = 4) -> onnx.ModelProto:
    """Post-norm encoder layers over float embeddings (tokens x width), the first token's row into the head."""
    net = Network("bert", f"float[1, {tokens}, {width}] x", f"float[1, {classes}] y", seed=19)
    place = net.near("position", 0.0, 0.1, 1, tokens, width)
    for name, numbers in (
        ("root_half", 2**-0.5),
        ("one", 1.0),
        ("half", 0.5),
        ("score_scale", (width // heads) ** -0.5),
    ):
        net.table(name, numbers, np.float32)
    net.table("split_shape", [1, tokens, heads, width // heads])
    net.table("merge_shape", [1, tokens, width])
    x = net.layer_norm("embed", net.node("embed/Add", f"placed = Add (x, {place})"), width)
    for layer in range(layers):
        x = _encoder_layer(net, f"layer{layer}", x, width)
    pooled = net.node("pool", f"pooled = ReduceMean <axes = [1], keepdims = 0> ({x})")
    net.node("logits", f"y = Identity ({net.dense('head', pooled, width, classes)})")
    return net.model()


def _encoder_layer(net: Network, name: str, x: str, width: int) -> str:
    attended = net.matmul(f"{name}_project", _attention(net, name, x, width), width, width)
    summed = net.node(f"{name}/Add1", f"{name}_sum1 = Add ({x}, {attended})")
    x = net.layer_norm(f"{name}_norm1", summed, width)
    hidden = _gelu(net, name, net.matmul(f"{name}_up", x, width, 4 * width))
    down = net.matmul(f"{name}_down", hidden, 4 * width, width)
    return net.layer_norm(f"{name}_norm2", net.node(f"{name}/Add2", f"{name}_sum2 = Add ({x}, {down})"), width)


def _attention(net: Network, name: str, x: str, width: int) -> str:
    parts: dict[str, str] = {}
    for part, order in (("query", "0, 2, 1, 3"), ("key", "0, 2, 3, 1"), ("value", "0, 2, 1, 3")):
        stem = f"{name}_{part}"
        rows = net.node(f"{stem}/Reshape", f"{stem}_split = Reshape ({net.matmul(stem, x, width, width)}, split_shape)")
        parts[part] = net.node(f"{stem}/Transpose", f"{stem}_heads = Transpose <perm = [{order}]> ({rows})")
    raw = net.node(f"{name}/Scores", f"{name}_scores = MatMul ({parts['query']}, {parts['key']})")
    scaled = net.node(f"{name}/Scale", f"{name}_scaled = Mul ({raw}, score_scale)")
    weights = net.node(f"{name}/Softmax", f"{name}_weights = Softmax <axis = -1> ({scaled})")
    mixed = net.node(f"{name}/Mix", f"{name}_mixed = MatMul ({weights}, {parts['value']})")
    rows = net.node(f"{name}/Merge", f"{name}_rows = Transpose <perm = [0, 2, 1, 3]> ({mixed})")
    return net.node(f"{name}/Flat", f"{name}_flat = Reshape ({rows}, merge_shape)")


def _gelu(net: Network, name: str, x: str) -> str:
    """As exporters write it: 0.5 x (1 + erf(x / sqrt 2))."""
    net.node(f"{name}/GeluScale", f"{name}_g1 = Mul ({x}, root_half)")
    net.node(f"{name}/Erf", f"{name}_g2 = Erf ({name}_g1)")
    net.node(f"{name}/GeluAdd", f"{name}_g3 = Add ({name}_g2, one)")
    net.node(f"{name}/GeluMul", f"{name}_g4 = Mul ({x}, {name}_g3)")
    return net.node(f"{name}/GeluHalf", f"{name}_gelu = Mul ({name}_g4, half)")


MODELS = {"resnet18": resnet18, "bert": bert}


def main() -> None:
    """Write every model into the folder given."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        (folder / f"{name}.onnx").write_bytes(make().SerializeToString())


if __name__ == "__main__":
    main()
