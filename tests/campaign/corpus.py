"""Sound models that mutants are made of, each with the options that it needs."""

from __future__ import annotations

from functools import cache

import onnx

from testing.networks import models
from testing.places import SHARED
from tests.quantize import nets

LARGEST = 12_000
"""Bytes of a model from ../shared: larger ones take longer, and reach nothing else."""


def tied(transposed: bool) -> onnx.ModelProto:
    """Two dense layers with one weight: used twice alike, or once plainly and once transposed."""
    net = models.Network("tied", "float[1, 6] x", "float[1, 3] y", seed=6)
    net.weight("shared", 6, 6)
    net.node("first", "a = MatMul (x, shared)")
    net.node("bend", "b = Tanh (a)")
    if transposed:
        net.node("turn", "turned = Transpose <perm = [1, 0]> (shared)")
    net.node("second", f"c = MatMul (b, {'turned' if transposed else 'shared'})")
    net.node("logits", f"y = Identity ({net.dense('fc', 'c', 6, 3)})")
    return net.model()


def _pixels() -> onnx.ModelProto:
    """A segmenter that ends in its loss, with class weights."""
    return models.with_loss(models.segmenter(size=4), [1.0, 0.5, 2.0], ignore=1)


@cache
def corpus() -> dict[str, tuple[bytes, tuple[str, ...]]]:
    """Name -> (file, options): most operators, QDQ, shared weights, own losses; the small ones of ../shared."""
    int8, fp32 = ("--quant", "int8"), ("--quant", "fp32")
    made = {
        "mlp": (models.mlp(tail="Softmax"), ()),
        "sigmoid": (models.mlp(classes=1, tail="Sigmoid"), ("--loss", "bce")),
        "spotting": (models.with_loss(models.ds_cnn(channels=4, blocks=1, size=(12, 6)), ignore=2), ()),
        "pixels": (_pixels(), ()),
        "resnet8": (models.resnet8(channels=2, size=8), ()),
        "transformer": (models.transformer(tokens=3, width=4, heads=2), ()),
        "zoo": (models.zoo(), ()),
        "features": (models.dense_features(8, 4, 2), ("--loss", "mse")),
        "qdq": (nets.quantised(), int8),
        "qdq float": (nets.quantised(), fp32),
        "qdq symmetric": (nets.symmetric_relu(), int8),
        "tied": (tied(transposed=False), ()),
        "tied transposed": (tied(transposed=True), ()),
    }
    result = {name: (model.SerializeToString(), options) for name, (model, options) in made.items()}
    for folder in ("repros", "zoo/torch-ts", "zoo/torch-dynamo", "zoo/keras"):
        for path in sorted((SHARED / folder).glob("*.onnx")):
            data = onnx.load(path).SerializeToString()  # with its weights, where they lie beside it
            if len(data) <= LARGEST:
                result[f"{folder}/{path.stem}"] = (data, _options_of(path.stem))
    return result


def _options_of(name: str) -> tuple[str, ...]:
    return ("--quant", "int8") if "qdq" in name or name == "relu_lost" else ("--loss", "mse")


@cache
def proto(name: str) -> onnx.ModelProto:
    """A model of the corpus; copy it before changing it."""
    return onnx.load_from_string(corpus()[name][0])
