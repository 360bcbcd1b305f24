"""Makes digits.onnx: a small CNN, trained on upright digits with the compiler's own numpy reference (no torch).

Needs scikit-learn for the digits. The model in this folder was made by this script; run.py does not need it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from make_data import parts
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from tinytrain_compile.frontend import load_model
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

EPOCHS, BATCH, SEED = 8, 16, 3

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
digits (float[1,1,8,8] image) => (float[1,10] logits) {
    [conv1] a = Conv<pads=[1,1,1,1]>(image, conv1_w, conv1_b)
    [relu1] b = Relu(a)
    [conv2] c = Conv<pads=[1,1,1,1], strides=[2,2]>(b, conv2_w, conv2_b)
    [relu2] d = Relu(c)
    [conv3] e = Conv<pads=[1,1,1,1]>(d, conv3_w, conv3_b)
    [relu3] f = Relu(e)
    [flatten] g = Flatten(f)
    [classifier] logits = Gemm<transB=1>(g, classifier_w, classifier_b)
}
"""
SHAPES = {"conv1_w": (8, 1, 3, 3), "conv2_w": (16, 8, 3, 3), "conv3_w": (16, 16, 3, 3), "classifier_w": (10, 256)}

Array = NDArray[np.float32]


def fresh_weights() -> dict[str, Array]:
    """He initialisation; biases zero."""
    rng = np.random.default_rng(SEED)
    weights: dict[str, Array] = {}
    for name, shape in SHAPES.items():
        spread = np.sqrt(2 / np.prod(shape[1:]))
        weights[name] = (spread * rng.standard_normal(shape)).astype(np.float32)
        weights[name.replace("_w", "_b")] = np.zeros(shape[0], np.float32)
    return weights


def model_with(weights: dict[str, Array]) -> onnx.ModelProto:
    """The network with these weights (ONNX layouts)."""
    model = parser.parse_model(MODEL)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def trainer_of(model: onnx.ModelProto) -> Trainer:
    """The compiler's training graph of the model, run by numpy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.onnx"
        onnx.save(model, path)
        imported = load_model(path)
    options = TrainingOptions("cross-entropy", "adam", learning_rate=0.003, batch=BATCH)
    return Trainer(build_training(imported, resolve_update(imported.graph, "all"), options))


def onnx_layout(state: dict[str, Array]) -> dict[str, Array]:
    """Weights as ONNX keeps them: the compiler works channels last (OHWI, and H, W, C behind a Flatten)."""
    weights: dict[str, Array] = {}
    for name, shape in SHAPES.items():
        array = state[name]
        if name == "classifier_w":
            array = array.reshape(10, 4, 4, 16)
        weights[name] = np.ascontiguousarray(array.transpose(0, 3, 1, 2)).reshape(shape)
        bias = name.replace("_w", "_b")
        weights[bias] = state[bias]
    return weights


def accuracy(trainer: Trainer, images: Array, labels: NDArray[np.int32]) -> float:
    """Share of images whose largest logit is the right one."""
    hits = [int(np.argmax(trainer.infer(x[None, ..., None]))) == y for x, y in zip(images, labels, strict=True)]
    return float(np.mean(hits))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent / "digits.onnx")
    path = arguments.parse_args().out
    (images, labels), _, (other_images, other_labels) = parts()
    trainer = trainer_of(model_with(fresh_weights()))
    order = np.random.default_rng(SEED)
    for epoch in range(EPOCHS):
        chosen = order.permutation(len(labels))
        batches = [chosen[i : i + BATCH] for i in range(0, len(chosen) - BATCH + 1, BATCH)]
        losses = [loss for batch in batches for loss in trainer.step(images[batch][..., None], labels[batch])]
        print(f"epoch {epoch + 1}  loss {np.mean(losses):.3f}", flush=True)
    print(f"upright digits never seen: {accuracy(trainer, other_images, other_labels):.1%} right")
    onnx.save(model_with(onnx_layout(trainer.state)), path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
